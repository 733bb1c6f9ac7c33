//! Waiting for a busy API server (429), in turn with the other calls of the node.

use std::time::Duration;

use datastore::{BusyRule, Datastore};
use libcalico::store::Store;
use netconf::{CniError, Command};
use tokio::time::Instant;

use crate::kubernetes_api::KubernetesApi;
use os::lock;

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
/// processes, until `until` at the latest. Before a request waits, the process releases its IPAM
/// locks.
pub fn wait_until(until: Instant, store: &Datastore, api: &KubernetesApi) {
    let rule = BusyRule {
        file: LOCK_FILE.into(),
        until,
        before_waiting: lock::release_ipam_locks,
    };
    if let Some(api) = api.separate() {
        api.wait_while_busy(rule.clone());
    }
    store.wait_while_busy(rule);
}

/// Returns the result of a STATUS from `status`, the result of its checks. A STATUS that ran out of
/// time while waiting for a busy server succeeds, because runtimes would otherwise report the node
/// as not ready.
pub fn status(
    status: Result<(), CniError>,
    store: &Datastore,
    api: &KubernetesApi,
) -> Result<(), CniError> {
    match status {
        Err(error) if store.has_given_up() || api.separate().is_some_and(Store::has_given_up) => {
            tracing::warn!(
                %error, "the API server is busy; STATUS succeeds, because an ADD waits",
            );
            Ok(())
        }
        status => status,
    }
}

/// Returns true if an API server was busy during this call.
pub fn server_was_busy(store: &Datastore, api: &KubernetesApi) -> bool {
    store.was_busy() || api.separate().is_some_and(Datastore::was_busy)
}
