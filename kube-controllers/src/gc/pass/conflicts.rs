//! Addresses that running pods report, and that IPAM has free or allocated to another owner. They are reported, and
//! never changed.

use futures::StreamExt;
use futures::stream;
use libcalico::api::ObjectKey;
use libcalico::ipam::gc::{Conflict, Rival, rival};
use libcalico::ipam::{Block, Sight};
use libcalico::store::{Store, StoreError};

use super::GcPass;
use crate::gc::projections::pod_facts;

/// The result of a second check of a conflict.
enum Look {
    /// The conflict exists. Contains the pod's uid, and the state of the address in its block.
    Same(String, Rival),
    /// There is no conflict.
    Over,
    /// The pod or the block cannot be read.
    Unknown,
}

impl GcPass {
    /// Counts the conflicts, on each replica.
    pub(super) fn count_conflicts(&self) {
        let (free, another) = self.cache.index().conflicting(self.now());
        self.metrics.conflicts(free, another);
    }

    /// Reports the conflicts that have not been reported, by one Event per pod and address.
    pub(super) async fn report_conflicts(&self) {
        let conflicts = self.cache.index().conflicts(self.now());
        let told = conflicts.into_iter().map(|conflict| self.report_conflict(conflict));
        stream::iter(told).buffer_unordered(self.parallel()).collect::<()>().await;
    }

    async fn report_conflict(&self, conflict: Conflict) {
        let look = self.recheck_conflict(&conflict).await;
        let told = match &look {
            Look::Same(uid, rival) => {
                self.events.report_conflict(&self.context.kubernetes, &self.gate, &conflict, uid, rival).await
            }
            Look::Over | Look::Unknown => false,
        };
        let now = self.now();
        let mut index = self.cache.index();
        match look {
            Look::Over => index.conflict_over(&conflict),
            Look::Same(_, rival) if told => {
                let Conflict { namespace, name, address, block } = &conflict;
                tracing::warn!(%address, pod = %format_args!("{namespace}/{name}"), %block, ipam_has_it = %rival,
                    "a running pod uses an address that IPAM does not have for it: two pods may get it");
                index.conflict_told(&conflict);
            }
            Look::Same(..) | Look::Unknown => index.conflict_untold(&conflict, now),
        }
    }

    /// Reads the pod and the block again, because a watch may lag behind.
    async fn recheck_conflict(&self, conflict: &Conflict) -> Look {
        let Conflict { namespace, name, address, block } = conflict;
        let pod = match self.reader().pod(&ObjectKey::namespaced(namespace, name)).await {
            Sight::Present(pod) => pod,
            Sight::Absent => return Look::Over,
            Sight::Unknown => return Look::Unknown,
        };
        let facts = pod_facts(&pod);
        if !facts.runs || !facts.addresses.of_kubelet().any(|reported| reported == *address) {
            return Look::Over;
        }
        self.gate.pace(1).await;
        match self.context.calico.get::<Block>(block).await {
            Ok(found) => match rival(&found.value, *address, namespace, name) {
                Some(rival) => Look::Same(pod.uid, rival),
                None => Look::Over,
            },
            Err(StoreError::NotFound { .. }) => Look::Over,
            Err(error) => {
                tracing::warn!(%block, %error, "cannot look at the block of an address that a pod uses");
                Look::Unknown
            }
        }
    }
}
