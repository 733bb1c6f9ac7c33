//! The actors beside kubelet: the nodes' agents, runtimes that collect garbage, power failures.

use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::store::Kind;

use crate::cluster::{Cluster, SandboxState};
use crate::collection;
use crate::datastore::Content;

/// Starts the actors that act at any time.
pub fn start(cluster: &Cluster) {
    for node in 0..cluster.nodes.len() {
        let agent = replay_sometimes(cluster.clone(), node);
        let name = format!("agent of {}", cluster.nodes[node].name);
        cluster.tasks.start_actor(&name, agent);
        let power = fail_power(cluster.clone(), node);
        let name = format!("power of {}", cluster.nodes[node].name);
        cluster.tasks.start_actor(&name, power);
    }
    collection::start(cluster);
}

/// Replays deferred DELs a few times.
async fn replay_sometimes(cluster: Cluster, node: usize) {
    let times = cluster.schedule.below(4);
    for _ in 0..times {
        cluster.schedule.later(160).await;
        cluster.replay(node).ended().await;
    }
}

/// Reboots a node in a few schedules. All its processes and namespaces are gone.
async fn fail_power(cluster: Cluster, node: usize) {
    if !cluster.schedule.one_in(6) {
        return;
    }
    cluster.schedule.later(240).await;
    if !cluster.is_rough() {
        return;
    }
    for call in cluster.tasks.calls(Some(node)) {
        cluster.tasks.stop(call);
    }
    cluster.nodes[node].reboot(cluster.plant);
    let mut sandboxes = cluster.sandboxes.borrow_mut();
    for sandbox in sandboxes.iter_mut().filter(|sandbox| sandbox.node == node) {
        sandbox.netns.clear();
        sandbox.process = None;
        if sandbox.state != SandboxState::Gone {
            sandbox.state = SandboxState::Stopping;
        }
    }
}

/// Does what a cluster's programs do when all pods are gone: the agents replay, some runtimes
/// collect garbage, and so does kube-controllers. A node may be deleted before.
pub async fn clean_up(cluster: Cluster) {
    for node in 0..cluster.nodes.len() {
        for _ in 0..3 {
            cluster.replay(node).ended().await;
        }
        if !cluster.schedule.one_in(2) {
            cluster.gc(node, &[]).ended().await;
        }
    }
    if cluster.schedule.one_in(3) {
        delete_node(&cluster, cluster.schedule.below(cluster.nodes.len()));
    }
    collection::clean_up(&cluster).await;
}

/// Deletes a node in Kubernetes and in the datastore.
fn delete_node(cluster: &Cluster, node: usize) {
    let name = &cluster.nodes[node].name;
    cluster.kubernetes.delete_node(name);
    let path = CalicoNode::path(&ObjectKey::global(name));
    cluster.datastore.edit(|content| match content {
        Content::Etcd(pairs) => pairs.remove(&path),
        // A Calico node is the Kubernetes node there.
        Content::Kubernetes(_) => {}
    });
}
