//! [`WaitReports`]: reports the reason why a Service waits for an address, as an Event, in the log
//! and in the metrics.

use std::net::IpAddr;
use std::time::SystemTime;

use libcalico::api::ObjectKey;
use serde_json::json;
use tokio::time::Instant;

use super::request::cut;
use super::service::LoadBalancerService;
use super::wait_reason::Wait;
use super::waiting::{EVENT_INTERVAL, EventStep, WaitingServices};
use crate::context::Context;
use crate::controllers::cached::SharedCache;
use crate::events::{self, EventPublisher, EventType, Posted};
use crate::leader::Leadership;
use crate::runtime::Queue;

/// Maximum number of characters of an Event's text. Readers of Events may accept only 1 KiB, and a
/// text may contain the status messages of several pools.
pub(super) const MAX_TEXT: usize = 1000;

pub(super) struct WaitReports {
    pub(super) kubernetes: kube::Client,
    pub(super) leadership: Leadership,
    pub(super) events: EventPublisher,
    pub(super) waiting: SharedCache<WaitingServices>,
    /// The queue of the Services. A Service whose Event has to wait returns to the queue, also if
    /// its reconcile fails: the result of a failed reconcile has no time.
    pub(super) queue: Queue<ObjectKey>,
}

/// Adds the metric of waiting Services to those of the process. A controller does so when it is
/// created and not when it works, because a standby does not work, and publishes 0.
pub(super) fn publish(context: &Context, waiting: &SharedCache<WaitingServices>) {
    let metric = waiting.lock().metric();
    if let Err(error) = context.metrics.register(metric) {
        tracing::error!(
            %error, "cannot publish the number of waiting Services: another controller does",
        );
    }
}

impl WaitReports {
    pub(super) fn new(
        context: &Context,
        waiting: SharedCache<WaitingServices>,
        queue: Queue<ObjectKey>,
    ) -> Self {
        WaitReports {
            kubernetes: context.kubernetes.clone(),
            leadership: context.leadership.clone(),
            events: EventPublisher::default(),
            waiting,
            queue,
        }
    }

    /// Records that a Service no longer exists, or has another type.
    pub(super) fn end(&self, key: &ObjectKey) {
        self.waiting.lock().set(key, "", None, Instant::now());
    }

    /// Records that a Service waits, or does not.
    fn record(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        wait: Option<&Wait>,
    ) -> EventStep {
        let mut waiting = self.waiting.lock();
        // Under the lock, so that no entry of a former leader comes after `reset_on_standby`.
        if !self.leadership.holds() {
            return EventStep::None;
        }
        waiting.set(key, &service.uid, wait, Instant::now())
    }

    /// Reports that another program overwrites the addresses in the status of a Service.
    pub(super) async fn report_overwritten(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        ours: &[IpAddr],
    ) {
        let texts = |ips: &[IpAddr]| {
            ips.iter()
                .map(IpAddr::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (ours, others) = (texts(ours), texts(&service.published));
        let text = format!(
            "another program writes [{others}] into status.loadBalancer, where Calico writes \
             [{ours}]; set loadBalancerClass, so that one program serves this Service"
        );
        tracing::warn!(
            service = %key, ours, others,
            "another program overwrites the status of a LoadBalancer Service",
        );
        self.post(key, service, "StatusOverwritten", &text).await;
    }

    /// Creates a warning about a Service.
    async fn post(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        reason: &str,
        text: &str,
    ) -> Posted {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": key.namespace,
            "name": key.name,
            "uid": service.uid,
        });
        let event = events::event(
            &object,
            EventType::Warning,
            reason,
            &cut(text, MAX_TEXT),
            SystemTime::now(),
        );
        let event = events::named_by(event, &service.uid, &[reason, text]);
        self.events
            .create(&self.kubernetes, self.leadership.holds(), event)
            .await
    }

    /// Records that a Service waits, or does not, and reports a new reason. Records before the
    /// first await, so that an address that becomes free meanwhile queues the Service. If the
    /// latest Event of the Service is too young, or an Event cannot be posted, the Service returns
    /// to the queue later, and an Event has the reason of that time.
    pub(super) async fn report(
        &self,
        key: &ObjectKey,
        service: &LoadBalancerService,
        wait: Option<&Wait>,
    ) {
        let step = self.record(key, service, wait);
        let Some(wait) = wait else { return };
        match step {
            EventStep::None => return,
            EventStep::At(due) => {
                self.queue
                    .add_after(key.clone(), due.saturating_duration_since(Instant::now()));
                return;
            }
            EventStep::Report => {
                let (reason, cause) = (wait.reason.label(), wait.cause.as_str());
                tracing::warn!(
                    service = %key, reason, cause, "a LoadBalancer Service waits for an address",
                );
            }
            EventStep::PostAgain => {}
        }
        self.waiting.lock().posting(key, Instant::now());
        match self
            .post(key, service, wait.reason.event(), &wait.text)
            .await
        {
            Posted::Created | Posted::Exists => self.waiting.lock().reported(key, wait, None),
            // The full pass of all Services, every five minutes, posts the Event after this time.
            Posted::Refused { until } => self.waiting.lock().reported(key, wait, Some(until)),
            Posted::Failed => {
                self.waiting
                    .lock()
                    .reported(key, wait, Some(Instant::now()));
                self.queue.add_after(key.clone(), EVENT_INTERVAL);
            }
        }
    }
}

/// Each time this replica loses the right to write, sets the metric to 0 and returns the waiting
/// Services to the queue, for the time at which this replica writes again. Never returns.
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
