//! The certificates that the programs trust: home-made ones of a server, and those of the host.

use std::fs;
use std::path::{Path, PathBuf};

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::{present, run};
use integration_tests::content::Content;
use integration_tests::kubernetes::on_kubernetes;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::tls_etcd::certificates::Certificates;
use crate::tls_etcd::{TLS, serve_tls};

const NO_OPENSSL: &str = "openssl is not installed (Debian: openssl)";

/// The files of a self-signed certificate.
struct HomeMade {
    certificate: PathBuf,
    key: PathBuf,
}

impl HomeMade {
    /// Makes a certificate as `openssl req -x509` does without further options: with `CA:TRUE`.
    fn new(directory: &Path, name: &str, names: &str) -> HomeMade {
        let file = |suffix: &str| directory.join(format!("{name}{suffix}.pem"));
        let made = HomeMade {
            certificate: file(""),
            key: file("-key"),
        };
        let names = format!("subjectAltName={names}");
        let (certificate, key) = (
            made.certificate.display().to_string(),
            made.key.display().to_string(),
        );
        let words = [
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=home-made",
            "-days",
            "2",
        ];
        let more = ["-addext", &names, "-out", &certificate, "-keyout", &key];
        run("openssl", &[&words[..], &more].concat()).unwrap();
        let shown = run("openssl", &["x509", "-in", &certificate, "-noout", "-text"]).unwrap();
        assert!(shown.contains("CA:TRUE"), "{shown}");
        made
    }

    fn etcd_flags(&self) -> Vec<String> {
        vec![
            format!("--cert-file={}", self.certificate.display()),
            format!("--key-file={}", self.key.display()),
        ]
    }
}

#[on(etcd)]
fn etcd_with_a_home_made_certificate_is_reached(cluster: &mut Cluster<'_>) {
    if !present("openssl") {
        return skipped(NO_OPENSSL);
    }
    let directory = tempfile::tempdir().unwrap();
    let own = HomeMade::new(directory.path(), "own", "IP:127.0.0.1");
    let copy = HomeMade::new(directory.path(), "copy", "IP:127.0.0.1");
    serve_tls(cluster, own.etcd_flags());
    cluster.load(&Content::dual_stack());
    let conf = |trusted: &HomeMade| {
        cluster.conf(
            "node1",
            json!({ "etcd_endpoints": TLS, "etcd_ca_cert_file": trusted.certificate }),
        )
    };
    let pod = cluster.pod(1);
    let before = cluster.state();
    let error = cluster.verb("ADD", &pod, &conf(&copy)).run().error();
    let said = format!("{} {}", error.msg, error.details);
    assert!(said.contains("etcd's certificate is not trusted"), "{said}");
    cluster.assert_unchanged(&before);
    cluster.add(&pod, &conf(&own));
    cluster.delete(&pod, &conf(&own));
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn etcd_with_a_home_made_certificate_of_another_name_is_refused(cluster: &mut Cluster<'_>) {
    if !present("openssl") {
        return skipped(NO_OPENSSL);
    }
    let directory = tempfile::tempdir().unwrap();
    let own = HomeMade::new(directory.path(), "own", "DNS:etcd.example.org");
    serve_tls(cluster, own.etcd_flags());
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf(
        "node1",
        json!({ "etcd_endpoints": TLS, "etcd_ca_cert_file": own.certificate }),
    );
    let error = cluster.verb("ADD", &cluster.pod(1), &conf).run().error();
    let said = format!("{} {}", error.msg, error.details);
    assert!(said.contains("not valid for name"), "{said}");
}

#[test]
fn api_server_with_a_home_made_certificate_is_reached() {
    if !present("openssl") {
        return skipped(NO_OPENSSL);
    }
    let directory = tempfile::tempdir().unwrap();
    let own = HomeMade::new(directory.path(), "own", "DNS:localhost");
    on_kubernetes(|_, mut kubernetes| {
        // A connection by name gets this certificate, and one by address that of the test's
        // authority.
        let files = format!(
            "{},{}:localhost",
            own.certificate.display(),
            own.key.display()
        );
        kubernetes
            .api
            .restart_with(&[&format!("--tls-sni-cert-key={files}")])
            .unwrap();
        kubernetes
            .api
            .define(ApiGroup::CrdV1.api_version())
            .unwrap();
        let home_made = fs::read_to_string(&own.certificate).unwrap();
        let list = |url: &str| {
            let kubeconfig = directory.path().join("kubeconfig");
            let text = kubernetes
                .api
                .admin_identity()
                .kubeconfig(url, &home_made)
                .unwrap();
            fs::write(&kubeconfig, text).unwrap();
            let call = Plugins::locate()
                .unwrap()
                .call("calico-ipam")
                .args(["get", "ippools"]);
            call.env("DATASTORE_TYPE", "kubernetes")
                .env("KUBECONFIG", kubeconfig)
                .run()
        };
        let outcome = list("https://localhost:6443");
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        let outcome = list("https://127.0.0.1:6443");
        assert!(
            outcome.exit == Some(1) && outcome.stderr.contains("invalid peer certificate"),
            "{}",
            outcome.stderr
        );
    });
}

/// The gate is etcd's own health page.
#[on(etcd)]
fn readiness_gate_of_a_company_ca_opens(cluster: &mut Cluster<'_>) {
    let company = Certificates::new("company");
    let file = |name: &str| company.file(name).display().to_string();
    let flags = vec![
        format!("--cert-file={}", file("server.pem")),
        format!("--key-file={}", file("server-key.pem")),
    ];
    serve_tls(cluster, flags);
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf(
        "node1",
        json!({ "readiness_gates": [format!("{TLS}/health")] }),
    );
    let pod = cluster.pod(1);
    cluster
        .verb("ADD", &pod, &conf)
        .env("SSL_CERT_FILE", file("ca.pem"))
        .run()
        .success();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}
