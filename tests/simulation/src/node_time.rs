//! [`NodeClock`] and [`NodeWaits`]: the time of a node and its waits for files, on a [`Schedule`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use os::clock::Clock;
use os::file_wait::{FileWait, Waiting};
use os::lock::{HostLock, LockError};
use time::OffsetDateTime;
use time::macros::datetime;

use crate::plants::Plant;
use crate::schedule::{Schedule, Wait};

/// The date of the begin of a simulation, on a node whose clock is right.
const BEGIN: OffsetDateTime = datetime!(2026-08-22 01:02:03.1234 UTC);

/// Returns the date of the cluster, which differs from those of nodes whose clocks are wrong.
pub fn right_date(schedule: &Schedule) -> OffsetDateTime {
    BEGIN + schedule.now()
}

/// The clock of a node.
#[derive(Debug, Clone)]
pub struct NodeClock {
    schedule: Schedule,
    /// The number of seconds by which the node's date is ahead.
    ahead: i64,
    started: Duration,
    plant: Plant,
}

impl NodeClock {
    /// Creates a clock that is `ahead` by this number of seconds.
    pub fn new(schedule: &Schedule, ahead: i64, plant: Plant) -> Self {
        NodeClock {
            schedule: schedule.clone(),
            ahead,
            started: schedule.now(),
            plant,
        }
    }
}

impl Clock for NodeClock {
    fn now(&self) -> OffsetDateTime {
        let date = match self.plant {
            Plant::StoppedClocks => BEGIN,
            _ => right_date(&self.schedule),
        };
        date + time::Duration::seconds(self.ahead)
    }

    fn elapsed(&self) -> Duration {
        self.schedule.now().saturating_sub(self.started)
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        let until = self.schedule.now() + duration;
        let waiting = self.schedule.wait(Wait::Until(until));
        async move {
            waiting.await;
        }
    }

    fn restarted(&self) -> Self {
        NodeClock {
            started: self.schedule.now(),
            ..self.clone()
        }
    }
}

/// The waits of a node's calls for files.
#[derive(Debug)]
pub struct NodeWaits {
    /// The schedule.
    pub schedule: Schedule,
    /// The number of the node.
    pub node: usize,
    /// A planted fault.
    pub plant: Plant,
}

impl NodeWaits {
    /// Returns a file of this call alone, if it must not exclude others.
    fn own_file(&self, file: &Path) -> Option<PathBuf> {
        let unique = self.schedule.now().as_nanos();
        (self.plant == Plant::SharedLocks).then(|| file.with_extension(format!("{unique}.lock")))
    }
}

impl FileWait for NodeWaits {
    fn lock<'a>(
        &'a self,
        file: &'a Path,
        longest: Duration,
    ) -> Waiting<'a, Result<HostLock, LockError>> {
        Box::pin(async move {
            let until = self.schedule.now() + longest;
            let own_file = self.own_file(file);
            let file = own_file.as_deref().unwrap_or(file);
            loop {
                match HostLock::acquire_within(file, Duration::ZERO) {
                    Err(LockError::Busy { .. }) if self.schedule.now() < until => {
                        self.schedule.other_step(self.node, until).await;
                    }
                    Err(LockError::Busy { path, .. }) => {
                        let waited = longest;
                        return Err(LockError::Busy { path, waited });
                    }
                    outcome => return outcome,
                }
            }
        })
    }

    fn file<'a>(
        &'a self,
        directory: &'a Path,
        file: &'a str,
        longest: Duration,
    ) -> Waiting<'a, bool> {
        Box::pin(async move {
            let until = self.schedule.now() + longest;
            while !directory.join(file).exists() {
                if self.schedule.now() >= until {
                    return false;
                }
                self.schedule.other_step(self.node, until).await;
            }
            true
        })
    }
}
