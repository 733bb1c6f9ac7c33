//! A node with one defect at a time.

use std::fs;
use std::path::Path;

use integration_tests::command::ip;
use integration_tests::installation::BIN;
use integration_tests::kubernetes::{Permission, Role};
use integration_tests::migration::migrate;
use serde_json::json;

use crate::installer_doctor::NODE;
use crate::installer_doctor::files::make_executable;
use crate::installer_doctor::kubernetes_node::{KubernetesNode, on};
use crate::installer_doctor::report::{Examined, assert_good, assert_reported};

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap();
}

#[on(kubernetes_v1)]
fn doctor_finds_no_problem_on_a_good_node_in_both_formats(node: &mut KubernetesNode<'_>) {
    assert_good(node);
    let report = node.doctor();
    assert!(
        report
            .words("token")
            .contains("system:serviceaccount:kube-system:calico-cni-plugin is valid for 2")
    );
    assert!(report.words("program calico").contains("up to 1.1.0"));
    assert!(report.words("pools").starts_with("pool 10.65.0.0/16"));
    let text = node.pod.calico(&["doctor"]).run();
    assert_eq!(text.exit, Some(0));
    assert!(
        text.stdout.starts_with("ok       configuration"),
        "{}",
        text.stdout
    );
    assert!(
        text.stdout
            .ends_with(" ok, 0 warnings, 0 failures, 0 skipped\n"),
        "{}",
        text.stdout
    );
    let token = node.pod.token().unwrap();
    let (_, secret) = token.rsplit_once('.').unwrap();
    assert!(!text.stdout.contains(secret) && !text.stderr.contains(secret));
    assert_eq!(
        node.pod.calico(&["doctor", "-o", "xml"]).run().exit,
        Some(2)
    );
}

#[on(kubernetes_v1)]
fn doctor_reports_each_defect_of_programs_and_files(node: &mut KubernetesNode<'_>) {
    let container = &node.pod.container;
    let bin = container.path(BIN);
    let (portmap, loopback, away) = (bin.join("portmap"), bin.join("loopback"), bin.join("away"));
    assert_reported(
        node,
        &["fail program portmap"],
        ("program portmap", "run the installer again"),
        || rename(&portmap, &away),
        || rename(&away, &portmap),
    );
    assert_reported(
        node,
        &["fail program loopback"],
        ("program loopback", "containerd needs it"),
        || rename(&loopback, &away),
        || rename(&away, &loopback),
    );
    assert_reported(
        node,
        &["fail program portmap"],
        ("program portmap", "chmod 755"),
        || make_executable(&portmap, false),
        || make_executable(&portmap, true),
    );
    let nodename = container.path("var/lib/calico/nodename");
    assert_reported(
        node,
        &["fail nodename"],
        ("nodename", "has node2"),
        || fs::write(&nodename, "node2").unwrap(),
        || fs::write(&nodename, NODE).unwrap(),
    );
    let journal = container.path("var/lib/calico/cni-journal");
    let defer_del = || {
        fs::create_dir_all(&journal).unwrap();
        fs::write(
            journal.join("00000000-0000-5000-8000-000000000000.json"),
            "{}",
        )
        .unwrap();
    };
    assert_reported(
        node,
        &["warn journal"],
        ("journal", "1 deferred DELs"),
        defer_del,
        || fs::remove_dir_all(&journal).unwrap(),
    );
}

/// The installer's default names v1, which a migration leaves locked.
#[on(kubernetes_v1)]
fn doctor_follows_a_migration_unless_v1_is_configured(node: &mut KubernetesNode<'_>) {
    migrate(node.api);
    let report = node.doctor();
    assert_eq!(
        (report.wrong(), report.exit),
        (vec!["fail cluster information".to_owned()], Some(1)),
        "{report:#?}"
    );
    let words = report.words("cluster information");
    assert!(
        words.contains("moved to projectcalico.org/v3") && words.contains("set calico_api_group"),
        "{words}"
    );

    node.pod.set("CALICO_API_GROUP", "");
    let outcome = node.pod.calico(&["install"]).run();
    assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    assert_good(node);
}

#[on(kubernetes_v1)]
fn doctor_reports_wrong_mtu_and_kernel_settings(node: &mut KubernetesNode<'_>) {
    let mtu = |mtu: u32| ip(&format!("link set uplink0 mtu {mtu}")).unwrap();
    assert_reported(
        node,
        &["warn MTU"],
        ("MTU", "set veth_mtu (CNI_MTU) to 1400"),
        || mtu(1400),
        || mtu(1500),
    );
    let forward = |value: &str| fs::write("/proc/sys/net/ipv4/ip_forward", value).unwrap();
    let words = ("kernel settings", "sysctl -w net.ipv4.ip_forward=1");
    assert_reported(
        node,
        &["fail kernel settings"],
        words,
        || forward("0"),
        || forward("1"),
    );
}

#[on(kubernetes_v1)]
fn doctor_reports_each_defect_of_the_cluster(node: &mut KubernetesNode<'_>) {
    let found = [
        "fail datastore",
        "skipped blocks",
        "skipped cluster information",
        "skipped permissions",
        "skipped pools",
    ];
    assert_reported(
        node,
        &found,
        ("datastore", "kubernetes-services-endpoint"),
        || node.proxy.go_away(),
        || node.proxy.arm(None),
    );
    let ready = |is: bool| {
        node.patch(
            "clusterinformations/default",
            &json!({ "spec": { "datastoreReady": is } }),
        )
    };
    let words = (
        "cluster information",
        "sets spec.datastoreReady to false and then to true",
    );
    assert_reported(
        node,
        &["fail cluster information"],
        words,
        || ready(false),
        || ready(true),
    );
    let disabled = |is: bool| node.patch("ippools/pool", &json!({ "spec": { "disabled": is } }));
    assert_reported(
        node,
        &["fail pools"],
        ("pools", "none of 1 pools is enabled"),
        || disabled(true),
        || disabled(false),
    );
    let vxlan = |mode: &str| node.patch("ippools/pool", &json!({ "spec": { "vxlanMode": mode } }));
    assert_reported(
        node,
        &["warn MTU"],
        ("MTU", "encapsulation uses 50"),
        || vxlan("Always"),
        || vxlan("Never"),
    );
    let admin = node.api.admin();
    assert_reported(
        node,
        &["fail node object"],
        ("node object", "has no Node node1"),
        || {
            drop(
                admin
                    .delete(&format!("/api/v1/nodes/{NODE}"))
                    .unwrap()
                    .success(),
            )
        },
        || admin.node(NODE).unwrap(),
    );
}

#[on(kubernetes_v1)]
fn doctor_reports_missing_permissions(node: &mut KubernetesNode<'_>) {
    let (api, ours) = (node.api, Role::ours().unwrap());
    let without = |resource: &str, verb: &str| {
        let lost = |p: &&Permission| {
            p.resource == resource && p.verb == verb && p.group != "projectcalico.org"
        };
        ours.without(ours.0.iter().find(lost).unwrap())
    };
    let grant = |role: &Role| api.grant(&node.plugins, role).unwrap();
    let words = "may not update ipamblocks.crd.projectcalico.org -> kubectl apply -f deploy/rbac/";
    let role = without("ipamblocks", "update");
    assert_reported(
        node,
        &["fail permissions"],
        ("permissions", words),
        || grant(&role),
        || grant(&ours),
    );
    let role = without("virtualmachines", "get");
    assert_reported(
        node,
        &["warn permissions"],
        ("permissions", "if there are virtual machines"),
        || grant(&role),
        || grant(&ours),
    );
}
