//! [`Leaks`]: the leaked addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::table::RowId;
use crate::backoff::{Backoff, Jitter};
use crate::ipam::LeakReason;

/// A leaked address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeakTimer {
    /// The time at which the address was first found to be leaked.
    pub(super) since: Duration,
    pub(super) reason: LeakReason,
    pub(super) stage: LeakStage,
    /// True if the leak was confirmed without a grace period, because its node is deleted.
    pub(super) by_node: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeakStage {
    /// A leak in its grace period, which ends at `due`. With a grace period of 0, `due` is `None`
    /// and the leak is only counted.
    Candidate {
        due: Option<Duration>,
    },
    Confirmed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeakTransition {
    Unchanged,
    Started,
    Confirmed,
    Cleared,
}

#[derive(Debug, Default)]
pub(super) struct Leaks {
    by_row: HashMap<RowId, LeakTimer>,
    due: BTreeSet<(Duration, RowId)>,
    confirmed: BTreeSet<RowId>,
    postponed: BTreeMap<RowId, Postponement>,
}

/// The pauses between the attempts to release or repair an object.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(300),
    jitter: Jitter::None,
};

/// The pause of a release or repair after failures. `until` is 0 before the first failure.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Postponement {
    pub(super) until: Duration,
    pub(super) failures: u32,
}

impl Postponement {
    /// Counts a failure. The pause grows with each failure, up to the longest one of [`BACKOFF`].
    pub(super) fn fail(&mut self, now: Duration) {
        self.failures += 1;
        self.until = now.saturating_add(BACKOFF.pause(self.failures, 0.0));
    }
}

impl Leaks {
    pub(super) fn get(&self, row: RowId) -> Option<&LeakTimer> {
        self.by_row.get(&row)
    }

    pub(super) fn is_confirmed(&self, row: RowId) -> bool {
        self.confirmed.contains(&row)
    }

    /// Records that an address is leaked. The leak is confirmed when it has lasted for `grace`.
    pub(super) fn set(
        &mut self,
        row: RowId,
        now: Duration,
        reason: LeakReason,
        grace: GracePeriod,
    ) -> LeakTransition {
        let previous = self.by_row.get(&row).copied();
        let since = previous.map_or(now, |leak| leak.since);
        // If the deleted node exists again, the grace period applies to a leak that only the
        // deletion confirmed.
        let confirmed = previous.filter(|leak| {
            leak.stage == LeakStage::Confirmed && (!leak.by_node || grace == GracePeriod::AtOnce)
        });
        let stage = match grace {
            _ if confirmed.is_some() => LeakStage::Confirmed,
            GracePeriod::AtOnce => LeakStage::Confirmed,
            GracePeriod::Never => LeakStage::Candidate { due: None },
            GracePeriod::After(grace) if now >= since.saturating_add(grace) => LeakStage::Confirmed,
            GracePeriod::After(grace) => LeakStage::Candidate {
                due: Some(since.saturating_add(grace)),
            },
        };
        let by_node = confirmed.map_or(grace == GracePeriod::AtOnce, |leak| leak.by_node);
        self.remove_stage(row, previous);
        match stage {
            LeakStage::Candidate { due } => _ = due.map(|due| self.due.insert((due, row))),
            LeakStage::Confirmed => _ = self.confirmed.insert(row),
        }
        self.by_row.insert(
            row,
            LeakTimer {
                since,
                reason,
                stage,
                by_node,
            },
        );
        match (previous.map(|leak| leak.stage), stage) {
            (Some(LeakStage::Confirmed), _) | (Some(_), LeakStage::Candidate { .. }) => {
                LeakTransition::Unchanged
            }
            (_, LeakStage::Confirmed) => LeakTransition::Confirmed,
            (None, LeakStage::Candidate { .. }) => LeakTransition::Started,
        }
    }

    /// Removes the leak of an address that is in use or no longer tracked.
    pub(super) fn clear(&mut self, row: RowId) -> LeakTransition {
        let previous = self.by_row.remove(&row);
        self.remove_stage(row, previous);
        if previous.is_some() {
            LeakTransition::Cleared
        } else {
            LeakTransition::Unchanged
        }
    }

    fn remove_stage(&mut self, row: RowId, previous: Option<LeakTimer>) {
        match previous.map(|leak| leak.stage) {
            Some(LeakStage::Candidate { due: Some(due) }) => _ = self.due.remove(&(due, row)),
            Some(LeakStage::Confirmed) => _ = self.confirmed.remove(&row),
            Some(LeakStage::Candidate { due: None }) | None => {}
        }
    }

    pub(super) fn due(&self, now: Duration) -> Vec<RowId> {
        self.due
            .iter()
            .take_while(|(due, _)| *due <= now)
            .map(|(_, row)| *row)
            .collect()
    }

    pub(super) fn confirmed(&self) -> impl Iterator<Item = RowId> {
        self.confirmed.iter().copied()
    }

    pub(super) fn rows(&self) -> Vec<RowId> {
        self.by_row.keys().copied().collect()
    }

