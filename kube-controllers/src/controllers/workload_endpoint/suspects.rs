//! [`Suspects`]: endpoints that look orphaned, with the time since when.

use std::collections::HashMap;
use std::time::Duration;

use libcalico::api::ObjectKey;
use tokio::time::Instant;

/// Endpoints that look orphaned.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    known: HashMap<ObjectKey, Suspect>,
}

#[derive(Debug)]
struct Suspect {
    /// Uid of the endpoint, which distinguishes it from a later endpoint with the same name.
    uid: String,
    since: Instant,
    /// True if a dry run has reported the endpoint.
    reported: bool,
}

impl Suspects {
    /// Returns the time for which the endpoint has looked orphaned; zero at the first call.
    pub(super) fn age(&mut self, endpoint: &ObjectKey, uid: &str, now: Instant) -> Duration {
        let fresh = || Suspect { uid: uid.to_owned(), since: now, reported: false };
        let suspect = self.known.entry(endpoint.clone()).or_insert_with(fresh);
        if suspect.uid != uid {
            *suspect = fresh();
        }
        now.saturating_duration_since(suspect.since)
    }

    /// Records that the endpoint was reported. Returns true if this is the first time.
    pub(super) fn report(&mut self, endpoint: &ObjectKey) -> bool {
        self.known.get_mut(endpoint).is_some_and(|suspect| !std::mem::replace(&mut suspect.reported, true))
    }

    /// Removes the endpoints that no longer exist.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ObjectKey) -> bool) {
        self.known.retain(|endpoint, _| is_there(endpoint));
    }

    /// Removes an endpoint that is deleted or no longer looks orphaned.
    pub(super) fn clear(&mut self, endpoint: &ObjectKey) {
        self.known.remove(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_endpoint_of_the_same_name_begins_anew() {
        let (key, begin, mut suspects) = (ObjectKey::namespaced("ns", "e"), Instant::now(), Suspects::default());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(suspects.age(&key, "u1", begin), Duration::ZERO);
        assert_eq!(suspects.age(&key, "u1", at(5)), Duration::from_secs(5));
        assert!(suspects.report(&key) && !suspects.report(&key));
        assert_eq!(suspects.age(&key, "u2", at(7)), Duration::ZERO);
        assert!(suspects.report(&key));
        suspects.clear(&key);
        assert_eq!(suspects.age(&key, "u2", at(9)), Duration::ZERO);
    }
}
