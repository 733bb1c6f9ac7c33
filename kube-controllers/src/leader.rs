//! Leader election among the replicas of kube-controllers, by a Lease, as client-go does it.
//!
//! The holder renews the Lease periodically. Another replica takes the Lease when it has not
//! changed for the duration that it states; each replica measures that time with its own clock.
//! Every update names the version that was read, so only one of two competing updates succeeds. The
//! holder stops writing some seconds before another replica may take the Lease.
//!
//! A server may execute a request late, even while the next leader writes. Compare-and-swap makes
//! this safe: each update names the revision that was read, so it changes nothing that another
//! process has written since. So does each deletion, except those of a deleted node's own
//! configurations. Objects are created only if they are missing, and the next leader corrects an
//! object that is created so late.

mod config;
mod election;
mod elector;
mod leadership;
mod leases;

pub use config::{LeaderElectionConfig, Timing, identity, name_of_pod, namespace_of_pod};
pub use leadership::{Deadline, Leadership, LeadershipTerm, MayNotWrite};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::telemetry::Metrics;
use elector::Elector;
use leases::ApiLeases;

/// Takes part in the election until `stop`, then releases the Lease. The task ends after the
/// attempt to release the Lease. Cancel `stop` only after all tasks that write have ended.
pub fn start(
    kubernetes: kube::Client,
    config: LeaderElectionConfig,
    metrics: Metrics,
    stop: CancellationToken,
) -> (Leadership, JoinHandle<()>) {
    let (sender, term) = watch::channel(LeadershipTerm::No);
    let leadership = Leadership::new(term);
    let report = report_changes(leadership.clone(), config.name.clone(), metrics);
    let leases = ApiLeases::new(kubernetes, &config);
    let elector = Elector::new(leases, config, sender);
    let task = tokio::spawn(async move {
        tokio::select! {
            () = elector.run(stop) => {}
            () = report => {}
        }
    });
    (leadership, task)
}

async fn report_changes(mut leadership: Leadership, lease: String, metrics: Metrics) {
    loop {
        metrics.set_leader(&lease, false);
        leadership.gained().await;
        metrics.set_leader(&lease, true);
        tracing::info!(lease, "this replica is the leader");
        leadership.lost().await;
        tracing::warn!(lease, "this replica is no longer the leader");
    }
}
