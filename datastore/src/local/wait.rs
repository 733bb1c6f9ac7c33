//! Retries transactions that other processes block.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::ErrorCode;

const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// The time limit for one request to wait for other processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BusyRetry {
    /// The whole time limit.
    pub(super) longest: Duration,
    until: Instant,
}

impl BusyRetry {
    /// Starts the time limit now.
    pub(super) fn new(longest: Duration) -> Self {
        BusyRetry { longest, until: Instant::now() + longest }
    }

    /// Retries a transaction while other processes block it. The pauses suit transactions that take a third of a
    /// millisecond.
    pub(super) fn retry<T>(&self, mut transaction: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let mut pause = FIRST_PAUSE;
        loop {
            match transaction() {
                Err(e) if is_busy(&e) && Instant::now() < self.until => sleep(jittered(pause)),
                other => return other,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn is_busy(e: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
    matches!(e.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed))
}

/// Returns between half of `pause` and all of it, so that processes do not collide again at the same time.
fn jittered(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    pause / 2 + pause / 2 * (nanos % 1000) / 1000
}
