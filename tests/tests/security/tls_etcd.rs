//! TLS of the programs: client certificates, versions and cipher suites of etcd, and the
//! certificates that are trusted.

#[expect(
    unreachable_pub,
    reason = "the datastore's own tests share it as a module"
)]
#[path = "../../../datastore/tests/stores/harness/certificates.rs"]
mod certificates;
mod policy;
mod relay;
mod trust;

use certificates::Certificates;
use integration_tests::cluster::{Cluster, on};
use integration_tests::content::Content;
use integration_tests::etcd;
use serde_json::{Value, json};

const TLS: &str = "https://127.0.0.1:2381";

/// Gives the etcd of a cluster a TLS endpoint for the plugins, with these flags. The test uses the
/// plain endpoint.
fn serve_tls(cluster: &mut Cluster<'_>, mut flags: Vec<String>) {
    flags.push(format!("--listen-client-urls={},{TLS}", etcd::ENDPOINT));
    cluster.etcd().restart_with(&flags).unwrap();
}

/// Returns the configuration keys for an authority's file and a client certificate.
fn files(authority: &Certificates, client: Option<&Certificates>) -> Value {
    let mut keys = json!({ "etcd_endpoints": TLS, "etcd_ca_cert_file": authority.file("ca.pem") });
    if let Some(client) = client {
        keys["etcd_cert_file"] = json!(client.file("client.pem"));
        keys["etcd_key_file"] = json!(client.file("client-key.pem"));
    }
    keys
}

#[on(etcd)]
fn add_and_del_over_tls_succeed(cluster: &mut Cluster<'_>) {
    let ours = Certificates::new("ours");
    serve_tls(cluster, ours.etcd_flags());
    cluster.load(&Content::dual_stack());
    let inline = json!({
        "etcd_endpoints": TLS, "etcd_ca_cert": ours.text("ca.pem"),
        "etcd_cert": ours.text("client.pem"), "etcd_key": ours.text("client-key.pem"),
    });
    for (number, keys) in [(1, files(&ours, Some(&ours))), (2, inline)] {
        let conf = cluster.conf("node1", keys);
        let pod = cluster.pod(number);
        cluster.add(&pod, &conf);
        assert_eq!(cluster.accounts().held.len(), 1);
        cluster.delete(&pod, &conf);
        cluster.assert_nothing_left();
    }
}

/// The error of ADD and the reason of the deferred DEL name the file or the key to correct.
/// Shows SEC-76.
#[on(etcd)]
fn wrong_certificates_fail_an_add_and_defer_a_del(cluster: &mut Cluster<'_>) {
    let (ours, theirs) = (Certificates::new("ours"), Certificates::new("theirs"));
    serve_tls(cluster, ours.etcd_flags());
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", files(&ours, Some(&ours)));
    let (there, newcomer) = (cluster.pod(1), cluster.pod(2));
    cluster.add(&there, &conf);
    let before = cluster.state();
    let wrong = [
        (
            "another authority",
            files(&theirs, Some(&ours)),
            theirs.file("ca.pem").display().to_string(),
        ),
        (
            "another's certificate",
            files(&ours, Some(&theirs)),
            theirs.file("client.pem").display().to_string(),
        ),
        (
            "no certificate",
            files(&ours, None),
            "etcd_cert_file".to_owned(),
        ),
    ];
    for (what, keys, word) in wrong {
        let conf = cluster.conf("node1", keys);
        let error = cluster.verb("ADD", &newcomer, &conf).run().error();
        let said = format!("{} {}", error.msg, error.details);
        assert!(
            said.contains(&word),
            "ADD with {what}: {word} is not in {said}"
        );
        assert_ne!(
            error.code, 11,
            "ADD with {what}: trying again does not help"
        );
        cluster.assert_unchanged(&before);
    }
    cluster.delete(&there, &cluster.conf("node1", files(&ours, Some(&theirs))));
    assert_eq!(
        integration_tests::kernel::host().unwrap()["links"],
        serde_json::json!({})
    );
    let listed = cluster
        .plugins
        .call("calico-ipam")
        .args(["journal", "-o", "json"])
        .run();
    assert!(
        listed
            .stdout
            .contains(&theirs.file("client.pem").display().to_string()),
        "{}",
        listed.stdout
    );
    cluster.add(&newcomer, &conf);
    cluster.delete(&newcomer, &conf);
    cluster.assert_nothing_left();
}
