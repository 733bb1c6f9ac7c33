//! [`Turns`]: makes the plugin processes of a node wait in turn for a busy API server (429).
//!
//! While the server is busy, these processes together send one request at a time, under a lock on a
//! file. The file also contains the time before which the server does not want another request.

use std::fs::{File, TryLockError, create_dir_all};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use os::node_files::NodeFiles;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

const LOCK_POLL: Duration = Duration::from_millis(50);
/// Maximum delay in the file. A longer one is ignored: the clock may have been set back after the
/// delay was written.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// The rule by which requests of a process wait for a busy API server.
#[derive(Debug, Clone)]
pub struct BusyRule {
    /// The file that the processes of the node lock, one at a time.
    pub file: PathBuf,
    /// The time from now after which waiting requests fail. If it is zero, a request that would
    /// have to wait fails at once.
    pub longest: Duration,
    /// The node's files, whose IPAM locks are released before a request waits, because other
    /// processes wait for them.
    pub locks: NodeFiles,
}

/// A rule from the time at which it came into force.
#[derive(Debug, Clone)]
struct ActiveRule {
    file: PathBuf,
    until: Instant,
    locks: NodeFiles,
}

#[derive(Debug, Default)]
pub(super) struct Turns {
    rule: std::sync::Mutex<Option<ActiveRule>>,
    process_turn: Mutex<()>,
    was_busy: AtomicBool,
    clock: OnceLock<ProcessClock>,
}

#[derive(Debug)]
struct ProcessClock {
    system_time: SystemTime,
    instant: Instant,
}

#[derive(Debug)]
pub(super) struct Turn<'t> {
    process_turn: MutexGuard<'t, ()>,
    /// The locked file. `None` if no process of the node waits for the server, or if the file
    /// cannot be used.
    file: Option<File>,
}

#[derive(Debug, thiserror::Error)]
#[error(
    "the API server is busy (429), and this process reached its time limit while it waited for \
     other processes of this node"
)]
pub(super) struct TurnTimeout;

impl Turns {
    /// Makes requests wait by `rule` from now on, while the server is busy.
    pub(super) fn set_rule(&self, rule: BusyRule) {
        self.now();
        let rule = ActiveRule {
            file: rule.file,
            until: Instant::now() + rule.longest,
            locks: rule.locks,
        };
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Some(rule);
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.rule().is_some()
    }

    /// Returns true if a request of this process has had to wait for a busy server.
    pub(super) fn was_busy(&self) -> bool {
        self.was_busy.load(Ordering::Relaxed)
    }

    /// Returns true if the server was busy and the time limit for waiting has passed.
    pub(super) fn has_expired(&self) -> bool {
        self.was_busy() && self.rule().is_some_and(|rule| rule.until <= Instant::now())
    }

