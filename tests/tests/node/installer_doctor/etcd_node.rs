//! [`EtcdNode`]: an installed node of a cluster with its data in an etcd.

#[expect(
    unreachable_pub,
    reason = "the datastore's own tests share it as a module"
)]
#[path = "../../../../datastore/tests/stores/harness/certificates.rs"]
mod certificates;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

pub(crate) use certificates::Certificates;
use integration_tests::cluster::Cluster;
use integration_tests::content::Content;
use integration_tests::etcd::{self, Etcd};
use integration_tests::installation::Container;
use integration_tests::namespaces::Host;
use integration_tests::plugin::Plugins;
use serde_json::{Value, json};

use crate::installer_doctor::NODE;
use crate::installer_doctor::files;
use crate::installer_doctor::report::{Examined, Report, doctor};

pub(crate) const TLS: &str = "https://127.0.0.1:2381";

pub(crate) struct EtcdNode<'c> {
    pub(crate) container: Container,
    pub(crate) etcd: &'c mut Etcd,
    content: Content,
}

impl<'c> EtcdNode<'c> {
    /// Installs a node on which doctor finds no problem, with `more` in the plugin's configuration.
    pub(crate) fn new(cluster: &'c mut Cluster<'_>, more: Value) -> EtcdNode<'c> {
        Self::install(cluster, etcd::ENDPOINT, more, &[])
    }

    /// Gives etcd a TLS endpoint, and installs a node with these endpoints.
    pub(crate) fn with_tls(
        cluster: &'c mut Cluster<'_>,
        certificates: &Certificates,
        endpoints: &str,
    ) -> EtcdNode<'c> {
        let mut flags = certificates.etcd_flags();
        flags.push(format!("--listen-client-urls={},{TLS}", etcd::ENDPOINT));
        let secrets = [
            ("etcd-ca", "ca.pem"),
            ("etcd-cert", "client.pem"),
            ("etcd-key", "client-key.pem"),
        ];
        let secrets = secrets.map(|(name, file)| (name, certificates.file(file)));
        cluster.etcd().restart_with(&flags).unwrap();
        Self::install(cluster, endpoints, json!({}), &secrets)
    }

    /// Installs a node. `secrets` are names of TLS files in the Secret, each with the file to copy.
    fn install(
        cluster: &'c mut Cluster<'_>,
        endpoints: &str,
        more: Value,
        secrets: &[(&str, PathBuf)],
    ) -> EtcdNode<'c> {
        let container = Container::new(cluster.host, "c").unwrap();
        files::prepare(&container);
        for (name, from) in secrets {
            let file = format!("calico-secrets/{name}");
            let file = container.file(&file, fs::read(from).unwrap()).unwrap();
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
        let outcome = container.run(&variables).unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        let content = Content::ready().node(NODE).pool("pool", "10.65.0.0/16", 26);
        cluster.load(&content);
        EtcdNode {
            container,
            etcd: cluster.etcd(),
            content,
        }
    }

    /// Writes an object of the content, changed.
    pub(crate) fn put(&self, key: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.content.pairs()[key].clone();
        change(&mut object);
        self.etcd.put(key, object.to_string().as_bytes()).unwrap();
    }
}

impl Examined for EtcdNode<'_> {
    fn doctor(&self) -> Report {
        doctor(&self.container.path(""), &[])
    }
}

/// Connects a container of this name, which is also the ID. Returns the result of the ADD.
pub(crate) fn add(host: &Host, name: &str) -> Value {
    let conf = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "nodename": NODE,
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
        "datastore_type": "etcdv3",
        "etcd_endpoints": etcd::ENDPOINT,
    });
    let netns = host.add_pod(name).unwrap();
    Plugins::locate()
        .unwrap()
        .verb("calico", "ADD", name, &netns, &conf)
        .run()
        .success()
}

/// Returns the first address in the result of an ADD.
pub(crate) fn first_address(result: &Value) -> &str {
    let address = result["ips"][0]["address"].as_str().unwrap();
    address.split('/').next().unwrap()
}
