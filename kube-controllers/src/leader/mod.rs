//! Leader election among the replicas of kube-controllers, by a Lease, as client-go does it.
//!
//! The holder renews the Lease periodically. Another replica takes the Lease when it has not changed for the duration
//! that it states; each replica measures that time with its own clock. The times in the Lease have one use: a replica
//! does not wait if it takes a Lease that was released a moment ago. Every write names the version that was read, so
//! only one of two competing writes succeeds. The holder stops writing some seconds before another replica may take the
//! Lease, so that its current requests have ended by then.

mod election;
mod elector;
mod identity;
mod leases;
mod refusals;

pub use identity::{identity, name_of_pod, namespace_of_pod};

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Leadership, Tenure};
use crate::telemetry::Metrics;
use elector::Elector;
use leases::ApiLeases;

/// The Lease, and the candidate.
#[derive(Debug, Clone)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Unique name of this process; see [`identity()`].
    pub identity: String,
    /// Whether to wait for permission if the role does not allow writing the Lease. Otherwise, the process acts as the
    /// only replica once the refusals have lasted, until the role allows the Lease.
    pub required: bool,
    /// Periods of the election.
    pub timing: Timing,
}

/// Periods of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time since its last change after which other replicas may take the Lease.
    pub lease: Duration,
    /// Time since its last renewal for which the holder writes. Shorter than `lease` by the longest time of a request.
    pub renew_deadline: Duration,
    /// Delay between two attempts to take or renew the Lease.
    pub retry: Duration,
    /// Interval at which a replica that writes without a Lease checks if the role allows one, and the time limit of
    /// each attempt. Half of `renew_deadline`.
    pub look: Duration,
    /// Longest time that a write may take which was begun in time.
    pub write: Duration,
}

impl Timing {
    /// Returns client-go's periods, and the given time limit of writes.
    pub fn for_writes_of(write: Duration) -> Self {
        Timing { write, ..Timing::default() }
    }

    /// Returns the time that the creator of a Lease waits before it writes.
    pub(crate) fn settling(&self) -> Duration {
        self.lease + self.write
    }
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            look: Duration::from_secs(5),
            write: Duration::from_secs(10),
        }
    }
}

/// Takes part in the election until `stop`, then releases the Lease. The task ends when the Lease has been released.
/// Cancel `stop` only after all tasks that write have ended.
pub fn start(
    kubernetes: kube::Client,
    config: Config,
    metrics: Metrics,
    stop: CancellationToken,
) -> (Leadership, JoinHandle<()>) {
    let (sender, tenure) = watch::channel(Tenure::No);
    let leadership = Leadership::new(tenure);
    let tell = tell(leadership.clone(), config.name.clone(), metrics);
    let leases = ApiLeases::new(kubernetes, &config);
    let elector = Elector::new(leases, config, sender);
    let task = tokio::spawn(async move {
        tokio::select! {
            () = elector.run(stop) => {}
            () = tell => {}
        }
    });
    (leadership, task)
}

/// Reports changes of the leadership in the log and the metrics.
async fn tell(mut leadership: Leadership, lease: String, metrics: Metrics) {
    loop {
        metrics.show_leader(&lease, false);
        leadership.gained().await;
        metrics.show_leader(&lease, true);
        tracing::info!(lease, "this replica leads");
        leadership.lost().await;
        tracing::warn!(lease, "this replica does not lead any more");
    }
}
