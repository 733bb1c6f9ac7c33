//! Removal of leftovers of pods on the node and in the datastore.

use std::path::Path;

use integration_tests::command::{ip, ip_json};
use integration_tests::installation::{BIN, Container, NET, WITHOUT_CAPABILITIES};
use integration_tests::namespaces::{Host, isolated};
use integration_tests::plugin::Plugins;
use serde_json::{Value, json};

use super::uninstall;

const DATABASE: &str = "/var/lib/calico/calico.db";

/// An installation with an embedded datastore, and two running pods.
struct LocalInstallation {
    container: Container,
    plugins: Plugins,
}

impl LocalInstallation {
    fn new(host: &Host) -> LocalInstallation {
        host.add_uplink().unwrap();
        let node = LocalInstallation {
            container: Container::new(host, "c").unwrap(),
            plugins: Plugins::locate().unwrap(),
        };
        let list = json!({
            "name": "k8s-pod-network", "cniVersion": "1.0.0", "plugins": [Self::plugin(DATABASE)],
        })
        .to_string();
        let outcome = node
            .container
            .run(&[("CNI_NETWORK_CONFIG", &list), ("CNI_TRY_SECONDS", "0")])
            .unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        node.ipam(&["init", "--node", "my-node", "--pool", "10.65.0.0/16"]);
        for name in ["pod1", "pod2"] {
            let netns = host.add_pod(name).unwrap();
            node.add(name, &netns);
        }
        node
    }

    fn plugin(database: &str) -> Value {
        json!({
            "type": "calico", "ipam": { "type": "calico-ipam" }, "datastore_type": "local",
            "datastore_path": database, "nodename": "my-node",
        })
    }

    fn database(&self) -> String {
        self.container.path(&DATABASE[1..]).display().to_string()
    }

    fn ipam(&self, words: &[&str]) -> String {
        let call = self.plugins.call("calico-ipam").args(words.iter().copied());
        let outcome = call.args(["--datastore-path", &self.database()]).run();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        outcome.stdout
    }

    fn add(&self, name: &str, netns: &Path) {
        let mut conf = Self::plugin(&self.database());
        (conf["name"], conf["cniVersion"]) = (json!("k8s-pod-network"), json!("1.0.0"));
        self.plugins
            .verb("calico", "ADD", name, netns, &conf)
            .run()
            .success();
    }

    fn endpoints(&self) -> usize {
        self.ipam(&["export", "-"])
            .matches("/workloadendpoints/")
            .count()
    }

    /// Returns the number of IPAM objects in the datastore.
    fn kept(&self) -> usize {
        let exported = self.ipam(&["export", "-"]);
        exported.matches("/calico/ipam/v2/").count()
    }
}

fn interfaces() -> usize {
    let links = ip_json("link show").unwrap();
    let names = links
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|link| link["ifname"].as_str());
    names.filter(|name| name.starts_with("cali")).count()
}

/// Returns the addresses to which the host has routes.
fn addresses() -> Vec<String> {
    let routes = ip_json("route show").unwrap();
    let destinations = routes
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|route| route["dst"].as_str());
    destinations
        .filter(|destination| destination.starts_with("10.65."))
        .map(str::to_owned)
        .collect()
}

fn routes() -> usize {
    addresses().len()
}

#[test]
fn uninstall_keeps_interfaces_and_addresses_by_default() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        let before = (interfaces(), routes(), node.kept());
        assert_eq!((before.0, before.1), (2, 2));
        let outcome = uninstall(&node.container, &["--yes"]).run();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stdout);
        assert_eq!((interfaces(), routes(), node.kept()), before);
        let (_, left) = outcome.stdout.split_once("left on this node:").unwrap();
        assert_eq!(
            left.matches("its pod is still connected; --tear-down-pods deletes it")
                .count(),
            2,
            "{left}"
        );
        assert!(
            left.contains("addresses and blocks of this node: they remain in the datastore"),
            "{left}"
        );
        assert!(node.container.names(BIN).is_empty() && node.container.names(NET).is_empty());
    });
}

