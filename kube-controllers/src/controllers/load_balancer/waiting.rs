//! [`WaitingServices`]: the Services that wait for an address, and the Events that they have.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use libcalico::api::ObjectKey;
use node_process::metrics;
use prometheus::{IntGauge, IntGaugeVec};
use time::OffsetDateTime;
use tokio::time::Instant;

use super::wait_reason::{Wait, WaitReason};

/// Shortest time between two Events of one Service, so that a tenant who changes a request again
/// and again causes few.
pub(super) const EVENT_INTERVAL: Duration = Duration::from_secs(60);

/// The next step for a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventStep {
    /// Log the reason, and post an Event.
    Report,
    /// Post the Event that has not been created so far. The reason is in the log.
    PostAgain,
    /// Post no Event: the Service does not wait, has an Event with this text, or is in a namespace
    /// that refuses Events.
    None,
    /// Reconcile the Service again at this time, because its latest Event is younger than
    /// [`EVENT_INTERVAL`].
    At(Instant),
}

#[derive(Debug)]
struct WaitingService {
    uid: String,
    reason: WaitReason,
    /// The order in which the Services began to wait.
    since: u64,
    /// The latest report of this wait.
    report: Option<Report>,
}

#[derive(Debug)]
struct Report {
    reason: WaitReason,
    text: String,
    /// The time of the next attempt to create the Event; `None` if the Event exists.
    next_attempt: Option<Instant>,
}

metrics! {
    struct WaitingMetrics {
        /// Services of type LoadBalancer that wait for an address, by reason.
        services: IntGaugeVec = "kube_controllers_load_balancer_waiting_services"["reason"],
    }
}

#[derive(Debug)]
pub(super) struct WaitingServices {
    services: BTreeMap<ObjectKey, WaitingService>,
    /// The number of Services that have begun to wait.
    begun: u64,
    /// The times of the latest Events, also of Services that no longer wait, without those before
    /// [`EVENT_INTERVAL`].
    posts: BTreeMap<ObjectKey, Instant>,
    /// The number of Services by reason.
    gauges: IntGaugeVec,
}

impl Default for WaitingServices {
    fn default() -> Self {
        let gauges = WaitingMetrics::new().services;
        for reason in WaitReason::ALL {
            gauges.with_label_values(&[reason.label()]).set(0);
        }
        WaitingServices {
            services: BTreeMap::new(),
            begun: 0,
            posts: BTreeMap::new(),
            gauges,
        }
    }
}

impl WaitingServices {
    /// Returns the metric, which has each reason from the start.
    pub(super) fn metric(&self) -> IntGaugeVec {
        self.gauges.clone()
    }

    /// Records that a Service waits, or with `None` that it does not. Returns the next step.
    pub(super) fn set(
        &mut self,
        key: &ObjectKey,
        uid: &str,
        wait: Option<&Wait>,
        now: Instant,
    ) -> EventStep {
        let Some(wait) = wait else {
            self.remove(key);
            return EventStep::None;
        };
        self.gauge(wait.reason).inc();
        let before = self.remove(key).filter(|before| before.uid == uid);
        let since = before.as_ref().map_or(self.begun, |before| before.since);
        self.begun += u64::from(before.is_none());
        let report = before.and_then(|before| before.report);
        let same = report
            .as_ref()
            .filter(|report| report.reason == wait.reason && report.text == wait.text);
        let due = self.posts.get(key).map(|posted| *posted + EVENT_INTERVAL);
        let step = match (same.map(|same| same.next_attempt), due) {
            (Some(None), _) => EventStep::None,
            (Some(Some(next)), _) if next > now => EventStep::None,
            (_, Some(due)) if due > now => EventStep::At(due),
            (Some(Some(_)), _) => EventStep::PostAgain,
            (None, _) => EventStep::Report,
        };
        self.services.insert(
            key.clone(),
            WaitingService {
                uid: uid.to_owned(),
                reason: wait.reason,
                since,
                report,
            },
        );
        step
    }

    /// Records that an Event is about to be posted.
    pub(super) fn posting(&mut self, key: &ObjectKey, now: Instant) {
        self.posts
            .retain(|_, posted| *posted + EVENT_INTERVAL > now);
        self.posts.insert(key.clone(), now);
    }

    /// Records that the Service has an Event with this text, or the time of the next attempt to
    /// create it, if the Service still waits.
    pub(super) fn reported(&mut self, key: &ObjectKey, wait: &Wait, next_attempt: Option<Instant>) {
        if let Some(waiting) = self.services.get_mut(key) {
            waiting.report = Some(Report {
                reason: wait.reason,
                text: wait.text.clone(),
                next_attempt,
            });
        }
    }

    /// Returns the Services to which an address that another Service released may be assigned, each
    /// with the order in which it began to wait.
    pub(super) fn for_a_released_address(&self) -> impl Iterator<Item = (&ObjectKey, u64)> {
        let waiting = self
            .services
            .iter()
            .filter(|(_, waiting)| waiting.reason.may_end_with_a_release());
        waiting.map(|(key, waiting)| (key, waiting.since))
    }

    /// Returns true if an address that another Service releases may be assigned to this Service.
    pub(super) fn waits_for_a_release(&self, key: &ObjectKey) -> bool {
        self.services
            .get(key)
            .is_some_and(|waiting| waiting.reason.may_end_with_a_release())
    }

    /// Removes all Services, and returns them. The times of Events stay.
    pub(super) fn take_all(&mut self) -> Vec<ObjectKey> {
        let keys: Vec<ObjectKey> = self.services.keys().cloned().collect();
        keys.iter().for_each(|key| _ = self.remove(key));
        keys
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<WaitingService> {
        let before = self.services.remove(key)?;
        self.gauge(before.reason).dec();
        Some(before)
    }

    fn gauge(&self, reason: WaitReason) -> IntGauge {
        self.gauges.with_label_values(&[reason.label()])
    }
}

/// Returns the addresses in `cooling` whose cooldown ends after `begin`, with that end, the
/// earliest first. Each address in `cooling` is with the time of its release.
pub(super) fn cooldown_ends(
    cooling: &[(IpAddr, OffsetDateTime)],
    cooldown_seconds: i64,
    begin: OffsetDateTime,
) -> Vec<(IpAddr, OffsetDateTime)> {
    // The release has whole seconds, and an address is free only after the last one.
    let cooldown = time::Duration::seconds(cooldown_seconds.max(0).saturating_add(1));
    let end =
        |(ip, released): &(IpAddr, OffsetDateTime)| Some((*ip, released.checked_add(cooldown)?));
    let mut ends: Vec<_> = cooling
        .iter()
        .filter_map(end)
        .filter(|(_, end)| *end > begin)
        .collect();
    ends.sort_by_key(|(ip, end)| (*end, *ip));
    ends
}
