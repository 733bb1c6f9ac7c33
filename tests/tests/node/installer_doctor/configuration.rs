//! The configuration that a runtime selects.

use std::fs;

use integration_tests::installation::{BIN, NET};

use crate::installer_doctor::files::make_executable;
use crate::installer_doctor::kubernetes_node::{KubernetesNode, on};
use crate::installer_doctor::report::{Examined, assert_reported};

#[on(kubernetes_v1)]
fn doctor_reports_each_defect_of_the_configuration(node: &mut KubernetesNode<'_>) {
    let net = node.pod.container.path(NET);
    let without_ours = [
        "fail configuration",
        "skipped MTU",
        "skipped datastore",
        "skipped nodename",
    ];
    let other = net.join("05-other.conflist");
    let list = r#"{"name":"other","cniVersion":"0.3.1","plugins":[{"type":"portmap"}]}"#;
    let found: Vec<&str> = without_ours
        .into_iter()
        .chain(["warn other configurations"])
        .collect();
    assert_reported(
        node,
        &found,
        ("configuration", "sorts first and is not Calico's"),
        || fs::write(&other, list).unwrap(),
        || fs::remove_file(&other).unwrap(),
    );

    let conf = net.join("10-calico.conflist");
    let text = fs::read_to_string(&conf).unwrap();
    let write = |text: &str| fs::write(&conf, text).unwrap();
    assert_reported(
        node,
        &without_ours,
        ("configuration", "is not valid JSON"),
        || write(&text[..100]),
        || write(&text),
    );
    let marked = text.replace("\"log_level\": \"info\"", "\"log_level\": \"__NOBODY__\"");
    assert_ne!(marked, text);
    assert_reported(
        node,
        &["fail placeholders"],
        ("placeholders", "__NOBODY__"),
        || write(&marked),
        || write(&text),
    );
    // `CNI_MTU=99999` is valid JSON but not a valid MTU.
    let refused = text.replace("\"mtu\": 1500", "\"mtu\": 99999");
    assert_ne!(refused, text);
    assert_reported(
        node,
        &without_ours,
        ("configuration", "$.mtu"),
        || write(&refused),
        || write(&text),
    );
    let appended = net.join("k8s-pod-network");
    let append = || {
        fs::create_dir(&appended).unwrap();
        fs::write(appended.join("10-more.conf"), "{}").unwrap();
    };
    assert_reported(
        node,
        &["warn appended plugins"],
        ("appended plugins", "10-more.conf"),
        append,
        || fs::remove_dir_all(&appended).unwrap(),
    );
}

/// doctor examines Calico's configuration too, and does not advise removing Multus.
#[on(kubernetes_v1)]
fn doctor_examines_calicos_configuration_behind_multus(node: &mut KubernetesNode<'_>) {
    let (net, bin) = (node.pod.container.path(NET), node.pod.container.path(BIN));
    let (file, shim) = (net.join("00-multus.conf"), bin.join("multus-shim"));
    fs::copy(bin.join("portmap"), &shim).unwrap();
    make_executable(&shim, true);
    let write = |calls: &str| {
        let conf = r#"{"name":"multus","cniVersion":"0.3.1","type":"multus-shim","clusterNetwork":"CALLS"}"#;
        fs::write(&file, conf.replace("CALLS", calls)).unwrap();
    };
    let words = (
        "configuration",
        "delegates to the network of 10-calico.conflist",
    );
    assert_reported(
        node,
        &["warn configuration"],
        words,
        || write("another"),
        || write("/host/etc/cni/net.d/10-calico.conflist"),
    );
    let named = [
        "configuration",
        "program multus-shim",
        "program calico",
        "program calico-ipam",
        "token",
        "pools",
    ];
    let report = node.doctor();
    assert!(
        named.iter().all(|name| report.checks.contains_key(*name)),
        "{report:#?}"
    );
    fs::remove_file(&file).unwrap();
}
