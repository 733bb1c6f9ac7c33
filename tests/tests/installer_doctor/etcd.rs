//! A node with its data in an etcd.

#[expect(
    unreachable_pub,
    reason = "the datastore's own tests share it as a module"
)]
#[path = "../../../datastore/tests/stores/harness/certificates.rs"]
mod certificates;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use certificates::Certificates;
use integration_tests::content::Content;
use integration_tests::etcd::{self, Etcd};
use integration_tests::installation::{Container, NET, OWN_BIN};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use crate::scene::{Break, Examined, RESULTS, Said, is_good, make_executable};

const TLS: &str = "https://127.0.0.1:2381";
const NODE: &str = "node1";
const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/pool";
const INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
const NODE_KEY: &str = "/calico/resources/v3/projectcalico.org/nodes/node1";

pub(crate) struct Node {
    pub(crate) container: Container,
    pub(crate) etcd: Etcd,
    content: Content,
}

impl Node {
    /// Installs a node with these endpoints and keys. `secrets` are names of TLS files in the
    /// Secret, each with the file to copy.
    fn install(
        host: &Host,
        etcd: Etcd,
        endpoints: &str,
        more: Value,
        secrets: &[(&str, PathBuf)],
    ) -> Node {
        host.add_uplink().unwrap();
        let content = Content::ready().node(NODE).pool("pool", "10.65.0.0/16", 26);
        let node = Node {
            container: Container::new(host, "c").unwrap(),
            etcd,
            content,
        };
        fs::create_dir_all(node.container.path(RESULTS)).unwrap();
        for name in ["portmap", "loopback"] {
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["0.3.1","1.0.0"]}"#;
            let script = format!("#!/bin/sh\ncat >/dev/null\necho '{answer}'\n");
            make_executable(
                &node
                    .container
                    .file(&format!("{OWN_BIN}/{name}"), script)
                    .unwrap(),
                true,
            );
        }
        for (name, from) in secrets {
            node.container
                .file(&format!("calico-secrets/{name}"), fs::read(from).unwrap())
                .unwrap();
            let file = node.container.path(&format!("calico-secrets/{name}"));
            fs::set_permissions(file, fs::Permissions::from_mode(0o400)).unwrap();
        }
        let mut plugin = json!({
            "type": "calico", "ipam": { "type": "calico-ipam" }, "datastore_type": "etcdv3",
            "etcd_endpoints": "__ETCD_ENDPOINTS__", "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
            "etcd_cert_file": "__ETCD_CERT_FILE__", "etcd_key_file": "__ETCD_KEY_FILE__",
            "nodename": NODE, "mtu": 1450,
        });
        plugin
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let list = json!({
            "name": "k8s-pod-network", "cniVersion": "1.0.0",
            "plugins": [plugin, { "type": "portmap" }],
        });
        let list = list.to_string();
        let variables = [
            ("CNI_NETWORK_CONFIG", list.as_str()),
            ("ETCD_ENDPOINTS", endpoints),
            ("CNI_TRY_SECONDS", "0"),
            ("KUBERNETES_NODE_NAME", NODE),
        ];
        let outcome = node.container.run(&variables).unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        node
    }

    fn put(&self, key: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.content.pairs()[key].clone();
        change(&mut object);
        self.etcd.put(key, object.to_string().as_bytes()).unwrap();
    }
}

impl Examined for Node {
    fn doctor(&self) -> Said {
        let root = self.container.path("").display().to_string();
        let call = Plugins::locate().unwrap().call("calico").args([
            "doctor",
            "-o",
            "json",
            "--root",
            root.as_str(),
        ]);
        Said::of(&call.run().unwrap())
    }
}

/// Runs a test with an etcd that serves TLS.
fn on_secured_etcd(endpoints: &str, test: impl FnOnce(&mut Node, &Certificates) + Send) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    let certificates = Certificates::new("ours");
    let mut flags = certificates.etcd_flags();
    flags.push(format!("--listen-client-urls={},{TLS}", etcd::ENDPOINT));
    isolated(|host| {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let etcd = Etcd::start_with(host, &flags).unwrap();
        let secrets = [
            ("etcd-ca", "ca.pem"),
            ("etcd-cert", "client.pem"),
            ("etcd-key", "client-key.pem"),
        ];
        let secrets = secrets.map(|(name, file)| (name, certificates.file(file)));
        let mut node = Node::install(host, etcd, endpoints, json!({}), &secrets);
        node.etcd.load(node.content.pairs()).unwrap();
        test(&mut node, &certificates);
    });
}

