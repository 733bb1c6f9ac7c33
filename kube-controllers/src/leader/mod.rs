//! The election of the replica that writes, by a Lease as client-go does it.
//!
//! The holder renews the Lease again and again. Another replica takes it when it has not changed for as long as it
//! says; each goes by its own clock from what it sees. A time in the Lease counts only to spare the wait of a replica
//! that takes a Lease which nobody holds. Every write names the version that was read, so that of two who want it one
//! succeeds. The holder stops writing some seconds before another may take the Lease: the requests that are under way
//! by then have ended.

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

/// Which Lease, and who wants it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This process; no other has the same, see [`identity()`].
    pub identity: String,
    /// What happens when the role does not allow to write the Lease: without this the process takes itself for the only
    /// replica as soon as that is clear, until it is allowed; with it, it waits for that.
    pub required: bool,
    /// When.
    pub timing: Timing,
}

/// The periods of an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long after its last change others leave the Lease alone.
    pub lease: Duration,
    /// How long after its last renewal the holder writes. Shorter than `lease` by as much as a request may take.
    pub renew_deadline: Duration,
    /// How long to wait between two attempts to take or renew it.
    pub retry: Duration,
    /// How often a replica that writes without a Lease looks whether the role allows one by now, and how long a look,
    /// or any other attempt, may take. Half of `renew_deadline`.
    pub look: Duration,
    /// How long a write that was begun in time may go on.
    pub write: Duration,
}

impl Timing {
    /// Returns the times of client-go, where it has them, for writes that may take this long.
    pub fn for_writes_of(write: Duration) -> Self {
        Timing { write, ..Timing::default() }
    }

    /// Returns how long the creator of a Lease waits before it writes.
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

/// Stands for election until `stop`, then gives the Lease back; the task has ended when that is done. Stop it when all
/// who write have ended.
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

/// Says when the leadership comes and goes, in log and metrics.
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
