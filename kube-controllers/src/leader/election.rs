//! What a Lease says, and what to do about it. Pure: clocks are arguments.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::Timing;

/// What one candidate has seen so far.
#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    timing: Timing,
    seen: Option<Seen>,
    /// When this process may write by the Lease that it created.
    settled: Option<Instant>,
}

/// The Lease as it was when it was last read or written.
#[derive(Debug, Clone)]
struct Seen {
    lease: Lease,
    /// When this version was first seen.
    since: Instant,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Write this new Lease.
    Create(Box<Lease>),
    /// Write this Lease over the version it names.
    Replace(Box<Lease>),
    /// Leave it alone: it is another's until then, unless it changes.
    Wait(Instant),
}

impl Election {
    pub(super) fn new(identity: String, timing: Timing) -> Self {
        Election { identity, timing, seen: None, settled: None }
    }

    /// Takes notice of the Lease, or that there is none.
    pub(super) fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        let was_ours = self.is_ours();
        self.seen = lease.map(|lease| {
            let same = self.seen.take().filter(|seen| version(&seen.lease) == version(&lease));
            Seen { since: same.map_or(now, |seen| seen.since), lease }
        });
        if !self.is_ours() {
            self.settled = None;
        } else if !was_ours && self.is_created() {
            // Counted from when it is seen: the answer to the creation may have been lost.
            self.settled = Some(now + self.timing.settling());
        }
    }

    /// Returns when this process may write, if it waits as the creator of the Lease.
    pub(super) fn settles(&self, now: Instant) -> Option<Instant> {
        self.settled.filter(|settled| *settled > now)
    }

    /// Returns true if the Lease says that its creator waits.
    fn is_created(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| self.duration_of(&seen.lease) > self.timing.lease)
    }

    /// Whether the Lease is ours as far as we know.
    pub(super) fn is_ours(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| holder(&seen.lease) == self.identity)
    }

    /// Who holds it; empty if nobody does.
    pub(super) fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| holder(&seen.lease))
    }

    /// What to do now; `wall` goes into the Lease for people to read. `leads` is whether this process has the right to write
    /// by a Lease: it need not wait when it makes that again which somebody deleted.
    pub(super) fn step(&self, now: Instant, wall: MicroTime, leads: bool) -> Step {
        let Some(seen) = &self.seen else {
            let duration = if leads { self.timing.lease } else { self.timing.settling() };
            return Step::Create(Box::new(self.claimed(Lease::default(), wall, duration)));
        };
        let free = seen.since + self.duration_of(&seen.lease);
        if holder(&seen.lease).is_empty() || self.is_ours() || free <= now {
            let duration = if self.settles(now).is_some() { self.timing.settling() } else { self.timing.lease };
            Step::Replace(Box::new(self.claimed(seen.lease.clone(), wall, duration)))
        } else {
            Step::Wait(free)
        }
    }

    /// The Lease as it is given back, if it is ours and its creator need not wait any more.
    pub(super) fn given_back(&self, now: Instant, wall: MicroTime) -> Option<Lease> {
        let may = self.is_ours() && self.settles(now).is_none();
        let mut lease = self.seen.as_ref().filter(|_| may)?.lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        // Zero is not allowed.
        spec.lease_duration_seconds = Some(1);
        spec.acquire_time = Some(wall.clone());
        spec.renew_time = Some(wall);
        Some(lease)
    }

    /// The Lease as ours, for so long. What else stands in it stays.
    fn claimed(&self, mut lease: Lease, wall: MicroTime, duration: Duration) -> Lease {
        let renewed = holder(&lease) == self.identity;
        let spec = lease.spec.get_or_insert_default();
        if !renewed {
            spec.acquire_time = Some(wall.clone());
            // Counts changes of hands, so not the first.
            spec.lease_transitions = Some(if self.seen.is_none() { 0 } else { transitions(spec).saturating_add(1) });
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(wall);
        lease
    }

    /// For how long its holder has asked for it.
    fn duration_of(&self, lease: &Lease) -> Duration {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        seconds.map_or(self.timing.lease, |seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)))
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn version(lease: &Lease) -> Option<&str> {
    lease.metadata.resource_version.as_deref()
}

