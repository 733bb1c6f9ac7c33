//! [`draw`]: the cluster of a schedule: its datastore, pools, nodes and pods.

use std::path::Path;
use std::time::Duration;

use libcalico::api::{
    ClusterInformation, ClusterInformationSpec, IpPool, IpPoolSpec, Node as CalicoNode, NodeSpec,
    ObjectKey, OrchRef,
};
use libcalico::ipam::{IpamConfig, IpamConfigKey};
use libcalico::store::Kind;
use memory_store::Pairs;

use crate::cluster::Node;
use crate::datastore::Content;
use crate::schedule::Schedule;

/// The number of pods of a schedule at most.
const MOST_PODS: usize = 5;

/// The time for which a released address is not assigned, in clusters with a cooldown.
pub(crate) const COOLDOWN: Duration = Duration::from_secs(30);

/// A cluster that has not begun.
pub struct DrawnCluster {
    /// The content of its datastore.
    pub content: Content,
    /// Its nodes.
    pub nodes: Vec<Node>,
    /// Its pods, each with the number of its node.
    pub pods: Vec<(String, usize)>,
}

/// Draws a cluster. Files of the nodes are below `directory`.
pub fn draw(choices: &Schedule, directory: &Path) -> DrawnCluster {
    let ahead = [0, 0, -3, 5, 300, -300];
    let nodes: Vec<Node> = (0..=choices.below(3))
        .map(|number| Node::new(number, ahead[choices.below(ahead.len())], directory))
        .collect();
    let pods = (0..=choices.below(MOST_PODS))
        .map(|number| (format!("pod{}", number + 1), choices.below(nodes.len())))
        .collect();
    let mut pairs = Pairs::default();
    let ready = ClusterInformationSpec {
        datastore_ready: Some(true),
        ..ClusterInformationSpec::default()
    };
    put(
        &mut pairs,
        &ObjectKey::global("default"),
        &ClusterInformation::new("default", ready),
    );
    for node in &nodes {
        let reference = OrchRef {
            node_name: node.name.clone(),
            orchestrator: "k8s".into(),
            ..OrchRef::default()
        };
        let spec = NodeSpec {
            orch_refs: vec![reference],
            ..NodeSpec::default()
        };
        let node = CalicoNode::new(&node.name, spec);
        put(&mut pairs, &node.key(), &node);
    }
    let (range, size) = [("10.65.0.0/28", 30), ("10.65.0.0/24", 26)][choices.below(2)];
    let spec = IpPoolSpec {
        cidr: range.into(),
        block_size: Some(size),
        ..IpPoolSpec::default()
    };
    if size == 26 && choices.one_in(3) {
        let config = IpamConfig {
            ip_cooldown_seconds: COOLDOWN.as_secs() as i64,
            ..IpamConfig::absent()
        };
        put(&mut pairs, &IpamConfigKey, &config);
    }
    let pool = IpPool::new("pool", spec);
    put(&mut pairs, &pool.key(), &pool);
    DrawnCluster {
        content: Content::Etcd(pairs),
        nodes,
        pods,
    }
}

fn put<K: Kind>(pairs: &mut Pairs, key: &K::Key, value: &K) {
    let value = value.encode().expect("the object can be encoded");
    pairs.put(K::path(key), value);
}
