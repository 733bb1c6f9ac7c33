//! `/var/lib/calico/mtu`, which the installer writes if the plugin needs it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use integration_tests::command::ip;
use integration_tests::installation::Container;
use integration_tests::namespaces::{Host, isolated};
use integration_tests::plugin::Plugins;
use serde_json::{Value, json};

use super::succeeded;

/// A node with the embedded datastore, on which the installer may write the file.
struct MtuNode {
    container: Container,
}

impl MtuNode {
    fn new(host: &Host) -> MtuNode {
        MtuNode {
            container: Container::new(host, "c").unwrap(),
        }
    }

    /// Installs, with `more` in the configuration. Returns the log.
    fn install(&self, more: Value) -> String {
        let mut plugin = json!({
            "type": "calico", "ipam": { "type": "calico-ipam" }, "datastore_type": "local",
        });
        plugin
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let list = json!({ "name": "net", "cniVersion": "1.0.0", "plugins": [plugin] }).to_string();
        let outcome = self
            .container
            .run(&[("CNI_NETWORK_CONFIG", &list), ("CNI_TRY_SECONDS", "0")])
            .unwrap();
        succeeded(&outcome);
        outcome.stderr
    }

    fn file(&self) -> PathBuf {
        self.container.path("var/lib/calico/mtu")
    }

    fn written(&self) -> Option<String> {
        fs::read_to_string(self.file()).ok()
    }

    fn encapsulate(&self) {
        let pool = json!({
            "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": { "name": "p" },
            "spec": { "cidr": "10.66.0.0/16", "vxlanMode": "Always" },
        });
        let file = self.container.file("pool.json", pool.to_string()).unwrap();
        let database = self.container.path("var/lib/calico/calico.db");
        let words = [
            "apply",
            "-f",
            file.to_str().unwrap(),
            "--datastore-path",
            database.to_str().unwrap(),
        ];
        let outcome = Plugins::locate()
            .unwrap()
            .call("calico-ipam")
            .args(words)
            .run();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
    }

    fn uninstall(&self) -> String {
        let root = self.container.path("").display().to_string();
        let call = Plugins::locate().unwrap().call("calico").args([
            "uninstall",
            "--yes",
            "--root",
            root.as_str(),
        ]);
        let outcome = call.run();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stdout);
        outcome.stdout
    }
}

#[test]
fn mtu_file_has_the_uplink_mtu_minus_the_encapsulation() {
    isolated(|host| {
        host.add_uplink().unwrap();
        let node = MtuNode::new(host);
        // The documentation creates the pool after the DaemonSet.
        let log = node.install(json!({}));
        assert_eq!(node.written(), None);
        assert!(
            log.contains("/var/lib/calico/mtu is not written: there is no enabled IPPool yet"),
            "{log}"
        );
        assert!(
            !log.contains("the agent tries again"),
            "outside of a pod there is none: {log}"
        );
        assert!(
            !node.container.path("var/lib/calico/calico.db").exists(),
            "to look for pools is not to make a datastore"
        );
        node.encapsulate();
        let log = node.install(json!({}));
        assert_eq!(node.written().as_deref(), Some("1450"));
        assert!(
            log.contains("wrote /var/lib/calico/mtu: the MTU of pods is 1450"),
            "{log}"
        );
        ip("link set uplink0 mtu 1400").unwrap();
        node.install(json!({ "mtu": 1400, "require_mtu_file": true }));
        assert_eq!(node.written().as_deref(), Some("1350"));
        let inode = || fs::metadata(node.file()).unwrap().ino();
        let before = inode();
        node.install(json!({ "mtu": 1400, "require_mtu_file": true }));
        assert_eq!(inode(), before, "what is right is not written again");
        node.uninstall();
        assert_eq!(node.written(), None);
    });
}

#[test]
fn mtu_file_of_felix_is_kept() {
    isolated(|host| {
        host.add_uplink().unwrap();
        let node = MtuNode::new(host);
        node.encapsulate();
        node.container.file("var/lib/calico/mtu", "1380").unwrap();
        node.install(json!({}));
        assert_eq!(node.written().as_deref(), Some("1380"));
        fs::remove_file(node.file()).unwrap();
        node.install(json!({}));
        assert_eq!(node.written().as_deref(), Some("1450"));
        // Felix has replaced the file since then.
        fs::write(node.file(), "1380").unwrap();
        node.install(json!({}));
        assert_eq!(node.written().as_deref(), Some("1380"));
        let said = node.uninstall();
        assert_eq!(node.written().as_deref(), Some("1380"), "{said}");
        assert!(
            said.contains("var/lib/calico/mtu: the file was changed after the installation"),
            "{said}"
        );
    });
}

#[test]
fn mtu_file_is_not_written_if_unneeded_or_unknown() {
    isolated(|host| {
        let node = MtuNode::new(host);
        node.encapsulate();
        let log = node.install(json!({}));
        assert!(
            log.contains(
                "/var/lib/calico/mtu is not written: no interface has a default route; set CNI_MTU"
            ),
            "{log}"
        );
        let etcd = json!({ "datastore_type": "etcdv3", "etcd_endpoints": "http://127.0.0.1:9" });
        let log = node.install(etcd.clone());
        assert!(
            log.contains("is not written: no interface has a default route"),
            "no pool is asked for: {log}"
        );
        host.add_uplink().unwrap();
        node.install(json!({ "mtu": 1400 }));
        let log = node.install(etcd);
        assert!(
            log.contains(
                "/var/lib/calico/mtu is not written: IPPools: datastore http://127.0.0.1:9"
            ),
            "{log}"
        );
        assert_eq!(node.written(), None);
    });
}
