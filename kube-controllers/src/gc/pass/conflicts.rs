//! Addresses that running pods report, and that IPAM has free or allocated to another owner. They are reported, and
//! never changed.

use futures::StreamExt;
use futures::stream;
use libcalico::api::ObjectKey;
use libcalico::ipam::gc::{Conflict, Rival, rival};
use libcalico::ipam::{Block, Sight};
use libcalico::store::{Store, StoreError};

use super::GcPass;
use crate::gc::cache::pod_state;

impl GcPass {
    /// Counts the conflicts, on each replica.
    pub(super) fn count_conflicts(&self) {
        let (free, another) = self.cache.index().conflicting(self.now());
        self.metrics.set_conflicts(free, another);
    }

    /// Reports the conflicts that have not been reported, by one Event per pod and address.
    pub(super) async fn report_conflicts(&self) {
        let conflicts = self.cache.index().conflicts(self.now());
        let reports = conflicts.into_iter().map(|conflict| self.report_conflict(conflict));
        stream::iter(reports).buffer_unordered(self.parallel()).collect::<()>().await;
    }

    async fn report_conflict(&self, conflict: Conflict) {
        let lookup = self.recheck_conflict(&conflict).await;
        let is_reported = match &lookup {
            Sight::Present((uid, rival)) => {
                self.events.report_conflict(&self.context.kubernetes, &self.gate, &conflict, uid, rival).await
            }
            Sight::Absent | Sight::Unknown => false,
        };
        let now = self.now();
        let mut index = self.cache.index();
        match lookup {
            Sight::Absent => index.conflict_over(&conflict),
            Sight::Present((_, rival)) if is_reported => {
                let Conflict { namespace, name, address, block } = &conflict;
                tracing::warn!(%address, pod = %format_args!("{namespace}/{name}"), %block, ipam_has_it = %rival,
                    "a running pod uses an address that is not allocated to it; another pod may get the address");
                index.conflict_reported(&conflict);
            }
            Sight::Present(_) | Sight::Unknown => index.conflict_postponed(&conflict, now),
        }
    }

    /// Reads the pod and the block again, because a watch may lag behind. If the conflict exists, returns the pod's uid
    /// and the state of the address in its block.
    async fn recheck_conflict(&self, conflict: &Conflict) -> Sight<(String, Rival)> {
        let Conflict { namespace, name, address, block } = conflict;
        let pod = match self.reader().pod(&ObjectKey::namespaced(namespace, name)).await {
            Sight::Present(pod) => pod,
            Sight::Absent => return Sight::Absent,
            Sight::Unknown => return Sight::Unknown,
        };
        let state = pod_state(&pod);
        if !state.runs || !state.addresses.of_kubelet().any(|reported| reported == *address) {
            return Sight::Absent;
        }
        self.gate.pace(1).await;
        match self.context.calico.get::<Block>(block).await {
            Ok(entry) => match rival(&entry.value, *address, namespace, name) {
                Some(rival) => Sight::Present((pod.uid, rival)),
                None => Sight::Absent,
            },
            Err(StoreError::NotFound { .. }) => Sight::Absent,
            Err(error) => {
                tracing::warn!(%block, %error, "cannot read the block of an address that a pod uses");
                Sight::Unknown
            }
        }
    }
}