    /// Returns the time at which the next grace period or pause ends; in the past if that of a
    /// candidate has elapsed.
    pub(super) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let postponed = self
            .postponed
            .values()
            .map(|handle| handle.until)
            .filter(|until| *until > now);
        self.due
            .first()
            .map(|(due, _)| *due)
            .into_iter()
            .chain(postponed)
            .min()
    }

    pub(super) fn postpone(&mut self, handle: RowId, now: Duration) {
        self.postponed.entry(handle).or_default().fail(now);
    }

    pub(super) fn end_postponement(&mut self, handle: RowId) {
        self.postponed.remove(&handle);
    }

    pub(super) fn is_postponed(&self, handle: RowId, now: Duration) -> bool {
        self.postponed
            .get(&handle)
            .is_some_and(|postponement| postponement.until > now)
    }
}

/// The time for which an address must be leaked before its leak is confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GracePeriod {
    AtOnce,
    After(Duration),
    Never,
}

#[cfg(test)]
mod size {
    use super::*;

    impl Leaks {
        pub(in super::super) fn bytes(&self) -> usize {
            self.by_row.capacity() * (size_of::<(RowId, LeakTimer)>() + 1)
                + self.due.len() * 2 * size_of::<(Duration, RowId)>()
                + self.confirmed.len() * 2 * size_of::<RowId>()
                + self.postponed.len() * 2 * size_of::<(RowId, Postponement)>()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Duration = Duration::from_secs;
    const GONE: LeakReason = LeakReason::PodGone;

    #[test]
    fn leak_candidate_is_confirmed_after_the_grace_period() {
        let mut leaks = Leaks::default();
        let grace = GracePeriod::After(AT(10));
        assert_eq!(leaks.set(1, AT(5), GONE, grace), LeakTransition::Started);
        assert_eq!(
            (leaks.next_deadline(AT(5)), leaks.due(AT(14))),
            (Some(AT(15)), vec![])
        );
        assert_eq!(leaks.set(1, AT(14), GONE, grace), LeakTransition::Unchanged);
        assert_eq!(leaks.due(AT(15)), [1]);
        assert_eq!(leaks.set(1, AT(15), GONE, grace), LeakTransition::Confirmed);
        assert_eq!(
            (leaks.is_confirmed(1), leaks.next_deadline(AT(15))),
            (true, None)
        );
        assert_eq!(leaks.set(1, AT(16), GONE, grace), LeakTransition::Unchanged);
        assert_eq!(leaks.clear(1), LeakTransition::Cleared);
        assert_eq!(
            (leaks.is_confirmed(1), leaks.clear(1)),
            (false, LeakTransition::Unchanged)
        );
        assert_eq!(
            leaks.set(1, AT(20), GONE, grace),
            LeakTransition::Started,
            "the grace period starts again"
        );
    }

    #[test]
    fn leak_is_confirmed_at_once_or_never_as_the_grace_period_says() {
        let mut leaks = Leaks::default();
        assert_eq!(
            leaks.set(1, AT(0), GONE, GracePeriod::AtOnce),
            LeakTransition::Confirmed
        );
        assert!(leaks.get(1).unwrap().by_node);
        assert_eq!(
            leaks.set(2, AT(0), GONE, GracePeriod::Never),
            LeakTransition::Started
        );
        assert_eq!(
            leaks.set(2, AT(1_000_000), GONE, GracePeriod::Never),
            LeakTransition::Unchanged
        );
        assert_eq!(leaks.next_deadline(AT(0)), None);
        assert_eq!(
            leaks.set(2, AT(1_000_001), GONE, GracePeriod::AtOnce),
            LeakTransition::Confirmed
        );
        assert_eq!(
            leaks.set(3, AT(0), GONE, GracePeriod::After(Duration::ZERO)),
            LeakTransition::Confirmed
        );
    }

    #[test]
    fn leaks_of_a_returned_node_regain_their_grace_period() {
        let mut leaks = Leaks::default();
        leaks.set(1, AT(0), GONE, GracePeriod::AtOnce);
        assert_eq!(
            leaks.set(1, AT(5), GONE, GracePeriod::After(AT(10))),
            LeakTransition::Unchanged
        );
        assert_eq!((leaks.is_confirmed(1), leaks.due(AT(10))), (false, vec![1]));
        assert_eq!(
            leaks.set(1, AT(10), GONE, GracePeriod::After(AT(10))),
            LeakTransition::Confirmed
        );
        leaks.set(1, AT(11), GONE, GracePeriod::AtOnce);
        assert!(
            !leaks.get(1).unwrap().by_node,
            "the grace period has elapsed"
        );
    }

    #[test]
    fn failing_handle_is_retried_with_growing_pauses() {
        let mut leaks = Leaks::default();
        let mut waits = Vec::new();
        for _ in 0..20 {
            leaks.postpone(7, AT(100));
            waits.push(leaks.next_deadline(AT(100)).unwrap() - AT(100));
        }
        assert_eq!(waits[..4], [AT(1), AT(2), AT(4), AT(8)]);
        assert_eq!(waits[19], AT(300));
        assert!(leaks.is_postponed(7, AT(399)) && !leaks.is_postponed(7, AT(400)));
        leaks.end_postponement(7);
        assert!(!leaks.is_postponed(7, AT(100)));
    }
}
