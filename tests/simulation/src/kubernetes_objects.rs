//! [`KubernetesObjects`]: the pods and nodes of a cluster, as its API server has them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::cluster::NAMESPACE;

/// The pods and nodes of a cluster. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KubernetesObjects(Arc<Mutex<Objects>>);

#[derive(Debug, Default)]
struct Objects {
    pods: BTreeMap<String, PodObject>,
    nodes: BTreeSet<String>,
    changes: Vec<ObjectChange>,
    /// The number of pods so far, for their uids.
    created: usize,
}

/// A pod.
#[derive(Debug, Clone)]
pub struct PodObject {
    /// The name.
    pub name: String,
    /// The name of the node.
    pub node: String,
    /// The uid.
    pub uid: String,
    /// The phase, such as `Running`.
    pub phase: &'static str,
    /// The addresses that kubelet has reported.
    pub addresses: Vec<IpAddr>,
    /// True if the pod has a time of deletion.
    pub is_deleting: bool,
}

/// A change of an object.
#[derive(Debug, Clone)]
pub enum ObjectChange {
    /// A pod was created or changed.
    Pod(PodObject),
    /// The pod with this name was deleted.
    PodDeleted(String),
    /// The node with this name was created.
    Node(String),
    /// The node with this name was deleted.
    NodeDeleted(String),
}

impl PodObject {
    /// Returns the JSON of the pod.
    pub fn json(&self) -> Value {
        let pod_ips: Vec<Value> = self
            .addresses
            .iter()
            .map(|ip| json!({ "ip": ip }))
            .collect();
        let mut pod = json!({
            "metadata": { "name": self.name, "namespace": NAMESPACE, "uid": self.uid },
            "spec": { "nodeName": self.node },
            "status": { "phase": self.phase, "podIPs": pod_ips },
        });
        if let Some(first) = self.addresses.first() {
            pod["status"]["podIP"] = json!(first);
        }
        if self.is_deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-08-22T01:02:03Z");
        }
        pod
    }
}

impl KubernetesObjects {
    /// Creates a pod on a node.
    pub fn create_pod(&self, name: &str, node: &str) {
        let mut objects = self.objects();
        objects.created += 1;
        let pod = PodObject {
            name: name.into(),
            node: node.into(),
            uid: format!("uid{}", objects.created),
            phase: "Pending",
            addresses: Vec::new(),
            is_deleting: false,
        };
        objects.pods.insert(name.into(), pod.clone());
        objects.changes.push(ObjectChange::Pod(pod));
    }

    /// Changes a pod, if it exists.
    pub fn change_pod(&self, name: &str, change: impl FnOnce(&mut PodObject)) {
        let mut objects = self.objects();
        let Some(pod) = objects.pods.get_mut(name) else {
            return;
        };
        change(pod);
        let pod = pod.clone();
        objects.changes.push(ObjectChange::Pod(pod));
    }

    /// Deletes a pod, if it exists.
    pub fn delete_pod(&self, name: &str) {
        let mut objects = self.objects();
        if objects.pods.remove(name).is_some() {
            objects.changes.push(ObjectChange::PodDeleted(name.into()));
        }
    }

    /// Creates a node.
    pub fn create_node(&self, name: &str) {
        let mut objects = self.objects();
        objects.nodes.insert(name.into());
        objects.changes.push(ObjectChange::Node(name.into()));
    }

    /// Deletes a node.
    pub fn delete_node(&self, name: &str) {
        let mut objects = self.objects();
        objects.nodes.remove(name);
        objects.changes.push(ObjectChange::NodeDeleted(name.into()));
    }

    /// Returns a pod.
    pub fn pod(&self, name: &str) -> Option<PodObject> {
        self.objects().pods.get(name).cloned()
    }

    /// Returns the pods on a node.
    pub fn pods_of_node(&self, node: &str) -> Vec<PodObject> {
        let objects = self.objects();
        let pods = objects.pods.values().filter(|pod| pod.node == node);
        pods.cloned().collect()
    }

    /// Returns true if the node exists.
    pub fn has_node(&self, name: &str) -> bool {
        self.objects().nodes.contains(name)
    }

    /// Returns the changes from the one with this number on.
    pub fn changes_from(&self, number: usize) -> Vec<ObjectChange> {
        self.objects().changes[number..].to_vec()
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