#[test]
fn uninstall_with_options_removes_interfaces_and_keeps_foreign_ones() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        ip("link add cali-theirs type veth peer name theirs").unwrap();
        let before = (interfaces(), routes(), node.kept());
        assert_eq!(node.endpoints(), 2);
        let dry = uninstall(
            &node.container,
            &["--tear-down-pods", "--release-addresses"],
        )
        .run()
        .stdout;
        assert!(
            dry.contains(
                "would release the addresses of 2 containers and all blocks of node my-node"
            ),
            "{dry}"
        );
        assert_eq!((interfaces(), routes(), node.kept()), before);

        let options = ["--yes", "--tear-down-pods", "--release-addresses"];
        let outcome = uninstall(&node.container, &options).run();
        let said = &outcome.stdout;
        assert_eq!(outcome.exit, Some(0), "{said}{}", outcome.stderr);
        assert_eq!((interfaces(), routes()), (1, 0), "{said}");
        assert!(node.kept() < before.2, "{said}");
        assert_eq!(
            node.endpoints(),
            0,
            "an endpoint lists no address that is free"
        );
        assert!(
            said.contains("released the addresses of 2 containers and 1 blocks of node my-node"),
            "{said}"
        );
        assert!(
            said.contains("interface cali-theirs: it is not the interface of one of Calico's pods"),
            "{said}"
        );
        let check = node.ipam(&["show", "--show-blocks"]);
        assert!(!check.contains("/26"), "no block is left: {check}");
        assert!(node.container.names(BIN).is_empty() && node.container.names(NET).is_empty());
    });
}

/// A released address could be assigned to another pod at once. Shows SEC-80.
#[test]
fn release_of_addresses_of_connected_pods_is_refused() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        // All files except the database, which reading changes too.
        let files = || {
            let seen = node.container.fingerprint().into_iter();
            seen.filter(|(path, _)| !path.display().to_string().contains("calico.db"))
                .collect::<Vec<_>>()
        };
        let before = (interfaces(), routes(), node.kept(), files());
        assert!(!addresses().is_empty());
        for options in [
            &["--release-addresses"][..],
            &["--yes", "--release-addresses"],
        ] {
            let outcome = uninstall(&node.container, options).run();
            let said = &outcome.stdout;
            assert_eq!(outcome.exit, Some(1), "{said}");
            let words = "FAILED to release addresses and blocks of this node: pods are connected \
                         with these addresses: cali";
            assert!(
                said.contains(words) && said.contains("add --tear-down-pods\n"),
                "{said}"
            );
            let named = |address: &String| said.contains(&format!(" ({address})"));
            assert!(addresses().iter().all(named), "{said}");
            assert_eq!((interfaces(), routes(), node.kept(), files()), before);
        }
    });
}

/// A node without configuration and interfaces, but with addresses, is worse than an installed one.
#[test]
fn uninstall_without_the_ipam_lock_retires_nothing() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        let lock = node.container.path("var/run/calico/ipam.lock");
        std::fs::create_dir_all(&lock).unwrap();
        let before = (
            interfaces(),
            routes(),
            node.kept(),
            node.container.names(NET),
            node.container.names(BIN),
        );
        let options = ["--yes", "--tear-down-pods", "--release-addresses"];
        let outcome = uninstall(&node.container, &options).run();
        let said = &outcome.stdout;
        assert_eq!(outcome.exit, Some(1), "{said}{}", outcome.stderr);
        assert!(
            said.contains(&format!("cannot open lock file {}: ", lock.display())),
            "{said}"
        );
        assert!(
            said.contains("everything: nothing is changed until the failures above are corrected"),
            "{said}"
        );
        let after = (
            interfaces(),
            routes(),
            node.kept(),
            node.container.names(NET),
            node.container.names(BIN),
        );
        assert_eq!(after, before);

        std::fs::remove_dir(&lock).unwrap();
        let outcome = uninstall(&node.container, &options).run();
        assert_eq!(
            outcome.exit,
            Some(0),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
    });
}

/// The unmodified DaemonSet of `deploy/uninstall` lacks the capability, so the pods keep their
/// network.
#[test]
fn uninstall_without_net_admin_keeps_the_addresses_of_pods() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        let before = (interfaces(), routes(), node.kept());
        let options = ["--yes", "--tear-down-pods", "--release-addresses"];
        let call = uninstall(&node.container, &options);
        let outcome = call.clone().under(WITHOUT_CAPABILITIES).run();
        let said = &outcome.stdout;
        assert_eq!(outcome.exit, Some(1), "{said}{}", outcome.stderr);
        assert_eq!((interfaces(), routes(), node.kept()), before);
        let (steps, left) = said.split_once("left on this node:\n").unwrap();
        assert_eq!(
            steps.matches("FAILED to remove interface cali").count(),
            2,
            "{said}"
        );
        assert!(
            steps.contains("FAILED to release addresses and blocks of this node: "),
            "{said}"
        );
        assert!(steps.contains("which needs CAP_NET_ADMIN"), "{said}");
        assert!(!steps.contains("removed "), "{said}");
        assert_eq!(left.matches("  interface cali").count(), 2, "{said}");
        assert!(
            left.contains("10-calico.conflist.removed: no runtime reads a file of this name"),
            "{said}"
        );
        assert_eq!(node.container.names(NET), ["10-calico.conflist.removed"]);
        assert_eq!(node.container.names(BIN).len(), 4);

        let outcome = call.run();
        assert_eq!(
            outcome.exit,
            Some(0),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
        assert_eq!((interfaces(), routes()), (0, 0));
        assert!(
            outcome
                .stdout
                .contains("released the addresses of 2 containers"),
            "{}",
            outcome.stdout
        );
        assert!(node.container.names(BIN).is_empty() && node.container.names(NET).is_empty());
    });
}

