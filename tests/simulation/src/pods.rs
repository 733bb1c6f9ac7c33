//! The life of a pod, as kubelet and the container runtime lead it: sandboxes with their ADDs and
//! DELs, again and again until one succeeds.

use crate::cluster::{Cluster, SandboxState};

/// The number of times at most that kubelet looks whether a pod still runs.
const LONGEST_LIFE: usize = 6;

/// Leads a pod from its creation to its end.
pub async fn live(cluster: Cluster, pod: String, node: usize) {
    live_once(&cluster, &pod, node).await;
    // A successor has the same name, for example in a StatefulSet.
    if cluster.schedule.one_in(4) {
        live_once(&cluster, &pod, cluster.schedule.below(cluster.nodes.len())).await;
    }
}

async fn live_once(cluster: &Cluster, pod: &str, node: usize) {
    cluster.waiting.borrow_mut().insert(pod.into(), None);
    cluster.create_pod(pod, node);
    cluster.schedule.later(40).await;
    loop {
        let sandbox = start(cluster, pod, node).await;
        cluster.waiting.borrow_mut().remove(pod);
        let is_over = run(cluster, sandbox).await;
        if !is_over {
            stop(cluster, sandbox).await;
            cluster.waiting.borrow_mut().insert(pod.into(), None);
            continue;
        }
        end(cluster, pod, sandbox).await;
        return;
    }
}

/// Ends a pod. It may finish before it is deleted, and it may be deleted before its sandbox is
/// stopped.
async fn end(cluster: &Cluster, pod: &str, sandbox: usize) {
    let finishes = cluster.schedule.one_in(4);
    if finishes {
        cluster.stop_containers(sandbox);
        cluster
            .kubernetes
            .change_pod(pod, |pod| pod.phase = "Succeeded");
        cluster.schedule.later(40).await;
    }
    cluster
        .kubernetes
        .change_pod(pod, |pod| pod.is_deleting = true);
    let is_forced = cluster.schedule.one_in(5);
    if is_forced {
        cluster.stop_containers(sandbox);
        cluster.remove_pod(pod);
        let stopping = cluster.clone();
        let name = format!("end of {}", cluster.sandbox(sandbox).container);
        let stop = async move { stop(&stopping, sandbox).await };
        cluster.tasks.start_actor(&name, stop);
        return;
    }
    stop(cluster, sandbox).await;
    cluster.remove_pod(pod);
}

/// Creates sandboxes until one has a network. Returns it.
async fn start(cluster: &Cluster, pod: &str, node: usize) -> usize {
    loop {
        let sandbox = cluster.new_sandbox(pod, node);
        // It lasts until kubelet has reported the addresses.
        let operation = cluster.schedule.begin_operation();
        match cluster.add(sandbox).ended().await {
            Some(Ok(result)) if cluster.sandbox(sandbox).state == SandboxState::Starting => {
                let addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
                let reported = Vec::clone(&addresses);
                cluster.run_containers(sandbox, addresses);
                cluster.schedule.later(20).await;
                cluster.kubernetes.change_pod(pod, |pod| {
                    (pod.phase, pod.addresses) = ("Running", reported);
                });
                drop(operation);
                return sandbox;
            }
            ended => {
                let error = match ended {
                    Some(Err(error)) => error.to_string(),
                    Some(Ok(_)) => "the node rebooted".into(),
                    None => "the ADD was stopped".into(),
                };
                cluster.waiting.borrow_mut().insert(pod.into(), Some(error));
                drop(operation);
                stop(cluster, sandbox).await;
                cluster.schedule.later(30).await;
            }
        }
    }
}

/// Waits while a sandbox runs. Returns false if the pod has to start again.
async fn run(cluster: &Cluster, sandbox: usize) -> bool {
    for _ in 0..cluster.schedule.below(LONGEST_LIFE) {
        cluster.schedule.later(10).await;
        if cluster.sandbox(sandbox).state == SandboxState::Stopping {
            return false;
        }
    }
    // A sandbox that someone killed has a successor.
    !cluster.schedule.one_in(4)
}

/// Stops a sandbox: DELs until one succeeds, then removes the namespace. Another DEL may come much
/// later.
async fn stop(cluster: &Cluster, sandbox: usize) {
    cluster.stop_containers(sandbox);
    if cluster.is_rough() && cluster.schedule.one_in(12) {
        // The runtime has lost its state, and no DEL ever comes.
        cluster.remove_netns(sandbox);
        return cluster.forget(sandbox);
    }
    let loses_netns_first = cluster.schedule.one_in(6);
    if loses_netns_first {
        cluster.remove_netns(sandbox);
    }
    while !matches!(cluster.del(sandbox).ended().await, Some(Ok(()))) {
        cluster.schedule.later(30).await;
    }
    cluster.forget(sandbox);
    if !loses_netns_first {
        cluster.remove_netns(sandbox);
    }
    let repeats = cluster.schedule.below(3);
    if repeats > 0 {
        let again = cluster.clone();
        let name = format!("late DEL of {}", cluster.sandbox(sandbox).container);
        cluster.tasks.start_actor(&name, async move {
            again.schedule.later(300).await;
            again.del(sandbox).ended().await;
        });
    }
}
