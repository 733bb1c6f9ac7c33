//! Proxies in the environment of a node, which the plugins ignore.

use crate::installer_doctor::kubernetes_node::{KubernetesNode, on};
use crate::installer_doctor::report::{Examined, assert_good};

#[on(kubernetes_v1)]
fn doctor_names_the_proxies_that_plugins_ignore(node: &mut KubernetesNode<'_>) {
    let runtime = "HTTPS_PROXY=http://me:secret@127.0.0.1:1\0NO_PROXY=.svc\0";
    node.pod
        .container
        .file("proc/4711/comm", "containerd\n")
        .unwrap();
    node.pod
        .container
        .file("proc/4711/environ", runtime)
        .unwrap();
    node.pod.set("https_proxy", "http://127.0.0.1:1");
    // The doctor itself connects directly, too.
    assert_good(node);
    let report = node.doctor();
    let words = report.words("proxies");
    let named = "https_proxy of calico doctor (without NO_PROXY); HTTPS_PROXY of containerd \
                 (NO_PROXY: .svc)";
    assert!(
        words.contains(named) && !words.contains("secret"),
        "{words}"
    );

    node.proxy.go_away();
    let report = node.doctor();
    assert!(
        report.wrong().contains(&"warn proxies".to_owned()),
        "{report:#?}"
    );
    assert!(
        report
            .words("proxies")
            .contains(" does not answer -> let this node reach"),
        "{report:#?}"
    );
}
