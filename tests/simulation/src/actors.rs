//! The actors beside kubelet: the nodes' agents, runtimes that collect garbage, power failures.

use crate::cluster::{Cluster, SandboxState};

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
        if sandbox.state != SandboxState::Gone {
            sandbox.state = SandboxState::Stopping;
        }
    }
}

/// Does what a cluster's programs do when all pods are gone: the agents replay, and each runtime
/// collects garbage.
pub async fn clean_up(cluster: Cluster) {
    for node in 0..cluster.nodes.len() {
        for _ in 0..3 {
            cluster.replay(node).ended().await;
        }
        cluster.gc(node, &[]).ended().await;
    }
}
