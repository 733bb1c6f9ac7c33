//! [`Turns`]: how the plugin processes of a node wait for an API server that is busy (429).
//!
//! One request of the node is sent while the server is busy. Its process holds a lock on a file, which the kernel takes
//! back when the process ends; the others wait for the lock. The file also says until when the server does not want to
//! be asked, for a process that gets the lock before that.

use std::fs::{File, TryLockError, create_dir_all};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How often a process looks whether its turn has come.
const LOOK: Duration = Duration::from_millis(50);
/// The longest time that is written down. What is later was written before the clock was set back.
const LONGEST_NOTE: Duration = Duration::from_secs(60);

/// How the requests of a process wait for an API server that is busy.
#[derive(Debug, Clone)]
pub struct WhenBusy {
    /// The file that the processes of the node lock in turn.
    pub file: PathBuf,
    /// When requests that still wait fail. With a time that is past a request that would wait fails at once.
    pub until: Instant,
    /// Called before a request waits: lets go of what other processes wait for.
    pub before_waiting: fn(),
}

/// The turns of one process.
#[derive(Debug, Default)]
pub(super) struct Turns {
    rule: std::sync::Mutex<Option<WhenBusy>>,
    /// Held by the request of this process whose turn it is.
    own: Mutex<()>,
    was_busy: AtomicBool,
    clock: OnceLock<Clock>,
}

/// The system's clock, as it was when this process first looked, and the time that passed since.
#[derive(Debug)]
struct Clock {
    then: SystemTime,
    at: Instant,
}

/// The right to ask a server that is busy. The next one has it when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'t> {
    own: MutexGuard<'t, ()>,
    /// Locked while the server is busy. Absent where the file cannot be used: then the processes of the node do not know
    /// of each other.
    file: Option<File>,
}

/// The time for waiting was over before the turn came.
#[derive(Debug)]
pub(super) struct Late;

impl Turns {
    /// Has requests wait by `rule` from now on.
    pub(super) fn wait_by(&self, rule: WhenBusy) {
        self.now();
        *self.rule.lock().unwrap_or_else(PoisonError::into_inner) = Some(rule);
    }

    /// Returns true if requests wait in turns at all.
    pub(super) fn are_taken(&self) -> bool {
        self.rule().is_some()
    }

    /// Returns true if a request had to wait, or should have.
    pub(super) fn was_busy(&self) -> bool {
        self.was_busy.load(Ordering::Relaxed)
    }

    /// Returns true if a request that has to wait fails at once.
    pub(super) fn are_over(&self) -> bool {
        self.was_busy() && self.rule().is_some_and(|rule| rule.until <= Instant::now())
    }

    /// Lets a request go that was not sent yet: at once as long as no request of the node waits for the server, otherwise
    /// in its turn. A process that had to wait sends its requests one by one from then on: all of them at once may be
    /// more than the server admits.
    pub(super) async fn admit(&self) -> Result<Option<Turn<'_>>, Late> {
        let Some(rule) = self.rule() else { return Ok(None) };
        if !self.was_busy() && self.own.try_lock().is_ok() && !self.is_waited_for(&rule.file) {
            return Ok(None);
        }
        // Another request of this process ends by itself, and waits for the server no longer than this one may.
        let own = self.own.lock().await;
        if self.was_busy() && !self.is_waited_for(&rule.file) {
            return Ok(Some(Turn { own, file: None }));
        }
        self.begin_to_wait(&rule);
        self.take(&rule, own).await.map(Some)
    }

    /// Waits because the server wants to be asked again in `pause` at the earliest. Returns the turn for that, or
    /// `None` when the time for waiting is over.
    pub(super) async fn pause<'t>(&'t self, turn: Option<Turn<'t>>, pause: Duration) -> Option<Turn<'t>> {
        let rule = self.rule()?;
        let due = Instant::now() + pause;
        self.begin_to_wait(&rule);
        if let Err(error) = self.note(&rule.file, pause) {
            tracing::warn!(file = %rule.file.display(), %error, "other processes cannot be told that the API server is busy");
        }
        if rule.until <= Instant::now() {
            return None;
        }
        let turn = match turn {
            Some(turn) if turn.file.is_some() => turn,
            Some(turn) => self.take(&rule, turn.own).await.ok()?,
            None => {
                let own = timeout_at(rule.until, self.own.lock()).await.ok()?;
                self.take(&rule, own).await.ok()?
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

    fn rule(&self) -> Option<WhenBusy> {
        self.rule.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn begin_to_wait(&self, rule: &WhenBusy) {
        if !self.was_busy.swap(true, Ordering::Relaxed) {
            tracing::warn!(file = %rule.file.display(), "the API server is busy; requests of this node go one by one");
        }
        (rule.before_waiting)();
    }

    /// Waits for the lock on the file, and until the server wants to be asked.
    async fn take<'t>(&self, rule: &WhenBusy, own: MutexGuard<'t, ()>) -> Result<Turn<'t>, Late> {
        let taking = async {
            let file = open(&rule.file)
                .inspect_err(|error| {
                    tracing::warn!(file = %rule.file.display(), %error, "this process does not wait for others of the node");
                })
                .ok();
            // flock(2) cannot be given a time.
            while let Some(Err(TryLockError::WouldBlock)) = file.as_ref().map(File::try_lock) {
                sleep(LOOK).await;
            }
            let turn = Turn { own, file };
            while let Some(rest) = turn.file.as_ref().and_then(|file| self.noted(file)) {
                sleep(rest).await;
            }
            turn
        };
        timeout_at(rule.until, taking).await.map_err(|_| Late)
    }

    /// Returns true if a process of the node waits for the server, or should wait.
    fn is_waited_for(&self, path: &Path) -> bool {
        // It is not there before the server is busy for the first time.
        let Ok(file) = File::open(path) else { return false };
        self.noted(&file).is_some() || matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Writes down that the server does not want to be asked for as long as `pause`: a time of the system's clock in
    /// ns. A later time stays.
    fn note(&self, path: &Path, pause: Duration) -> io::Result<()> {
        let file = open(path)?;
        if self.noted(&file).is_some_and(|rest| rest >= pause) {
            return Ok(());
        }
        let until = (self.now() + pause.min(LONGEST_NOTE)).duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
        file.write_all_at(format!("{:020}\n", until.as_nanos()).as_bytes(), 0)
    }

    /// Returns how long the server does not want to be asked from now on.
    fn noted(&self, file: &File) -> Option<Duration> {
        let mut text = [0; 20];
        file.read_exact_at(&mut text, 0).ok()?;
        let until = UNIX_EPOCH + Duration::from_nanos(str::from_utf8(&text).ok()?.parse().ok()?);
        let rest = until.duration_since(self.now()).ok()?;
        (!rest.is_zero() && rest <= LONGEST_NOTE).then_some(rest)
    }

    fn now(&self) -> SystemTime {
        let Clock { then, at } = self.clock.get_or_init(|| Clock { then: SystemTime::now(), at: Instant::now() });
        *then + at.elapsed()
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        create_dir_all(directory)?;
    }
    File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests;