fn transitions(spec: &LeaseSpec) -> i32 {
    spec.lease_transitions.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn wall(second: i64) -> MicroTime {
        MicroTime(Timestamp::from_second(second).expect("in range"))
    }

    fn lease(version: u32, holder: &str) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.resource_version = Some(version.to_string());
        lease.metadata.labels = Some([("who".into(), "someone".into())].into());
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(holder.into());
        spec.lease_duration_seconds = Some(15);
        spec.lease_transitions = Some(7);
        spec.acquire_time = Some(wall(1));
        spec.renew_time = Some(wall(2));
        spec.strategy = Some("OldestEmulationVersion".into());
        lease
    }

    fn election(seen: Option<Lease>, now: Instant) -> Election {
        let mut election = Election::new("we".into(), Timing::default());
        election.observe(seen, now);
        election
    }

    fn replaced(step: Step) -> Lease {
        let Step::Replace(lease) = step else { panic!("{step:?}") };
        *lease
    }

    #[test]
    fn a_lease_that_is_not_there_is_made() {
        let Step::Create(lease) = election(None, Instant::now()).step(Instant::now(), wall(9), false) else {
            panic!("no lease")
        };
        let expected = LeaseSpec {
            holder_identity: Some("we".into()),
            lease_duration_seconds: Some(25),
            lease_transitions: Some(0),
            acquire_time: Some(wall(9)),
            renew_time: Some(wall(9)),
            ..LeaseSpec::default()
        };
        assert_eq!(lease.spec, Some(expected));
    }

    #[test]
    fn deleted_lease_of_the_leader_is_made_again_without_a_wait() {
        let Step::Create(lease) = election(None, Instant::now()).step(Instant::now(), wall(9), true) else {
            panic!("no lease")
        };
        assert_eq!(lease.spec.and_then(|spec| spec.lease_duration_seconds), Some(15));
    }

    #[test]
    fn our_lease_is_renewed_over_the_version_that_was_seen_and_nothing_else_changes() {
        let now = Instant::now();
        let renewed = replaced(election(Some(lease(3, "we")), now).step(now, wall(9), false));
        let mut expected = lease(3, "we");
        expected.spec.get_or_insert_default().renew_time = Some(wall(9));
        assert_eq!(renewed, expected);
    }

    #[test]
    fn anothers_lease_is_left_alone_until_it_has_not_changed_for_as_long_as_it_says() {
        let begin = Instant::now();
        let mut election = election(Some(lease(3, "other")), begin);
        assert_eq!(election.step(begin + 14 * SECOND, wall(9), false), Step::Wait(begin + 15 * SECOND));
        // Seen again, unchanged.
        election.observe(Some(lease(3, "other")), begin + 14 * SECOND);
        assert_eq!(election.step(begin + 14 * SECOND, wall(9), false), Step::Wait(begin + 15 * SECOND));
        // Changed.
        election.observe(Some(lease(4, "other")), begin + 14 * SECOND);
        assert_eq!(election.step(begin + 28 * SECOND, wall(9), false), Step::Wait(begin + 29 * SECOND));
        let taken = replaced(election.step(begin + 29 * SECOND, wall(9), false));
        let spec = taken.spec.expect("a spec");
        assert_eq!(taken.metadata, lease(4, "").metadata, "its version and labels");
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("we"), Some(8)));
        assert_eq!((spec.acquire_time, spec.renew_time), (Some(wall(9)), Some(wall(9))));
    }

    #[test]
    fn a_lease_that_was_given_back_is_taken_at_once() {
        let now = Instant::now();
        let taken = replaced(election(Some(lease(3, "")), now).step(now, wall(9), false));
        assert_eq!(taken.spec.and_then(|spec| spec.lease_transitions), Some(8));
    }

    #[test]
    fn a_holder_of_another_period_is_given_its_own() {
        let now = Instant::now();
        let mut long = lease(3, "other");
        long.spec.get_or_insert_default().lease_duration_seconds = Some(60);
        assert_eq!(election(Some(long.clone()), now).step(now, wall(9), false), Step::Wait(now + 60 * SECOND));
        long.spec.get_or_insert_default().lease_duration_seconds = None;
        assert_eq!(election(Some(long.clone()), now).step(now, wall(9), false), Step::Wait(now + 15 * SECOND));
        long.spec = None;
        replaced(election(Some(long), now).step(now, wall(9), false));
    }

    #[test]
    fn what_is_given_back_is_ours_and_nobodys() {
        let now = Instant::now();
        let returned = election(Some(lease(3, "we")), now).given_back(now, wall(9)).expect("it is ours");
        let spec = returned.spec.expect("a spec");
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
        assert_eq!((spec.lease_transitions, returned.metadata.resource_version.as_deref()), (Some(7), Some("3")));
        assert_eq!(election(Some(lease(3, "other")), now).given_back(now, wall(9)), None);
        assert_eq!(election(None, now).given_back(now, wall(9)), None);
    }
}
