//! How long a call waits for an API server that is busy (429), in turn with the other calls of the node.

use std::time::Duration;

use datastore::{Datastore, WhenBusy};
use libcalico::store::Store;
use netconf::{CniError, Command};
use tokio::time::Instant;

use crate::kubernetes_api::Api;
use crate::lock;

/// The process that asks has a lock on it.
pub const TURNS: &str = "/var/run/calico/api-server-busy.lock";

/// Returns how long a call may wait in all. Runtimes give a call two minutes, and one to a DEL that follows a failed
/// ADD.
pub fn longest_wait(command: Command) -> Duration {
    match command {
        Command::Add | Command::Check | Command::Gc | Command::Version => Duration::from_secs(110),
        Command::Del => Duration::from_secs(45),
        Command::Status => Duration::from_secs(2),
    }
}

/// Has the requests of this process wait until then, without the locks of addresses.
pub fn wait_until(until: Instant, store: &Datastore, api: &Api) {
    let rule = WhenBusy { file: TURNS.into(), until, before_waiting: lock::let_others_in };
    if let Api::Beside(api) = api {
        api.wait_while_busy(rule.clone());
    }
    store.wait_while_busy(rule);
}

/// Returns what a STATUS says: success also if its time was over while it waited for a busy server, as an ADD would wait
/// longer. After a failure runtimes report the node as not ready, and Kubernetes takes its pods away.
pub fn status(found: Result<(), CniError>, store: &Datastore, api: &Api) -> Result<(), CniError> {
    match found {
        Err(error) if store.has_given_up() || matches!(api, Api::Beside(api) if api.has_given_up()) => {
            tracing::warn!(%error, "the API server is busy; an ADD would wait for it");
            Ok(())
        }
        found => found,
    }
}

/// Returns true if a server was busy, and a request waited for it or failed.
pub fn was_met(store: &Datastore, api: &Api) -> bool {
    store.was_busy() || matches!(api, Api::Beside(api) if api.was_busy())
}
