//! Waiting for other processes.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::ErrorCode;

const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

/// How long one request may wait for other processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    /// The whole of it.
    pub(super) longest: Duration,
    until: Instant,
}

impl Wait {
    /// Begins now.
    pub(super) fn new(longest: Duration) -> Self {
        Wait { longest, until: Instant::now() + longest }
    }

    /// Repeats a transaction while other processes are in its way, with pauses that fit transactions of a third of a
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

/// Between half and all of `pause`, so that processes do not meet again in step.
fn jittered(pause: Duration) -> Duration {
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    pause / 2 + pause / 2 * (nanos % 1000) / 1000
}
