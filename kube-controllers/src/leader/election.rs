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
    /// Some replica has held the Lease since this process began.
    was_held: bool,
    role: Role,
    /// The end of this process's wait, where it has a Lease by which it may not write yet.
    settled: Option<Instant>,
}

/// Right to the Lease, as far as this process was told.
#[derive(Debug, Clone, Copy)]
enum Role {
    /// The role has never refused it.
    Allows,
    /// The role refused it last.
    Refuses,
    /// The role refused it before, and has allowed it since then.
    AllowsSince(Instant),
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
        Election { identity, timing, seen: None, was_held: false, role: Role::Allows, settled: None }
    }

    /// Takes notice that the role refuses the Lease. A wait that is under way begins anew: another replica may write without
    /// the Lease by now, or still.
    pub(super) fn refused(&mut self) {
        (self.role, self.settled) = (Role::Refuses, None);
    }

    /// Takes notice of the Lease, or that there is none.
    pub(super) fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        if matches!(self.role, Role::Refuses) {
            self.role = Role::AllowsSince(now);
        }
        self.seen = lease.map(|lease| {
            let same = self.seen.take().filter(|seen| version(&seen.lease) == version(&lease));
            Seen { since: same.map_or(now, |seen| seen.since), lease }
        });
        self.was_held |= !self.holder().is_empty();
        // Counted from when it is seen: the answer to the write may have been lost.
        let settled = self.settled.unwrap_or(now + self.timing.settling());
        self.settled = (self.is_ours() && self.says_that_holder_waits()).then_some(settled);
    }

    /// Returns when this process may write, if it has a Lease by which it may not write yet.
    pub(super) fn waits_until(&self, now: Instant) -> Option<Instant> {
        self.settled.filter(|settled| *settled > now)
    }

    /// Returns true if the Lease says that its holder waits before it writes.
    fn says_that_holder_waits(&self) -> bool {
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

    /// Returns true if some replica has held the Lease since this process began, also if the Lease is gone by now.
    pub(super) fn was_held(&self) -> bool {
        self.was_held
    }

    /// Returns the next step; `wall` is for the Lease, as the time that people read. `leads`: this process has the right to write
    /// by a Lease, so that it makes a deleted Lease again, or renews one after a refusal, without a wait: no replica writes
    /// without a Lease before this right is over.
    pub(super) fn step(&self, now: Instant, wall: MicroTime, leads: bool) -> Step {
        let Some(seen) = &self.seen else {
            let duration = if leads { self.timing.lease } else { self.timing.settling() };
            return Step::Create(Box::new(self.claimed(Lease::default(), wall, duration)));
        };
        let free = seen.since + self.duration_of(&seen.lease);
        let is_held = !holder(&seen.lease).is_empty();
        if !is_held || self.is_ours() || free <= now {
            let waits = self.waits_until(now).is_some()
                || (!leads && self.was_refused_lately(now))
                || (!is_held && !self.was_given_back_lately(&seen.lease, &wall));
            let duration = if waits { self.timing.settling() } else { self.timing.lease };
            Step::Replace(Box::new(self.claimed(seen.lease.clone(), wall, duration)))
        } else {
            Step::Wait(free)
        }
    }

    /// Returns true if no replica can write without a Lease although nobody holds this one: the role has allowed Leases when
    /// the last holder gave it back, and a replica writes without one only when the role forbade them for longer. The
    /// time in the Lease is by another clock; one that differs by more than a few seconds costs a wait.
    fn was_given_back_lately(&self, lease: &Lease, wall: &MicroTime) -> bool {
        let Some(given_back) = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()) else { return false };
        wall.0.duration_since(given_back.0).unsigned_abs() <= self.timing.renew_deadline
    }

    /// Returns true if another replica may write without a Lease because the role refused it, or may have begun a write: not
    /// when the role has allowed the Lease for as long as the creator of one waits.
    fn was_refused_lately(&self, now: Instant) -> bool {
        match self.role {
            Role::Allows => false,
            Role::Refuses => true,
            Role::AllowsSince(since) => now < since + self.timing.settling(),
        }
    }

    /// Returns the Lease as it is given back, if it is ours and need not be waited for any more: the next replica takes what is
    /// given back without a wait.
    pub(super) fn given_back(&self, now: Instant, wall: MicroTime) -> Option<Lease> {
        let may = self.is_ours() && self.waits_until(now).is_none() && !self.was_refused_lately(now);
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
mod tests;