/// The pods of such a node belong to another installation, such as upstream's.
#[test]
fn uninstall_on_a_node_of_another_installation_tears_down_no_pod() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        let before = (interfaces(), routes(), node.kept());
        let options = ["--yes", "--tear-down-pods", "--release-addresses"];
        // Another installation has replaced the configuration.
        let configuration = node.container.path(NET).join("10-calico.conflist");
        let text = std::fs::read_to_string(&configuration).unwrap();
        let mut another: serde_json::Value = serde_json::from_str(&text).unwrap();
        another["plugins"][0]["log_level"] = serde_json::json!("fatal");
        std::fs::write(&configuration, another.to_string()).unwrap();
        let outcome = uninstall(&node.container, &options).run();
        assert_eq!(
            outcome.exit,
            Some(1),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
        assert!(
            outcome
                .stdout
                .contains("this configuration runs Calico's plugins"),
            "{}",
            outcome.stdout
        );
        assert_eq!((interfaces(), routes(), node.kept()), before);

        std::fs::remove_file(node.container.path("var/lib/calico/cni-install-state.json")).unwrap();
        let outcome = uninstall(&node.container, &options).run();
        assert_eq!(
            outcome.exit,
            Some(0),
            "{}{}",
            outcome.stdout,
            outcome.stderr
        );
        assert!(
            outcome
                .stdout
                .contains("everything: no installation is recorded in"),
            "{}",
            outcome.stdout
        );
        assert_eq!((interfaces(), routes(), node.kept()), before);
    });
}

#[test]
fn uninstall_names_remaining_files_in_calicos_directories() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        node.container.file("var/run/calico/ipam.lock", "").unwrap();
        node.container.file("var/lib/calico/theirs", "").unwrap();
        for options in [&[][..], &["--yes"]] {
            let outcome = uninstall(&node.container, options).run();
            let (_, left) = outcome.stdout.split_once("left on this node:\n").unwrap();
            for directory in ["var/lib/calico", "var/run/calico"] {
                for name in node
                    .container
                    .names(directory)
                    .iter()
                    .filter(|name| *name != "cni-install-state.json")
                {
                    let line = format!(
                        "  {}: ",
                        node.container.path(directory).join(name).display()
                    );
                    assert_eq!(left.matches(&line).count(), 1, "{line}: {left}");
                }
            }
            assert!(
                left.contains("calico.db: it is the datastore of this node: "),
                "{left}"
            );
            assert!(!left.contains("cni-install-state.json"), "{left}");
        }
        assert!(
            node.container
                .names("var/lib/calico")
                .contains(&"calico.db".to_owned())
        );
    });
}

/// The programs that release addresses remain until the release succeeds.
#[test]
fn uninstall_with_an_unreachable_datastore_fails_and_can_be_repeated() {
    isolated(|host| {
        let node = LocalInstallation::new(host);
        let (database, away) = (node.database(), node.container.path("away"));
        std::fs::rename(&database, &away).unwrap();
        std::fs::create_dir(&database).unwrap();
        let options = ["--yes", "--tear-down-pods", "--release-addresses"];
        let outcome = uninstall(&node.container, &options).run();
        assert_eq!(outcome.exit, Some(1), "{}", outcome.stdout);
        let words = "FAILED to release addresses and blocks of this node: ";
        assert!(outcome.stdout.contains(words), "{}", outcome.stdout);
        assert!(
            outcome
                .stdout
                .contains("10-calico.conflist.removed: no runtime reads a file of this name"),
            "{}",
            outcome.stdout
        );
        assert_eq!(node.container.names(NET), ["10-calico.conflist.removed"]);
        assert_eq!(node.container.names(BIN).len(), 4);

        std::fs::remove_dir(&database).unwrap();
        std::fs::rename(&away, &database).unwrap();
        let outcome = uninstall(&node.container, &options).run();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stdout);
        assert!(
            outcome
                .stdout
                .contains("released the addresses of 2 containers"),
            "{}",
            outcome.stdout
        );
        assert!(node.container.names(BIN).is_empty() && node.container.names(NET).is_empty());
    });
}
