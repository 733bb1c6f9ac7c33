//! [`WaitReports`]: reports the reason why a Service waits for an address, as an Event, in the log and in the metrics.

use std::time::SystemTime;

use libcalico::api::ObjectKey;
use serde_json::json;
use tokio::time::Instant;

use super::request::cut;
use super::service::LoadBalancerService;
use super::wait_reason::Wait;
use super::waiting::{PAUSE, Tell, WaitingServices};
use crate::context::Context;
use crate::controllers::cached::SharedCache;
use crate::events::{self, EventPublisher, EventType};
use crate::leader::Leadership;
use crate::runtime::{NextReconcile, Queue};

/// Maximum number of characters of an Event's text. Readers of Events may accept only 1 KiB, and a text may contain the
/// status messages of several pools.
pub(super) const MAX_TEXT: usize = 1000;

pub(super) struct WaitReports {
    pub(super) kubernetes: kube::Client,
    pub(super) leadership: Leadership,
    pub(super) events: EventPublisher,
    pub(super) waiting: SharedCache<WaitingServices>,
}

/// Adds the metric of waiting Services to those of the process. A controller does so when it is created and not when it
/// works, because a standby does not work, and publishes 0.
pub(super) fn publish(context: &Context, waiting: &SharedCache<WaitingServices>) {
    let metric = waiting.lock().metric();
    if let Err(error) = context.metrics.register(metric) {
        tracing::error!(%error, "cannot publish the number of waiting Services: another controller does");
    }
}

impl WaitReports {
    pub(super) fn new(context: &Context, waiting: SharedCache<WaitingServices>) -> Self {
        WaitReports {
            kubernetes: context.kubernetes.clone(),
            leadership: context.leadership.clone(),
            events: EventPublisher::default(),
            waiting,
        }
    }

    /// Records that a Service waits, or does not, and reports a new reason. Returns the time of the next look at the
    /// Service.
    pub(super) async fn report(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        wait: Option<&Wait>,
    ) -> NextReconcile {
        let tell = self.record(key, service, wait);
        match wait {
            Some(wait) => self.tell(key, service, wait, tell).await,
            None => NextReconcile::AwaitChange,
        }
    }

    /// Records that a Service no longer exists, or has another type.
    pub(super) fn end(&self, key: &ObjectKey) {
        self.waiting.lock().set(key, "", None, Instant::now());
    }

    /// Records that a Service waits, or does not.
    pub(super) fn record(&self, key: &ObjectKey, service: &LoadBalancerService, wait: Option<&Wait>) -> Tell {
        let mut waiting = self.waiting.lock();
        // Under the lock, so that no entry of a former leader comes after `reset_on_standby`.
        if !self.leadership.holds() {
            return Tell::Nothing;
        }
        waiting.set(key, &service.uid, wait, Instant::now())
    }

    /// Takes the step that [`WaitReports::record`] returned. Returns the time of the next look at the Service.
    pub(super) async fn tell(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        wait: &Wait,
        tell: Tell,
    ) -> NextReconcile {
        match tell {
            Tell::Nothing => return NextReconcile::AwaitChange,
            Tell::At(due) => return NextReconcile::After(due.saturating_duration_since(Instant::now())),
            Tell::Post => {}
        }
        self.waiting.lock().posting(key, Instant::now());
        let (reason, cause) = (wait.reason.label(), wait.cause.as_str());
        tracing::warn!(service = %key, reason, cause, "a LoadBalancer Service waits for an address");
        let object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": key.namespace,
            "name": key.name,
            "uid": service.uid,
        });
        let text = cut(&wait.text, MAX_TEXT);
        let event = events::event(&object, EventType::Warning, wait.reason.event(), &text, SystemTime::now());
        let event = events::named_by(event, &service.uid, &[wait.reason.event(), wait.text.as_str()]);
        if self.events.write(&self.kubernetes, self.leadership.holds(), event).await {
            self.waiting.lock().told(key, wait);
            return NextReconcile::AwaitChange;
        }
        NextReconcile::After(PAUSE)
    }
}

/// Each time this replica loses the right to write, sets the metric to 0 and returns the waiting Services to the queue,
/// for the time at which this replica writes again. Never returns.
pub(super) async fn reset_on_standby(
    mut right: Leadership,
    waiting: SharedCache<WaitingServices>,
    queue: Queue<ObjectKey>,
) {
    loop {
        right.gained().await;
        right.lost().await;
        let keys = waiting.lock().take_all();
        keys.into_iter().for_each(|key| queue.add(key));
    }
}