    /// Admits a request that has not been sent yet. Returns `None` if the request need not wait,
    /// and otherwise waits for its turn. A process that had to wait sends its requests one by one
    /// from then on, because the server may not accept all of them at once.
    pub(super) async fn admit(&self) -> Result<Option<Turn<'_>>, TurnTimeout> {
        let Some(rule) = self.rule() else {
            return Ok(None);
        };
        if !self.was_busy() && self.process_turn.try_lock().is_ok() && !self.is_busy(&rule.file) {
            return Ok(None);
        }
        // The lock needs no timeout, because the request that has it waits no longer than this one
        // may.
        let process_turn = self.process_turn.lock().await;
        if self.was_busy() && !self.is_busy(&rule.file) {
            return Ok(Some(Turn {
                process_turn,
                file: None,
            }));
        }
        self.start_waiting(&rule);
        self.acquire(&rule, process_turn).await.map(Some)
    }

    /// Waits for `pause` or longer after the server rejected a request. `turn` is the turn of that
    /// request, if it had one. Returns `None` if the request must not be retried.
    pub(super) async fn pause<'t>(
        &'t self,
        turn: Option<Turn<'t>>,
        pause: Duration,
    ) -> Option<Turn<'t>> {
        let rule = self.rule()?;
        let due = Instant::now() + pause;
        self.start_waiting(&rule);
        if let Err(error) = self.write_delay(&rule.file, pause) {
            tracing::warn!(
                file = %rule.file.display(), %error,
                "cannot record that the API server is busy"
            );
        }
        if rule.until <= Instant::now() {
            return None;
        }
        let turn = match turn {
            Some(turn) if turn.file.is_some() => turn,
            Some(turn) => self.acquire(&rule, turn.process_turn).await.ok()?,
            None => {
                let process_turn = timeout_at(rule.until, self.process_turn.lock())
                    .await
                    .ok()?;
                self.acquire(&rule, process_turn).await.ok()?
            }
        };
        if due >= rule.until {
            drop(turn);
            sleep_until(rule.until).await;
            return None;
        }
        sleep_until(due).await;
        Some(turn)
    }

    fn rule(&self) -> Option<ActiveRule> {
        self.rule
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn start_waiting(&self, rule: &ActiveRule) {
        if !self.was_busy.swap(true, Ordering::Relaxed) {
            let file = rule.file.display();
            tracing::warn!(
                %file,
                "the API server is busy; waiting for other processes of the node"
            );
        }
        rule.locks.release_ipam_locks();
    }

    /// Waits for the lock on the file, and until the server accepts requests again, according to
    /// the file.
    async fn acquire<'t>(
        &self,
        rule: &ActiveRule,
        process_turn: MutexGuard<'t, ()>,
    ) -> Result<Turn<'t>, TurnTimeout> {
        let acquiring = async {
            let warn = |error: &io::Error| {
                tracing::warn!(
                    file = %rule.file.display(), %error,
                    "cannot open the lock file; not waiting for other processes"
                );
            };
            let file = open(&rule.file).inspect_err(warn).ok();
            // The loop polls, because flock(2) has no timeout.
            while let Some(Err(TryLockError::WouldBlock)) = file.as_ref().map(File::try_lock) {
                sleep(LOCK_POLL).await;
            }
            let turn = Turn { process_turn, file };
            while let Some(remaining) = turn.file.as_ref().and_then(|file| self.read_delay(file)) {
                sleep(remaining).await;
            }
            turn
        };
        timeout_at(rule.until, acquiring)
            .await
            .map_err(|_| TurnTimeout)
    }

    /// Returns true if a process of the node waits for the server, or if the server rejects
    /// requests according to the file.
    fn is_busy(&self, path: &Path) -> bool {
        let Ok(file) = File::open(path) else {
            return false;
        };
        self.read_delay(&file).is_some()
            || matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Records in the file that the server rejects requests for `pause`. A later time in the file
    /// stays.
    fn write_delay(&self, path: &Path, pause: Duration) -> io::Result<()> {
        let file = open(path)?;
        if self
            .read_delay(&file)
            .is_some_and(|remaining| remaining >= pause)
        {
            return Ok(());
        }
        let until = (self.now() + pause.min(LONGEST_DELAY))
            .duration_since(UNIX_EPOCH)
            .map_err(io::Error::other)?;
        file.write_all_at(format!("{:020}\n", until.as_nanos()).as_bytes(), 0)
    }

    /// Returns the time for which the server still rejects requests, according to the file.
    fn read_delay(&self, file: &File) -> Option<Duration> {
        let mut text = [0; 20];
        file.read_exact_at(&mut text, 0).ok()?;
        let until = UNIX_EPOCH + Duration::from_nanos(str::from_utf8(&text).ok()?.parse().ok()?);
        let remaining = until.duration_since(self.now()).ok()?;
        (!remaining.is_zero() && remaining <= LONGEST_DELAY).then_some(remaining)
    }

    fn now(&self) -> SystemTime {
        let ProcessClock {
            system_time,
            instant,
        } = self.clock.get_or_init(|| ProcessClock {
            system_time: SystemTime::now(),
            instant: Instant::now(),
        });
        *system_time + instant.elapsed()
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        create_dir_all(directory)?;
    }
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests;
