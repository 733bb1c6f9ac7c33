//! Releases confirmed leaks.

use libcalico::ipam::{HandleId, ReleaseRequest};
use libcalico::kubernetes::Pod;
use libcalico::store::{Store, StoreError};

use super::owner::{PodLookup, is_valid};
use super::{AllocationId, Collector, Tracked};
use crate::upstream::UpstreamError;
use crate::upstream::client::Client;

/// The maximum number of addresses that a pass releases.
const PER_PASS: usize = 10_000;

impl Collector {
    /// Releases the confirmed leaks whose owners are still missing, each with its handle and
    /// sequence number. Releases all addresses of a handle or none (KC-445).
    pub(super) async fn release_leaks<S: Store, A: Store>(
        &mut self,
        client: &Client<'_, S>,
        api: &A,
    ) -> Result<(), UpstreamError> {
        let mut leaks: Vec<(AllocationId, ReleaseRequest)> = Vec::new();
        for id in self.confirmed_leaks.clone() {
            if leaks.len() == PER_PASS {
                break;
            }
            let Some(tracked) = self.allocations.get(&id).cloned() else {
                self.confirmed_leaks.remove(&id);
                continue;
            };
            if self.is_still_valid(&tracked, &id, api).await {
                self.confirmed_leaks.remove(&id);
                if let Some(tracked) = self.allocations.get_mut(&id) {
                    tracked.mark_valid();
                }
            } else if self.is_whole_handle_leaked(&id.0) {
                let request = ReleaseRequest {
                    ip: id.1,
                    handle: Some(HandleId::new(&id.0)),
                    sequence: Some(tracked.sequence),
                };
                leaks.push((id, request));
            }
        }
        if leaks.is_empty() {
            return Ok(());
        }
        let requests: Vec<_> = leaks.iter().map(|(_, request)| request.clone()).collect();
        let outcome = client.release_addresses(&requests).await?;
        for (id, request) in &leaks {
            if outcome.served.contains(request) {
                self.drop_allocation(id);
                self.reclaimed.push(id.1);
            }
        }
        match outcome.error {
            Some(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    /// Looks up the owner again: in the API if the node is known, otherwise in the cache.
    async fn is_still_valid<A: Store>(
        &self,
        tracked: &Tracked,
        id: &AllocationId,
        api: &A,
    ) -> bool {
        let Some(key) = tracked.pod().filter(|_| !tracked.is_tunnel()) else {
            return is_valid(tracked, id.1, PodLookup::Failed);
        };
        if tracked.kubernetes_node.is_empty() {
            return self.is_valid_by_cache(tracked, id.1);
        }
        let found = match api.get::<Pod>(&key).await {
            Ok(entry) => PodLookup::Found(Box::new(entry.value)),
            Err(StoreError::NotFound { .. }) => PodLookup::Missing,
            Err(_) => PodLookup::Failed,
        };
        is_valid(tracked, id.1, found)
    }

    fn is_whole_handle_leaked(&self, handle: &str) -> bool {
        let mut of_handle = self.allocations.iter().filter(|(id, _)| id.0 == handle);
        of_handle.all(|(_, tracked)| tracked.is_confirmed)
    }
}
