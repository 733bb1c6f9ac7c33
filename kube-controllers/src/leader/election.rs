//! Decides the next step of a candidate from the state of the Lease. This module does no I/O, and
//! clocks are arguments.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::config::Timing;

#[derive(Debug)]
pub(super) struct Election {
    identity: String,
    timing: Timing,
    observed: Option<ObservedLease>,
    /// True if this process has seen a holder of the Lease, also if the Lease has been deleted.
    pub(super) was_held: bool,
    access: LeaseAccess,
    /// The end of this process's wait before its first write, if the process holds a Lease with
    /// which it has to wait.
    first_write_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum LeaseAccess {
    NeverRefused,
    Refused,
    /// The role refused the Lease before, and has allowed it since this time.
    AllowedSince(Instant),
}

/// The Lease as it was last read or written.
#[derive(Debug, Clone)]
struct ObservedLease {
    lease: Lease,
    /// The time at which this version was first observed.
    since: Instant,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ElectionStep {
    Create(Box<Lease>),
    /// Replace the version that this Lease names.
    Replace(Box<Lease>),
    /// Leave the Lease alone: another replica holds it until this time, unless the Lease changes.
    Wait(Instant),
}

impl Election {
    pub(super) fn new(identity: String, timing: Timing) -> Self {
        let access = LeaseAccess::NeverRefused;
        Election {
            identity,
            timing,
            observed: None,
            was_held: false,
            access,
            first_write_at: None,
        }
    }

    /// Records that the role refuses the Lease. A wait in progress starts over, because another
    /// replica may be writing without the Lease.
    pub(super) fn refused(&mut self) {
        (self.access, self.first_write_at) = (LeaseAccess::Refused, None);
    }

    pub(super) fn observe(&mut self, lease: Option<Lease>, now: Instant) {
        if matches!(self.access, LeaseAccess::Refused) {
            self.access = LeaseAccess::AllowedSince(now);
        }
        self.observed = lease.map(|lease| {
            let same = self
                .observed
                .take()
                .filter(|observed| version(&observed.lease) == version(&lease));
            ObservedLease {
                since: same.map_or(now, |observed| observed.since),
                lease,
            }
        });
        self.was_held |= !self.holder().is_empty();
        // The wait begins when this process first sees itself as the holder: in the response to its
        // write of the Lease or, if that was lost, in a later read.
        let first_write_at = self
            .first_write_at
            .unwrap_or(now + self.timing.first_write_delay());
        self.first_write_at =
            (self.is_held_by_self() && self.shows_waiting_holder()).then_some(first_write_at);
    }

    /// Returns the end of the wait, if this process has a Lease but may not write yet.
    pub(super) fn waits_until(&self, now: Instant) -> Option<Instant> {
        self.first_write_at
            .filter(|first_write_at| *first_write_at > now)
    }

    /// Returns true if the duration in the Lease shows that its holder waits before it writes.
    fn shows_waiting_holder(&self) -> bool {
        self.observed
            .as_ref()
            .is_some_and(|observed| self.duration_of(&observed.lease) > self.timing.lease)
    }

    pub(super) fn is_held_by_self(&self) -> bool {
        self.observed
            .as_ref()
            .is_some_and(|observed| holder(&observed.lease) == self.identity)
    }

    /// Returns the holder's identity; empty if there is no holder.
    pub(super) fn holder(&self) -> &str {
        self.observed
            .as_ref()
            .map_or("", |observed| holder(&observed.lease))
    }

