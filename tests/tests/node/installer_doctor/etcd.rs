//! A node with its data in an etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use integration_tests::cluster::{Cluster, on};
use integration_tests::installation::{Container, NET};
use integration_tests::namespaces::isolated;
use serde_json::json;

use crate::installer_doctor::NODE;
use crate::installer_doctor::etcd_node::{Certificates, EtcdNode, TLS};
use crate::installer_doctor::report::{Examined, assert_good, assert_reported, doctor};

const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/pool";
const INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
const NODE_KEY: &str = "/calico/resources/v3/projectcalico.org/nodes/node1";

#[on(etcd)]
fn doctor_on_a_good_etcd_node_finds_no_problem_and_changes_nothing(cluster: &mut Cluster<'_>) {
    let certificates = Certificates::new("ours");
    let node = &EtcdNode::with_tls(cluster, &certificates, TLS);
    let before = (
        node.etcd.dump_raw().unwrap(),
        node.etcd.revisions("/").unwrap(),
    );
    assert_good(node);
    let report = node.doctor();
    assert!(report.words("datastore").starts_with(TLS), "{report:#?}");
    assert_eq!(
        report.words("etcd permissions"),
        "all 7 required permissions are granted -> "
    );
    assert!(
        report.words("TLS files").contains("etcd_key_file "),
        "{report:#?}"
    );
    assert!(
        report.words("pools").starts_with("pool 10.65.0.0/16"),
        "{report:#?}"
    );
    assert_eq!(
        (
            node.etcd.dump_raw().unwrap(),
            node.etcd.revisions("/").unwrap()
        ),
        before
    );
}

