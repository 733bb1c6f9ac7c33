//! [`DeletionCandidates`]: endpoints that look orphaned, with the time since when.

use std::collections::HashMap;
use std::time::Duration;

use libcalico::api::ObjectKey;
use tokio::time::Instant;

/// Endpoints that look orphaned.
#[derive(Debug, Default)]
pub(super) struct DeletionCandidates {
    by_endpoint: HashMap<ObjectKey, DeletionCandidate>,
}

#[derive(Debug)]
struct DeletionCandidate {
    /// Uid of the endpoint, which distinguishes it from a later endpoint with the same name.
    uid: String,
    since: Instant,
    /// True if a dry run has reported the endpoint.
    reported: bool,
}

impl DeletionCandidates {
    /// Returns the time for which the endpoint has looked orphaned; zero at the first call.
    pub(super) fn age(&mut self, endpoint: &ObjectKey, uid: &str, now: Instant) -> Duration {
        let fresh = || DeletionCandidate { uid: uid.to_owned(), since: now, reported: false };
        let candidate = self.by_endpoint.entry(endpoint.clone()).or_insert_with(fresh);
        if candidate.uid != uid {
            *candidate = fresh();
        }
        now.saturating_duration_since(candidate.since)
    }

    /// Records that the endpoint was reported. Returns true if this is the first time.
    pub(super) fn report(&mut self, endpoint: &ObjectKey) -> bool {
        self.by_endpoint.get_mut(endpoint).is_some_and(|candidate| !std::mem::replace(&mut candidate.reported, true))
    }

    /// Removes the endpoints that no longer exist.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ObjectKey) -> bool) {
        self.by_endpoint.retain(|endpoint, _| is_there(endpoint));
    }

    /// Removes an endpoint that is deleted or no longer looks orphaned.
    pub(super) fn clear(&mut self, endpoint: &ObjectKey) {
        self.by_endpoint.remove(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_endpoint_of_the_same_name_begins_anew() {
        let (key, begin, mut candidates) =
            (ObjectKey::namespaced("ns", "e"), Instant::now(), DeletionCandidates::default());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(candidates.age(&key, "u1", begin), Duration::ZERO);
        assert_eq!(candidates.age(&key, "u1", at(5)), Duration::from_secs(5));
        assert!(candidates.report(&key) && !candidates.report(&key));
        assert_eq!(candidates.age(&key, "u2", at(7)), Duration::ZERO);
        assert!(candidates.report(&key));
        candidates.clear(&key);
        assert_eq!(candidates.age(&key, "u2", at(9)), Duration::ZERO);
    }
}