/// Runs a test with one good node in an etcd without TLS.
pub(crate) fn on_etcd(more: Value, test: impl FnOnce(&Host, &mut Node) + Send) {
    if !Etcd::installed() {
        return skipped(etcd::REQUIRES);
    }
    isolated(|host| {
        let etcd = Etcd::start(host).unwrap();
        let mut node = Node::install(host, etcd, etcd::ENDPOINT, more, &[]);
        node.etcd.load(node.content.pairs()).unwrap();
        test(host, &mut node);
    });
}

#[test]
fn doctor_on_a_good_etcd_node_finds_no_problem_and_changes_nothing() {
    on_secured_etcd(TLS, |node, _| {
        let before = (
            node.etcd.dump_raw().unwrap(),
            node.etcd.revisions("/").unwrap(),
        );
        is_good(node);
        let said = node.doctor();
        assert!(said.words("datastore").starts_with(TLS), "{said:#?}");
        assert_eq!(
            said.words("etcd permissions"),
            "all 7 required permissions are granted -> "
        );
        assert!(
            said.words("TLS files").contains("etcd_key_file "),
            "{said:#?}"
        );
        assert!(
            said.words("pools").starts_with("pool 10.65.0.0/16"),
            "{said:#?}"
        );
        assert_eq!(
            (
                node.etcd.dump_raw().unwrap(),
                node.etcd.revisions("/").unwrap()
            ),
            before
        );
    });
}

#[test]
fn doctor_reports_defects_of_pools_in_etcd() {
    on_secured_etcd(TLS, |node, _| {
        let node = &*node;
        Break {
            found: &["fail pools"],
            words: ("pools", "none of 1 pools is enabled"),
        }
        .and_mend(
            node,
            || node.put(POOL, |pool| pool["spec"]["disabled"] = json!(true)),
            || node.put(POOL, |_| {}),
        );
        Break {
            found: &["fail pools"],
            words: ("pools", "none of 1 enabled pools selects this node"),
        }
        .and_mend(
            node,
            || {
                node.put(POOL, |pool| {
                    pool["spec"]["nodeSelector"] = json!("zone == 'elsewhere'")
                })
            },
            || node.put(POOL, |_| {}),
        );
        // The uplink has no IPv6.
        let found = ["warn MTU", "warn default route"];
        Break {
            found: &found,
            words: ("MTU", "encapsulation uses 70"),
        }
        .and_mend(
            node,
            || {
                node.put(POOL, |pool| {
                    (pool["spec"]["cidr"], pool["spec"]["vxlanMode"]) =
                        (json!("fd65::/64"), json!("Always"));
                    pool["spec"]["blockSize"] = json!(122);
                });
            },
            || node.put(POOL, |_| {}),
        );
    });
}

