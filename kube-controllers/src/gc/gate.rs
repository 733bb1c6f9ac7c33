use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use allocation::write_gate::WriteGate;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::world::PassGate;
use crate::context::Context;
use crate::controllers::same_cluster::{confirm, report_wait};
use crate::leader::Leadership;
use crate::same_cluster::SameCluster;
use crate::settings::Settings;

/// The check before each write of garbage collection: this replica may write, the controllers are
/// not stopping, and the datastore has nodes of this cluster. Also limits the request rate.
pub struct LeaderGate {
    leadership: Leadership,
    stop: CancellationToken,
    pacer: Option<RequestPacer>,
    cluster: Option<CommonNodes>,
}

/// The state that tells whether the datastore has nodes of this cluster.
struct CommonNodes {
    cluster: SameCluster,
    settings: watch::Receiver<Arc<Settings>>,
    kubernetes: kube::Client,
}

struct RequestPacer {
    interval: Duration,
    /// The earliest time of the next request.
    next_at: Mutex<Instant>,
}

impl LeaderGate {
    /// Creates a gate that admits `per_second` requests per second, or any number if that is 0.
    pub(super) fn new(leadership: Leadership, stop: CancellationToken, per_second: u32) -> Self {
        let pacer = (per_second > 0).then(|| RequestPacer {
            interval: Duration::from_secs(1) / per_second,
            next_at: Mutex::new(Instant::now()),
        });
        LeaderGate {
            leadership,
            stop,
            pacer,
            cluster: None,
        }
    }

    /// Returns the same gate, closed also while [`SameCluster`] holds deletions.
    pub(super) fn of_same_cluster(self, context: &Context) -> Self {
        let (cluster, settings) = (context.same_cluster.clone(), context.settings.clone());
        LeaderGate {
            cluster: Some(CommonNodes {
                cluster,
                settings,
                kubernetes: context.kubernetes.clone(),
            }),
            ..self
        }
    }
}

impl PassGate for LeaderGate {
    fn is_open(&self) -> bool {
        let is_held = |nodes: &CommonNodes| nodes.cluster.hold(&nodes.settings.borrow()).is_some();
        self.leadership.holds()
            && !self.stop.is_cancelled()
            && !self.cluster.as_ref().is_some_and(is_held)
    }

    async fn pace(&self, requests: usize) {
        if let Some(pacer) = &self.pacer {
            let at = pacer.reserve(u32::try_from(requests).unwrap_or(u32::MAX), Instant::now());
            sleep_until(at).await;
        }
    }

    async fn while_leading<F: Future>(&self, work: F) -> Option<F::Output> {
        self.leadership.while_held(work).await
    }

    async fn report_wait(&self) {
        if let Some(nodes) = &self.cluster {
            let settings = nodes.settings.borrow().clone();
            report_wait(
                &nodes.cluster,
                &settings,
                &self.leadership,
                &nodes.kubernetes,
            )
            .await;
        }
    }
}

impl RequestPacer {
    /// Reserves `requests` requests at the time `now`. Returns the time at which they may be sent.
    fn reserve(&self, requests: u32, now: Instant) -> Instant {
        let mut next_at = self.next_at.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (*next_at).max(now);
        *next_at = at + self.interval.saturating_mul(requests);
        at
    }
}

impl WriteGate for LeaderGate {
    async fn admit(&self, writes: usize) -> bool {
        self.pace(writes).await;
        if let Some(CommonNodes {
            cluster,
            kubernetes,
            ..
        }) = &self.cluster
            && self.is_open()
            && confirm(cluster, kubernetes).await.is_some()
        {
            return false;
        }
        // Checked after the waits, which may have outlasted the Lease.
        self.is_open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::{kubernetes_with_node, settings};

    #[tokio::test]
    async fn gate_closes_on_a_locked_datastore_and_on_stop() {
        let (lock, unlocked) = tokio::sync::watch::channel(true);
        let stop = CancellationToken::new();
        let gate = LeaderGate::new(
            Leadership::always().while_unlocked(unlocked),
            stop.clone(),
            0,
        );
        assert!(gate.admit(1).await);
        lock.send_replace(false);
        assert!(!gate.admit(1).await);
        lock.send_replace(true);
        assert!(gate.admit(1).await);
        stop.cancel();
        assert!(!gate.admit(1).await);
    }

    #[tokio::test(start_paused = true)]
    async fn admitted_requests_are_spaced_at_the_configured_rate() {
        let gate = LeaderGate::new(Leadership::always(), CancellationToken::new(), 10);
        let begin = Instant::now();
        for _ in 0..11 {
            assert!(gate.admit(1).await);
        }
        assert_eq!(begin.elapsed(), Duration::from_secs(1));
        gate.admit(10).await;
        gate.admit(1).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(2100));
    }

    #[tokio::test]
    async fn gate_is_closed_without_leadership() {
        let (_sender, term) = tokio::sync::watch::channel(crate::leader::LeadershipTerm::No);
        let gate = LeaderGate::new(Leadership::new(term), CancellationToken::new(), 0);
        assert!(!gate.admit(1).await);
    }

    /// The watch has not noticed that the API server now is another one.
    #[tokio::test]
    async fn gate_closes_if_the_api_server_lacks_the_node_that_it_and_the_datastore_had() {
        for (node, is_admitted) in [("a", true), ("x", false)] {
            let cluster = SameCluster::default();
            cluster.await_nodes();
            cluster.observe(None, Some("a"), 1);
            let (_sender, settings) = watch::channel(Arc::new(settings()));
            let (kubernetes, _) = kubernetes_with_node(node);
            let gate = LeaderGate::new(Leadership::always(), CancellationToken::new(), 0);
            let gate = LeaderGate {
                cluster: Some(CommonNodes {
                    cluster,
                    settings,
                    kubernetes,
                }),
                ..gate
            };
            assert_eq!(
                (gate.is_open(), gate.admit(1).await),
                (true, is_admitted),
                "{node}"
            );
            assert_eq!(gate.is_open(), is_admitted, "a refusal is remembered");
        }
    }
}