#[on(etcd)]
fn doctor_reports_each_defect_of_the_cluster_in_etcd(cluster: &mut Cluster<'_>) {
    let certificates = Certificates::new("ours");
    let node = &EtcdNode::with_tls(cluster, &certificates, TLS);
    assert_reported(
        node,
        &["fail pools"],
        ("pools", "none of 1 pools is enabled"),
        || node.put(POOL, |pool| pool["spec"]["disabled"] = json!(true)),
        || node.put(POOL, |_| {}),
    );
    assert_reported(
        node,
        &["fail pools"],
        ("pools", "none of 1 enabled pools selects this node"),
        || {
            node.put(POOL, |pool| {
                pool["spec"]["nodeSelector"] = json!("zone == 'elsewhere'")
            })
        },
        || node.put(POOL, |_| {}),
    );
    // The uplink has no IPv6.
    let found = ["warn MTU", "warn default route"];
    assert_reported(
        node,
        &found,
        ("MTU", "encapsulation uses 70"),
        || {
            node.put(POOL, |pool| {
                (pool["spec"]["cidr"], pool["spec"]["vxlanMode"]) =
                    (json!("fd65::/64"), json!("Always"));
                pool["spec"]["blockSize"] = json!(122);
            });
        },
        || node.put(POOL, |_| {}),
    );
    assert_reported(
        node,
        &["fail cluster information"],
        (
            "cluster information",
            "datastoreReady to false and then to true",
        ),
        || {
            node.put(INFORMATION, |object| {
                object["spec"]["datastoreReady"] = json!(false)
            })
        },
        || node.put(INFORMATION, |_| {}),
    );
    assert_reported(
        node,
        &["fail cluster information"],
        ("cluster information", "calico-ipam init"),
        || node.etcd.delete(INFORMATION).unwrap(),
        || node.put(INFORMATION, |_| {}),
    );
    assert_reported(
        node,
        &["fail node object"],
        ("node object", "calico-ipam init --node node1"),
        || node.etcd.delete(NODE_KEY).unwrap(),
        || node.put(NODE_KEY, |_| {}),
    );
    let claim = "/calico/ipam/v2/host/node1/ipv4/block/10.65.0.0-26";
    assert_reported(
        node,
        &["warn blocks"],
        ("blocks", "whose claim or release is incomplete"),
        || node.etcd.put(claim, br#"{"state":"pending"}"#).unwrap(),
        || node.etcd.delete(claim).unwrap(),
    );
}

const AWAY: [&str; 5] = [
    "fail datastore",
    "skipped blocks",
    "skipped cluster information",
    "skipped permissions",
    "skipped pools",
];

#[on(etcd)]
fn doctor_reports_each_defect_of_the_tls_files(cluster: &mut Cluster<'_>) {
    let certificates = Certificates::new("ours");
    let node = &EtcdNode::with_tls(cluster, &certificates, TLS);
    let file = |name: &str| node.container.path(NET).join("calico-tls").join(name);
    let mode = |mode: u32| {
        fs::set_permissions(file("etcd-key"), fs::Permissions::from_mode(mode)).unwrap()
    };
    assert_reported(
        node,
        &["warn TLS files"],
        ("TLS files", "chmod 600 "),
        || mode(0o644),
        || mode(0o400),
    );
    let found: Vec<&str> = ["fail TLS files"].into_iter().chain(AWAY).collect();
    let (key, away) = (file("etcd-key"), file("away"));
    assert_reported(
        node,
        &found,
        ("TLS files", "to the Secret calico-etcd-secrets"),
        || fs::rename(&key, &away).unwrap(),
        || fs::rename(&away, &key).unwrap(),
    );
    let theirs = Certificates::new("theirs");
    assert_reported(
        node,
        &AWAY,
        ("datastore", "calico-etcd-secrets"),
        || fs::write(file("etcd-ca"), theirs.text("ca.pem")).unwrap(),
        || fs::write(file("etcd-ca"), certificates.text("ca.pem")).unwrap(),
    );
}

#[on(etcd)]
fn doctor_reports_an_unreachable_etcd(cluster: &mut Cluster<'_>) {
    let certificates = Certificates::new("ours");
    let node = &mut EtcdNode::with_tls(cluster, &certificates, TLS);
    node.etcd.stop();
    let report = node.doctor();
    assert_eq!(
        (report.wrong(), report.exit),
        (AWAY.map(str::to_owned).into(), Some(1)),
        "{report:#?}"
    );
    assert!(
        report
            .words("datastore")
            .contains("etcdctl endpoint health"),
        "{report:#?}"
    );
    node.etcd.restart().unwrap();
    assert_good(node);
}

#[on(etcd)]
fn doctor_warns_of_an_unreachable_etcd_member(cluster: &mut Cluster<'_>) {
    let certificates = Certificates::new("ours");
    let node = &EtcdNode::with_tls(
        cluster,
        &certificates,
        &format!("{TLS},https://127.0.0.1:9"),
    );
    let report = node.doctor();
    assert_eq!(
        (report.wrong(), report.exit),
        (vec!["warn datastore".to_owned()], Some(0)),
        "{report:#?}"
    );
    assert!(
        report
            .words("datastore")
            .contains("but https://127.0.0.1:9 does not: "),
        "{report:#?}"
    );
}

#[on(etcd)]
fn doctor_reports_missing_etcd_permissions_and_a_deleted_user(cluster: &mut Cluster<'_>) {
    let login = json!({ "etcd_username": "plugins", "etcd_password": "secret" });
    let node = &EtcdNode::new(cluster, login);
    assert_good(node);
    for words in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "calico"],
        &[
            "role",
            "grant-permission",
            "calico",
            "--prefix=true",
            "read",
            "/calico/",
        ],
        &["user", "add", "plugins:secret"],
        &["user", "grant-role", "plugins", "calico"],
        &["auth", "enable"],
    ] {
        node.etcd.ctl(words).unwrap();
    }
    let report = node.doctor();
    assert_eq!(
        (report.wrong(), report.exit),
        (vec!["fail etcd permissions".to_owned()], Some(1)),
        "{report:#?}"
    );
    let words = "may not write IPAMBlock, write BlockAffinity, write IPAMHandle, write \
                 WorkloadEndpoint -> `etcdctl role";
    assert!(
        report.words("etcd permissions").contains(words),
        "{report:#?}"
    );

    let root = [
        "--user",
        "root:root",
        "role",
        "grant-permission",
        "calico",
        "--prefix=true",
        "readwrite",
    ];
    node.etcd.ctl(&[&root[..], &["/calico/"]].concat()).unwrap();
    assert_good(node);
    node.etcd
        .ctl(&["--user", "root:root", "user", "delete", "plugins"])
        .unwrap();
    let report = node.doctor();
    assert!(
        report
            .wrong()
            .contains(&"fail cluster information".to_owned()),
        "{report:#?}"
    );
    assert!(
        report
            .words("cluster information")
            .contains("authentication failed"),
        "{report:#?}"
    );
}

#[test]
fn doctor_does_not_create_a_missing_embedded_datastore() {
    isolated(|host| {
        host.add_uplink().unwrap();
        let container = Container::new(host, "c").unwrap();
        let plugin = json!({
            "type": "calico", "ipam": { "type": "calico-ipam" }, "datastore_type": "local",
            "nodename": NODE,
        });
        let list = json!({ "name": "net", "cniVersion": "1.0.0", "plugins": [plugin] }).to_string();
        let outcome = container
            .run(&[("CNI_NETWORK_CONFIG", &list), ("CNI_TRY_SECONDS", "0")])
            .unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        let report = doctor(&container.path(""), &[]);
        assert!(
            report.wrong().contains(&"fail datastore".to_owned()),
            "{report:#?}"
        );
        assert!(
            report.words("datastore").contains("calico-ipam init"),
            "{report:#?}"
        );
        assert!(!container.path("var/lib/calico/calico.db").exists());
    });
}
