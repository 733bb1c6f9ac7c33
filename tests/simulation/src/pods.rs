//! The life of a pod, as kubelet and the container runtime lead it: sandboxes with their ADDs and
//! DELs, again and again until one succeeds.

use crate::cluster::{Cluster, Sandbox, SandboxState};

/// The number of times at most that kubelet looks whether a pod still runs.
const LONGEST_LIFE: usize = 6;

/// Leads a pod from its creation to its end.
pub async fn live(cluster: Cluster, pod: String, node: usize) {
    cluster.waiting.borrow_mut().insert(pod.clone(), None);
    cluster.create_pod(&pod, node);
    cluster.schedule.later(40).await;
    loop {
        let sandbox = start(&cluster, &pod, node).await;
        cluster.waiting.borrow_mut().remove(&pod);
        let is_over = run(&cluster, sandbox).await;
        stop(&cluster, sandbox).await;
        if is_over {
            break;
        }
        cluster.waiting.borrow_mut().insert(pod.clone(), None);
    }
    cluster.remove_pod(&pod);
}

/// Creates sandboxes until one has a network. Returns it.
async fn start(cluster: &Cluster, pod: &str, node: usize) -> usize {
    loop {
        let sandbox = cluster.new_sandbox(pod, node);
        match cluster.add(sandbox).ended().await {
            Some(Ok(result)) if cluster.sandbox(sandbox).state == SandboxState::Starting => {
                let addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
                cluster.set_state(sandbox, SandboxState::Running(addresses));
                let Sandbox { netns, .. } = cluster.sandbox(sandbox);
                cluster.nodes[node].kernel.start_process(&netns);
                return sandbox;
            }
            ended => {
                let error = match ended {
                    Some(Err(error)) => error.to_string(),
                    Some(Ok(_)) => "the node rebooted".into(),
                    None => "the ADD was stopped".into(),
                };
                cluster.waiting.borrow_mut().insert(pod.into(), Some(error));
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
    cluster.set_state(sandbox, SandboxState::Stopping);
    let loses_netns_first = cluster.schedule.one_in(6);
    if loses_netns_first {
        cluster.remove_netns(sandbox);
    }
    while !matches!(cluster.del(sandbox).ended().await, Some(Ok(()))) {
        cluster.schedule.later(30).await;
    }
    cluster.set_state(sandbox, SandboxState::Gone);
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
