//! Addresses that running pods report, and that IPAM has free or allocated to another owner. They
//! are reported, and never changed.

use futures::{StreamExt, stream};
use libcalico::api::ObjectKey;
use libcalico::ipam::gc::{Conflict, ConflictKind, conflict_kind};
use libcalico::ipam::{Block, Lookup};
use libcalico::store::{Store, StoreError};
use os::clock::Clock;

use super::GcPass;
use crate::events::Posted;
use crate::gc::cache::pod_state;
use crate::gc::events::conflict_event;
use crate::gc::world::{ClusterApi, PassGate, World};

impl<W: World> GcPass<W> {
    /// Publishes the numbers of conflicts that have lasted two minutes in the metrics, on each
    /// replica.
    pub(super) fn count_conflicts(&self) {
        let (free, another) = self.inputs.cache.index().conflicting(self.now());
        self.inputs.metrics.set_conflicts(free, another);
    }

    /// Reports the conflicts that have lasted two minutes and have not been reported.
    pub(super) async fn report_conflicts(&self) {
        let conflicts = self.inputs.cache.index().conflicts(self.now());
        let reports = conflicts
            .into_iter()
            .map(|conflict| self.report_conflict(conflict));
        stream::iter(reports)
            .buffer_unordered(self.parallel())
            .collect::<()>()
            .await;
    }

    async fn report_conflict(&self, conflict: Conflict) {
        let lookup = self.recheck_conflict(&conflict).await;
        let is_reported = match &lookup {
            Lookup::Present((uid, kind)) => {
                let event = conflict_event(&conflict, uid, kind, self.inputs.clock.now().into());
                let may_write = self.inputs.gate.is_open();
                self.inputs.api.post_event(may_write, event).await != Posted::Failed
            }
            Lookup::Absent | Lookup::Unknown => false,
        };
        let now = self.now();
        let mut index = self.inputs.cache.index();
        match lookup {
            Lookup::Absent => index.end_conflict(&conflict),
            Lookup::Present((_, kind)) if is_reported => {
                let Conflict {
                    namespace,
                    name,
                    address,
                    block,
                } = &conflict;
                tracing::warn!(%address, pod = %format_args!("{namespace}/{name}"), %block,
                    ipam_has_it = kind.whole(),
                    hint = "two owners may use the address",
                    "a running pod uses an address that is not allocated to it");
                index.mark_conflict_reported(&conflict);
            }
            Lookup::Present(_) | Lookup::Unknown => index.postpone_conflict(&conflict, now),
        }
    }

    /// Reads the pod and the block again, because a watch may lag behind. If the conflict still
    /// exists, returns the pod's uid and the state of the address in its block.
    async fn recheck_conflict(&self, conflict: &Conflict) -> Lookup<(String, ConflictKind)> {
        let Conflict {
            namespace,
            name,
            address,
            block,
        } = conflict;
        let pod = match self
            .reader()
            .pod(&ObjectKey::namespaced(namespace, name))
            .await
        {
            Lookup::Present(pod) => pod,
            Lookup::Absent => return Lookup::Absent,
            Lookup::Unknown => return Lookup::Unknown,
        };
        let state = pod_state(&pod);
        if !state.runs
            || !state
                .addresses
                .in_status()
                .any(|reported| reported == *address)
        {
            return Lookup::Absent;
        }
        self.inputs.gate.pace(1).await;
        match self.inputs.calico.get::<Block>(block).await {
            Ok(entry) => match conflict_kind(&entry.value, *address, namespace, name) {
                Some(kind) => Lookup::Present((pod.uid, kind)),
                None => Lookup::Absent,
            },
            Err(StoreError::NotFound { .. }) => Lookup::Absent,
            Err(error) => {
                tracing::warn!(
                    %block, %error,
                    "cannot read the block of a pod's address; trying again later"
                );
                Lookup::Unknown
            }
        }
    }
}
