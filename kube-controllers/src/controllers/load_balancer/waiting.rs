//! [`WaitingServices`]: the Services that wait for an address, and the Events that they have.

use std::collections::BTreeMap;
use std::time::Duration;

use libcalico::api::ObjectKey;
use prometheus::{IntGauge, IntGaugeVec, Opts};
use tokio::time::Instant;

use super::wait_reason::{Wait, WaitReason};

/// Shortest time between two Events of one Service, so that a tenant who changes a request again and again causes few.
pub(super) const PAUSE: Duration = Duration::from_secs(60);

/// The next step for a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    /// Post an Event now.
    Post,
    /// Post no Event: the Service does not wait, or has an Event with this text.
    Nothing,
    /// Look at the Service again at this time, because its latest Event is younger than [`PAUSE`].
    At(Instant),
}

#[derive(Debug)]
struct Waiting {
    uid: String,
    reason: WaitReason,
    /// Reason and text of the latest Event of this wait.
    told: Option<(WaitReason, String)>,
}

#[derive(Debug)]
pub(super) struct WaitingServices {
    services: BTreeMap<ObjectKey, Waiting>,
    /// The times of the latest Events, also of Services that no longer wait. Older ones than [`PAUSE`] are removed.
    posts: BTreeMap<ObjectKey, Instant>,
    /// The number of Services by reason.
    gauges: IntGaugeVec,
}

impl Default for WaitingServices {
    fn default() -> Self {
        let help = "Services of type LoadBalancer that wait for an address, by reason.";
        let opts = Opts::new("kube_controllers_load_balancer_waiting_services", help);
        let gauges = IntGaugeVec::new(opts, &["reason"]).expect("a constant name and a constant label");
        for reason in WaitReason::ALL {
            gauges.with_label_values(&[reason.label()]).set(0);
        }
        WaitingServices { services: BTreeMap::new(), posts: BTreeMap::new(), gauges }
    }
}

impl WaitingServices {
    /// Returns the metric, which has each reason from the start.
    pub(super) fn metric(&self) -> IntGaugeVec {
        self.gauges.clone()
    }

    /// Records that a Service waits, or with `None` that it does not. Returns the next step.
    pub(super) fn set(&mut self, key: &ObjectKey, uid: &str, wait: Option<&Wait>, now: Instant) -> Tell {
        let Some(wait) = wait else {
            self.remove(key);
            return Tell::Nothing;
        };
        self.gauge(wait.reason).inc();
        let told = self.remove(key).filter(|before| before.uid == uid).and_then(|before| before.told);
        let is_told = told.as_ref().is_some_and(|(reason, text)| *reason == wait.reason && *text == wait.text);
        self.services.insert(key.clone(), Waiting { uid: uid.to_owned(), reason: wait.reason, told });
        match self.posts.get(key).map(|posted| *posted + PAUSE) {
            _ if is_told => Tell::Nothing,
            Some(due) if due > now => Tell::At(due),
            _ => Tell::Post,
        }
    }

    /// Records that an Event is about to be posted.
    pub(super) fn posting(&mut self, key: &ObjectKey, now: Instant) {
        self.posts.retain(|_, posted| *posted + PAUSE > now);
        self.posts.insert(key.clone(), now);
    }

    /// Records that the Service has an Event with this text, if the Service still waits.
    pub(super) fn told(&mut self, key: &ObjectKey, wait: &Wait) {
        if let Some(waiting) = self.services.get_mut(key) {
            waiting.told = Some((wait.reason, wait.text.clone()));
        }
    }

    /// Returns the Services to which an address that another Service released may be assigned.
    pub(super) fn for_a_released_address(&self) -> impl Iterator<Item = &ObjectKey> {
        let waiting = self.services.iter().filter(|(_, waiting)| waiting.reason.may_end_with_a_release());
        waiting.map(|(key, _)| key)
    }

    /// Removes all Services, and returns them. The times of Events stay.
    pub(super) fn take_all(&mut self) -> Vec<ObjectKey> {
        let keys: Vec<ObjectKey> = self.services.keys().cloned().collect();
        keys.iter().for_each(|key| _ = self.remove(key));
        keys
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Waiting> {
        let before = self.services.remove(key)?;
        self.gauge(before.reason).dec();
        Some(before)
    }

    fn gauge(&self, reason: WaitReason) -> IntGauge {
        self.gauges.with_label_values(&[reason.label()])
    }
}
