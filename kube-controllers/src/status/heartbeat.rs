//! Heartbeats in the status file, for a liveness that is separate from readiness.
//!
//! Upstream's `check-status -l` equals `-r`. So kubelet restarts a healthy process when the API server has been
//! unreachable for a minute. With `STATUS_LIVENESS=heartbeat`, the process writes heartbeats, and `-l` tests only
//! these.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use super::component::Status;
use super::file::Liveness;

/// Interval of heartbeats.
const EVERY: Duration = Duration::from_secs(5);
/// Age of the last heartbeat at which the process counts as hanging. Long enough for a slow disk and a throttled
/// processor.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Writes heartbeats until `stop`, but none while work is stuck. Runs on the same runtime as the controllers, so it
/// stops when the runtime hangs.
pub async fn beat(status: Status, stop: CancellationToken) {
    loop {
        if status.is_live() {
            status.change(|file| {
                file.liveness = Some(Liveness { heartbeat: since_boot() });
                true
            });
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// Returns the seconds since boot.
pub(super) fn since_boot() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_secs())
}
