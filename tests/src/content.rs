//! Datastore content and network configurations for the suites that do not use recordings.

use std::collections::BTreeMap;

use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::golden::marks::LOADED_TIME;
use crate::store::Store;

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";

/// Network name of the suites.
pub const NETWORK: &str = "k8s-pod-network";

/// Content of a datastore before a test.
#[derive(Debug, Clone, Default)]
pub struct Content {
    pairs: BTreeMap<String, Value>,
}

impl Content {
    /// Returns a ready cluster without pools and nodes.
    pub fn ready() -> Content {
        let mut content = Content {
            pairs: BTreeMap::new(),
        };
        let spec =
            json!({ "clusterGUID": "00000000000000000000000000000000", "datastoreReady": true });
        content.object("ClusterInformation", "clusterinformations", "default", spec);
        content
    }

    /// Adds a node.
    #[must_use]
    pub fn node(mut self, name: &str) -> Content {
        let spec = json!({ "orchRefs": [{ "nodeName": name, "orchestrator": "k8s" }] });
        self.object("Node", "nodes", name, spec);
        self
    }

    /// Adds a pool that every node may use.
    #[must_use]
    pub fn pool(mut self, name: &str, cidr: &str, block_size: u8) -> Content {
        let spec = json!({
            "cidr": cidr, "blockSize": block_size, "nodeSelector": "all()",
            "assignmentMode": "Automatic",
            "allowedUses": ["Workload", "Tunnel"], "ipipMode": "Never", "vxlanMode": "Never",
            "natOutgoing": true,
        });
        self.object("IPPool", "ippools", name, spec);
        self
    }

    /// Restricts a pool to the pods of some namespaces.
    #[must_use]
    pub fn of_namespaces(mut self, pool: &str, selector: &str) -> Content {
        let pool = self.pairs.get_mut(&format!("{RESOURCES}ippools/{pool}"));
        pool.expect("a pool of this content")["spec"]["namespaceSelector"] = json!(selector);
        self
    }

    /// Returns a cluster with the node `node1`, an IPv4 pool and an IPv6 pool.
    pub fn dual_stack() -> Content {
        Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/16", 26)
            .pool("pool6", "fd00:65::/64", 122)
    }

    /// Returns the content without nodes, as custom resources of a group, keyed by
    /// `<plural>/<name>`.
    pub fn objects(&self, group: ApiGroup) -> BTreeMap<String, Value> {
        let object = |(key, object): (&String, &Value)| {
            let name = key
                .strip_prefix(RESOURCES)
                .filter(|name| !name.starts_with("nodes/"))?;
            let mut object = object.clone();
            object["apiVersion"] = json!(group.api_version());
            Some((name.to_owned(), object))
        };
        self.pairs.iter().filter_map(object).collect()
    }

    /// Returns the names of the nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.pairs
            .keys()
            .filter_map(|key| key.strip_prefix(RESOURCES)?.strip_prefix("nodes/"))
    }

    /// Returns the content as pairs of etcd.
    pub fn pairs(&self) -> &BTreeMap<String, Value> {
        &self.pairs
    }

    fn object(&mut self, kind: &str, plural: &str, name: &str, spec: Value) {
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.pairs.len() + 1);
        let metadata = json!({ "name": name, "uid": uid, "creationTimestamp": LOADED_TIME });
        let object = json!({
            "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec,
        });
        self.pairs
            .insert(format!("{RESOURCES}{plural}/{name}"), object);
    }
}

/// Returns a network configuration for `node` on `store`; the keys of `more` are added or replace
/// others.
pub fn conf(store: &Store, node: &str, more: Value) -> Value {
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": NETWORK, "type": "calico", "log_level": "error",
        "nodename": node,
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
    });
    if let (Some(keys), Value::Object(more)) = (conf.as_object_mut(), more) {
        keys.extend(store.conf_of(node));
        if let Store::Kubernetes(_) = store {
            keys.insert("policy".into(), json!({ "type": "k8s" }));
        }
        keys.extend(more);
    }
    conf
}

/// Returns the n-th container ID, 64 characters long.
pub fn container_id(number: usize) -> String {
    format!("{number:08x}{}", "c".repeat(56))
}
