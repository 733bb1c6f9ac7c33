//! [`ClusterStore`]: what a call needs of a cluster's datastore beside the objects.

use std::future::Future;
use std::time::Duration;

use libcalico::store::{Store, StoreError};

use crate::kubernetes::BusyRule;

/// The datastore of a cluster. A store without a server of its own needs none of these methods.
pub trait ClusterStore: Store + std::fmt::Debug {
    /// Returns the identity of the datastore, or `None` if the datastore has none. Adds an identity
    /// to a file that lacks one.
    ///
    /// # Errors
    /// For example, the datastore is unreachable or lacks the object that contains the identity.
    fn identity(&self) -> impl Future<Output = Result<Option<String>, StoreError>> + Send {
        async { Ok(None) }
    }

    /// Returns the number of requests sent so far, without those of watches and of
    /// [`PagedList`](crate::PagedList).
    fn requests(&self) -> u64 {
        0
    }

    /// Ends later requests to a server, except those of watches and of
    /// [`PagedList`](crate::PagedList), as soon as `patience` has elapsed from now, if the server
    /// has responded to no request by then. A second call has no effect.
    fn expect_first_answer_within(&self, patience: Duration) {
        _ = patience;
    }

    /// Returns true if upstream's migration has moved Calico's objects to `projectcalico.org/v3`
    /// while this process still uses `crd.projectcalico.org/v1`. Call this after finding the
    /// ClusterInformation missing or not ready.
    fn has_migrated_to_v3(&self) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async { Ok(false) }
    }

    /// Returns true if this process uses `projectcalico.org/v3`, and kube-controllers has locked
    /// `crd.projectcalico.org/v1` for a migration that has not ended yet.
    fn has_marked_v1(&self) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async { Ok(false) }
    }

    /// Returns true if the datastore is an API server and the settings name the API group of
    /// Calico's objects.
    fn has_configured_group(&self) -> bool {
        false
    }

    /// Reads and writes in `projectcalico.org/v3` from now on, and tries to store this choice for
    /// later processes on this node. Has no effect on other datastores than an API server.
    fn switch_to_v3(&self) -> impl Future<Output = Result<(), StoreError>> + Send {
        async { Ok(()) }
    }

    /// Makes requests to an API server wait by `rule` while it is busy (429), even beyond the time
    /// limit of a request.
    fn wait_while_busy(&self, rule: BusyRule) {
        _ = rule;
    }

    /// Returns true if a request has had to wait for a busy API server (429) since the first call
    /// of [`wait_while_busy`](Self::wait_while_busy).
    fn was_busy(&self) -> bool {
        false
    }

    /// Returns the error with which etcd refuses writes because of an alarm, for example if its
    /// space is exhausted. Returns `None` without an alarm, if the alarms cannot be read, and for
    /// other datastores.
    fn find_alarm(&self) -> impl Future<Output = Option<StoreError>> + Send {
        async { None }
    }
}
