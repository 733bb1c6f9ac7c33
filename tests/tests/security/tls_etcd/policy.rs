//! `TLS_MIN_VERSION` and `TLS_CIPHER_SUITES`.

use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use integration_tests::controllers::{PATIENCE, Setup, await_that, exit_text};
use integration_tests::kubernetes::on_shared_kubernetes;
use serde_json::{Value, json};
use tokio_rustls::rustls::CipherSuite;

use crate::tls_etcd::certificates::Certificates;
use crate::tls_etcd::relay::Relay;
use crate::tls_etcd::{files, serve_tls};

/// The key of the server's certificate is an ECDSA key.
const OFFERED: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";

/// Starts an endpoint of TLS 1.2 only in front of the cluster's etcd. Returns it with a
/// configuration for this endpoint.
fn relayed(cluster: &Cluster<'_>) -> (Relay, Value) {
    cluster.load(&Content::dual_stack());
    let relay = Relay::start();
    let keys = json!({
        "etcd_endpoints": relay.url, "etcd_ca_cert_file": relay.certificates.file("ca.pem"),
        "log_level": "info",
    });
    (relay, cluster.conf("node1", keys))
}

#[on(etcd)]
fn etcd_with_tls_1_2_is_refused_by_min_version_1_3(cluster: &Cluster<'_>) {
    let (_relay, conf) = &relayed(cluster);
    let pod = cluster.pod(1);
    let before = cluster.state();
    let error = cluster
        .verb("ADD", &pod, conf)
        .env("TLS_MIN_VERSION", "1.3")
        .run()
        .error();
    let said = format!("{} {}", error.msg, error.details);
    assert!(said.contains("TLS_MIN_VERSION"), "{said}");
    assert_ne!(error.code, 11, "trying again does not help");
    cluster.assert_unchanged(&before);

    let outcome = cluster
        .verb("ADD", &pod, conf)
        .env("TLS_MIN_VERSION", "1.1")
        .run();
    outcome.success();
    assert!(
        outcome
            .stderr
            .contains("TLS_MIN_VERSION: `1.1` is not 1.2 or 1.3"),
        "{}",
        outcome.stderr
    );
    cluster.delete(&pod, conf);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn add_over_tls_1_3_succeeds_with_min_version_1_3(cluster: &mut Cluster<'_>) {
    let ours = Certificates::new("ours");
    serve_tls(cluster, ours.etcd_flags());
    cluster.load(&Content::dual_stack());
    let (pod, conf) = (
        cluster.pod(1),
        cluster.conf("node1", files(&ours, Some(&ours))),
    );
    cluster
        .verb("ADD", &pod, &conf)
        .env("TLS_MIN_VERSION", "1.3")
        .run()
        .success();
    cluster
        .verb("DEL", &pod, &conf)
        .env("TLS_MIN_VERSION", "1.3")
        .run()
        .success();
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn plugin_offers_only_the_cipher_suites_of_the_list(cluster: &Cluster<'_>) {
    let (relay, conf) = &relayed(cluster);
    let pod = cluster.pod(1);
    let list = format!("TLS_RSA_WITH_AES_128_CBC_SHA,{OFFERED}");
    let outcome = cluster
        .verb("ADD", &pod, conf)
        .env("TLS_CIPHER_SUITES", &list)
        .run();
    outcome.success();
    assert!(
        outcome
            .stderr
            .contains("does not have TLS_RSA_WITH_AES_128_CBC_SHA"),
        "{}",
        outcome.stderr
    );
    let suites = relay.suites();
    let expected = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    assert!(
        !suites.is_empty() && suites.iter().all(|suite| *suite == expected),
        "{suites:?}"
    );

    let other = cluster.pod(2);
    let before = cluster.state();
    for (list, word) in [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_CIPHER_SUITES"),
        (
            "TLS_RSA_WITH_AES_128_CBC_SHA",
            "none of the cipher suites TLS_RSA_WITH_AES_128_CBC_SHA",
        ),
        ("TLS_NULL", "unsupported cipher: `TLS_NULL`"),
    ] {
        let error = cluster
            .verb("ADD", &other, conf)
            .env("TLS_CIPHER_SUITES", list)
            .run()
            .error();
        let said = format!("{} {}", error.msg, error.details);
        assert!(said.contains(word), "{list}: {said}");
        cluster.assert_unchanged(&before);
    }
    cluster.delete(&pod, conf);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn command_line_prints_a_note_about_settings_without_effect(cluster: &Cluster<'_>) {
    let (_relay, conf) = &relayed(cluster);
    let text = |key: &str| conf[key].as_str().unwrap().to_owned();
    let call = cluster
        .plugins
        .call("calico-ipam")
        .args(["get", "ippools"])
        .env("TLS_MIN_VERSION", "1.0");
    let call = call.env("ETCD_ENDPOINTS", text("etcd_endpoints"));
    let outcome = call
        .env("ETCD_CA_CERT_FILE", text("etcd_ca_cert_file"))
        .run();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("note: TLS_MIN_VERSION: `1.0`"),
        "{}",
        outcome.stderr
    );
}

/// etcd need not answer for that.
#[test]
fn invalid_minimum_version_is_a_warning_of_kube_controllers() {
    on_shared_kubernetes(|host, kubernetes| {
        let setup = Setup::etcd(&kubernetes.api)
            .unwrap()
            .env("ETCD_ENDPOINTS", "https://127.0.0.1:2381");
        let controllers = setup
            .env("TLS_MIN_VERSION", "1.1")
            .start(host, "old")
            .unwrap();
        let expected = "TLS_MIN_VERSION: `1.1` is not 1.2 or 1.3";
        let is_logged = |line: &str| line.contains("[WARNING]") && line.contains(expected);
        await_that(PATIENCE, || Ok(controllers.log()?.lines().any(is_logged))).unwrap();
    });
}

#[test]
fn unknown_cipher_suite_ends_kube_controllers() {
    on_shared_kubernetes(|host, kubernetes| {
        for (name, list, expected) in [
            ("unknown", "TLS_NULL", "unsupported cipher: `TLS_NULL`"),
            (
                "lacking",
                "TLS_RSA_WITH_AES_256_GCM_SHA384",
                "none of the cipher suites",
            ),
        ] {
            let setup = Setup::etcd(&kubernetes.api)
                .unwrap()
                .env("ETCD_ENDPOINTS", "https://127.0.0.1:2381");
            let mut controllers = setup
                .env("TLS_CIPHER_SUITES", list)
                .start(host, name)
                .unwrap();
            assert_eq!(exit_text(controllers.ended().unwrap()), "1", "{list}");
            let log = controllers.log().unwrap();
            assert!(
                log.contains("[ERROR]") && log.contains(expected),
                "{list}: {log}"
            );
        }
    });
}
