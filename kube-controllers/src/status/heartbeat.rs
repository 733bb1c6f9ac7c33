//! Signs of life, for a liveness that is not readiness (B-16).
//!
//! Upstream's `check-status -l` is `-r`: when the API server is away for a minute, kubelet restarts a process that is
//! well. Where the process gives signs of life (`STATUS_LIVENESS=heartbeat`), `-l` goes by these and by nothing else.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

use super::Status;
use super::file::Liveness;

/// How often one is given.
const EVERY: Duration = Duration::from_secs(5);
/// Without one for so long the process hangs. Stretches over a slow disk and a throttled processor.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Gives signs of life until `stop`, from the tasks that would hang, and none while work is stuck.
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

/// Seconds since the machine was started.
pub(super) fn since_boot() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| Duration::from(time).as_secs())
}