#[test]
fn doctor_reports_a_datastore_that_is_not_ready_and_a_missing_node() {
    on_secured_etcd(TLS, |node, _| {
        let node = &*node;
        Break {
            found: &["fail cluster information"],
            words: (
                "cluster information",
                "datastoreReady to false and then to true",
            ),
        }
        .and_mend(
            node,
            || {
                node.put(INFORMATION, |object| {
                    object["spec"]["datastoreReady"] = json!(false)
                })
            },
            || node.put(INFORMATION, |_| {}),
        );
        Break {
            found: &["fail cluster information"],
            words: ("cluster information", "calico-ipam init"),
        }
        .and_mend(
            node,
            || node.etcd.delete(INFORMATION).unwrap(),
            || node.put(INFORMATION, |_| {}),
        );
        Break {
            found: &["fail node object"],
            words: ("node object", "calico-ipam init --node node1"),
        }
        .and_mend(
            node,
            || node.etcd.delete(NODE_KEY).unwrap(),
            || node.put(NODE_KEY, |_| {}),
        );
        let claim = "/calico/ipam/v2/host/node1/ipv4/block/10.65.0.0-26";
        Break {
            found: &["warn blocks"],
            words: ("blocks", "whose claim or release is incomplete"),
        }
        .and_mend(
            node,
            || node.etcd.put(claim, br#"{"state":"pending"}"#).unwrap(),
            || node.etcd.delete(claim).unwrap(),
        );
    });
}

const AWAY: [&str; 5] = [
    "fail datastore",
    "skipped blocks",
    "skipped cluster information",
    "skipped permissions",
    "skipped pools",
];

#[test]
fn doctor_reports_each_defect_of_the_tls_files() {
    on_secured_etcd(TLS, |node, certificates| {
        let node = &*node;
        let file = |name: &str| node.container.path(NET).join("calico-tls").join(name);
        let mode = |mode: u32| {
            fs::set_permissions(file("etcd-key"), fs::Permissions::from_mode(mode)).unwrap()
        };
        Break {
            found: &["warn TLS files"],
            words: ("TLS files", "chmod 600 "),
        }
        .and_mend(node, || mode(0o644), || mode(0o400));
        let found: Vec<&str> = ["fail TLS files"].into_iter().chain(AWAY).collect();
        let (key, away) = (file("etcd-key"), file("away"));
        Break {
            found: &found,
            words: ("TLS files", "to the Secret calico-etcd-secrets"),
        }
        .and_mend(
            node,
            || fs::rename(&key, &away).unwrap(),
            || fs::rename(&away, &key).unwrap(),
        );
        let theirs = Certificates::new("theirs");
        Break {
            found: &AWAY,
            words: ("datastore", "calico-etcd-secrets"),
        }
        .and_mend(
            node,
            || fs::write(file("etcd-ca"), theirs.text("ca.pem")).unwrap(),
            || fs::write(file("etcd-ca"), certificates.text("ca.pem")).unwrap(),
        );
    });
}

#[test]
fn doctor_reports_an_unreachable_etcd() {
    on_secured_etcd(TLS, |node, _| {
        node.etcd.stop();
        let said = node.doctor();
        assert_eq!(
            (said.wrong(), said.exit),
            (AWAY.map(str::to_owned).into(), Some(1)),
            "{said:#?}"
        );
        assert!(
            said.words("datastore").contains("etcdctl endpoint health"),
            "{said:#?}"
        );
        node.etcd.restart().unwrap();
        is_good(node);
    });
}

#[test]
fn doctor_warns_of_an_unreachable_etcd_member() {
    on_secured_etcd(&format!("{TLS},https://127.0.0.1:9"), |node, _| {
        let said = node.doctor();
        assert_eq!(
            (said.wrong(), said.exit),
            (vec!["warn datastore".to_owned()], Some(0)),
            "{said:#?}"
        );
        assert!(
            said.words("datastore")
                .contains("but https://127.0.0.1:9 does not: "),
            "{said:#?}"
        );
    });
}

#[test]
fn doctor_reports_missing_etcd_permissions_and_a_deleted_user() {
    let login = json!({ "etcd_username": "plugins", "etcd_password": "secret" });
    on_etcd(login, |_, node| {
        is_good(node);
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
        let said = node.doctor();
        assert_eq!(
            (said.wrong(), said.exit),
            (vec!["fail etcd permissions".to_owned()], Some(1)),
            "{said:#?}"
        );
        let words = "may not write IPAMBlock, write BlockAffinity, write IPAMHandle, write \
                     WorkloadEndpoint -> `etcdctl role";
        assert!(said.words("etcd permissions").contains(words), "{said:#?}");

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
        is_good(node);
        node.etcd
            .ctl(&["--user", "root:root", "user", "delete", "plugins"])
            .unwrap();
        let said = node.doctor();
        assert!(
            said.wrong()
                .contains(&"fail cluster information".to_owned()),
            "{said:#?}"
        );
        assert!(
            said.words("cluster information")
                .contains("authentication failed"),
            "{said:#?}"
        );
    });
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
        let root = container.path("").display().to_string();
        let call = Plugins::locate().unwrap().call("calico").args([
            "doctor",
            "-o",
            "json",
            "--root",
            root.as_str(),
        ]);
        let said = Said::of(&call.run().unwrap());
        assert!(
            said.wrong().contains(&"fail datastore".to_owned()),
            "{said:#?}"
        );
        assert!(
            said.words("datastore").contains("calico-ipam init"),
            "{said:#?}"
        );
        assert!(!container.path("var/lib/calico/calico.db").exists());
    });
}
