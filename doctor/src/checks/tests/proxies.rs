//! Tests of the finding about proxies.

use super::*;

fn set_proxies(snapshot: &mut NodeSnapshot) {
    let of_runtime = ProxySettings {
        process: "containerd",
        variables: vec!["HTTPS_PROXY", "HTTP_PROXY"],
        excluded: ".svc,10.0.0.0/8".to_owned(),
    };
    let own = ProxySettings {
        process: "calico doctor",
        variables: vec!["https_proxy"],
        excluded: String::new(),
    };
    snapshot.proxies = vec![own, of_runtime];
}

const IGNORED: &str = "plugins and agent connect directly, and ignore https_proxy of calico doctor \
                       (without NO_PROXY); HTTPS_PROXY, HTTP_PROXY of containerd (NO_PROXY: \
                       .svc,10.0.0.0/8)";

#[test]
fn proxy_of_a_node_that_reaches_its_servers_is_named() {
    let mut snapshot = good();
    assert!(
        run_all(&snapshot)
            .iter()
            .all(|finding| finding.name != "proxies")
    );
    set_proxies(&mut snapshot);
    let findings = run_all(&snapshot);
    let finding = findings
        .iter()
        .find(|finding| finding.name == "proxies")
        .unwrap();
    assert_eq!(
        (finding.state, finding.observation.as_str()),
        (Severity::Ok, IGNORED)
    );
}

#[test]
fn proxy_of_a_node_that_does_not_reach_a_server_is_a_warning() {
    let about_proxies = |change: fn(&mut NodeSnapshot)| {
        let found = wrong(|snapshot| {
            set_proxies(snapshot);
            change(snapshot);
        });
        found
            .into_iter()
            .filter(|text| text.contains(" proxies: "))
            .collect::<Vec<_>>()
    };
    let silent = format!("warn proxies: {IGNORED}; https://10.96.0.1:443 does not answer");
    assert_eq!(
        about_proxies(|snapshot| cluster(snapshot).reached = Err("refused".into())),
        std::slice::from_ref(&silent)
    );
    let beside_etcd =
        about_proxies(|snapshot| api(on_etcd(snapshot)).reached = Err("refused".into()));
    assert_eq!(beside_etcd, [silent]);
    let unknown = format!("skipped proxies: {IGNORED}; no readable configuration names a server");
    assert_eq!(about_proxies(|snapshot| snapshot.cluster = None), [unknown]);
}