    /// Returns the next step. `wall` is the time that is written to the Lease. `leads` is true if
    /// this process has the right to write by a Lease. Such a process creates a deleted Lease
    /// again, or renews one after a refusal, without a wait: no other replica writes without a
    /// Lease before that right has ended.
    pub(super) fn step(&self, now: Instant, wall: MicroTime, leads: bool) -> ElectionStep {
        let Some(observed) = &self.observed else {
            let duration = if leads {
                self.timing.lease
            } else {
                self.timing.first_write_delay()
            };
            return ElectionStep::Create(Box::new(self.held_by_self(
                Lease::default(),
                wall,
                duration,
            )));
        };
        let free = observed.since + self.duration_of(&observed.lease);
        let is_held = !holder(&observed.lease).is_empty();
        if !is_held || self.is_held_by_self() || free <= now {
            let waits = self.waits_until(now).is_some()
                || (!leads && self.was_refused_recently(now))
                || (!is_held && !self.was_released_recently(&observed.lease, &wall));
            let duration = if waits {
                self.timing.first_write_delay()
            } else {
                self.timing.lease
            };
            ElectionStep::Replace(Box::new(self.held_by_self(
                observed.lease.clone(),
                wall,
                duration,
            )))
        } else {
            ElectionStep::Wait(free)
        }
    }

    /// Returns true if `lease`, which has no holder, was released less than `renew_deadline` ago.
    /// No replica can be writing without a Lease then: the role allowed Leases at the release, and
    /// a replica writes without a Lease only after the role has forbidden Leases for longer than
    /// `renew_deadline`. The time in the Lease is from another clock; a clock that differs by more
    /// than a few seconds normally causes an unnecessary wait.
    fn was_released_recently(&self, lease: &Lease, wall: &MicroTime) -> bool {
        let Some(released) = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.renew_time.as_ref())
        else {
            return false;
        };
        wall.0.duration_since(released.0).unsigned_abs() <= self.timing.renew_deadline
    }

    /// Returns true if another replica may be writing, or finishing a write, without a Lease
    /// because the role refused it. Returns false once the role has allowed the Lease for as long
    /// as the creator of a Lease waits.
    fn was_refused_recently(&self, now: Instant) -> bool {
        match self.access {
            LeaseAccess::NeverRefused => false,
            LeaseAccess::Refused => true,
            LeaseAccess::AllowedSince(since) => now < since + self.timing.first_write_delay(),
        }
    }

    /// Returns the Lease without a holder, if this process holds the Lease and has no wait left,
    /// and the role has not refused the Lease recently. Otherwise returns `None`, and the Lease is
    /// kept, because the next replica takes a released Lease without waiting.
    pub(super) fn released(&self, now: Instant, wall: MicroTime) -> Option<Lease> {
        let may = self.is_held_by_self()
            && self.waits_until(now).is_none()
            && !self.was_refused_recently(now);
        let mut lease = self.observed.as_ref().filter(|_| may)?.lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        // The API server rejects zero.
        spec.lease_duration_seconds = Some(1);
        spec.acquire_time = Some(wall.clone());
        spec.renew_time = Some(wall);
        Some(lease)
    }

    /// Returns the Lease with this process as the holder for `duration`.
    fn held_by_self(&self, mut lease: Lease, wall: MicroTime, duration: Duration) -> Lease {
        let renewed = holder(&lease) == self.identity;
        let spec = lease.spec.get_or_insert_default();
        if !renewed {
            spec.acquire_time = Some(wall.clone());
            // The field counts changes of the holder, so the first holder does not count.
            let before = spec.lease_transitions.unwrap_or(0);
            spec.lease_transitions = Some(if self.observed.is_none() {
                0
            } else {
                before.saturating_add(1)
            });
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(wall);
        lease
    }

    /// Returns the duration that the Lease states, or the default if it states none.
    fn duration_of(&self, lease: &Lease) -> Duration {
        let seconds = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds);
        seconds.map_or(self.timing.lease, |seconds| {
            Duration::from_secs(seconds.try_into().unwrap_or(0))
        })
    }
}

fn holder(lease: &Lease) -> &str {
    lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref())
        .unwrap_or_default()
}

fn version(lease: &Lease) -> Option<&str> {
    lease.metadata.resource_version.as_deref()
}

#[cfg(test)]
mod tests;
