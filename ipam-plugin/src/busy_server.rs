//! Waiting for a busy API server (429), in turn with the other calls of the node.

use std::time::Duration;

use datastore::{BusyRule, ClusterStore};
use netconf::{CniError, Command};
use os::node_files::NodeFiles;

use crate::kubernetes_api::KubernetesApi;

/// The file that a process locks while it sends requests to a busy API server.
pub const LOCK_FILE: &str = "/var/run/calico/api-server-busy.lock";

/// Returns the longest time for which a call waits for a busy API server. Runtimes limit a call to
/// two minutes, and a DEL that follows a failed ADD to one.
pub fn longest_wait(command: Command) -> Duration {
    match command {
        Command::Add | Command::Check | Command::Gc | Command::Version => Duration::from_secs(110),
        Command::Del => Duration::from_secs(45),
        Command::Status => Duration::from_secs(2),
    }
}

/// Makes requests of this process wait for a busy API server (429), in turn with the node's other
/// processes, for no longer than `longest` from now. Before a request waits, the process releases
/// its IPAM locks.
pub fn wait_at_most<S: ClusterStore>(
    longest: Duration,
    files: &NodeFiles,
    store: &S,
    api: &KubernetesApi<S>,
) {
    let rule = BusyRule {
        file: files.path(LOCK_FILE),
        longest,
        locks: files.clone(),
    };
    if let Some(api) = api.separate() {
        api.wait_while_busy(rule.clone());
    }
    store.wait_while_busy(rule);
}

/// Returns the result of a STATUS from `status`, the result of its checks. A STATUS that ran out of
/// time while waiting for a busy server succeeds, because runtimes would otherwise report the node
/// as not ready.
pub fn status<S: ClusterStore>(
    status: Result<(), CniError>,
    store: &S,
    api: &KubernetesApi<S>,
) -> Result<(), CniError> {
    match status {
        Err(error) if store.has_given_up() || api.separate().is_some_and(S::has_given_up) => {
            tracing::warn!(
                %error, "the API server is busy; STATUS succeeds, because an ADD waits",
            );
            Ok(())
        }
        status => status,
    }
}

/// Returns true if an API server was busy during this call.
pub fn server_was_busy<S: ClusterStore>(store: &S, api: &KubernetesApi<S>) -> bool {
    store.was_busy() || api.separate().is_some_and(S::was_busy)
}
