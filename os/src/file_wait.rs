//! [`FileWait`]: the ways in which a call waits for a file: for its lock, or until it exists.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::future::Future;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};

use crate::lock::{HostLock, LockError};

/// The polling interval for a file while its directory cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A wait of a call.
pub type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The ways in which a call waits for a file.
pub trait FileWait: Debug + Send + Sync {
    /// Takes the lock on the file, waiting no longer than `longest`.
    fn lock<'a>(
        &'a self,
        file: &'a Path,
        longest: Duration,
    ) -> Waiting<'a, Result<HostLock, LockError>>;

    /// Waits until the directory contains `file`. Returns false if it does not within `longest`.
    fn file<'a>(
        &'a self,
        directory: &'a Path,
        file: &'a str,
        longest: Duration,
    ) -> Waiting<'a, bool>;
}

/// The wait of a process that has no other work: it blocks its thread.
#[derive(Debug)]
pub(crate) struct BlockingWait;

impl FileWait for BlockingWait {
    fn lock<'a>(
        &'a self,
        file: &'a Path,
        longest: Duration,
    ) -> Waiting<'a, Result<HostLock, LockError>> {
        Box::pin(async move { HostLock::acquire_within(file, longest) })
    }

    fn file<'a>(
        &'a self,
        directory: &'a Path,
        file: &'a str,
        longest: Duration,
    ) -> Waiting<'a, bool> {
        Box::pin(async move { wait_for_file(directory, file, longest) })
    }
}

fn wait_for_file(directory: &Path, file: &str, longest: Duration) -> bool {
    let deadline = Instant::now() + longest;
    loop {
        match watch(directory, file, deadline) {
            Ok(exists) => return exists,
            Err(error) => {
                tracing::debug!(
                    directory = %directory.display(), %error,
                    "cannot watch the directory of a file; trying again"
                )
            }
        }
        if directory.join(file).exists() {
            return true;
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return false;
        }
        thread::sleep(remaining.min(POLL_INTERVAL));
    }
}

/// Waits for `file` with inotify; returns false at `deadline`. The watch starts before the first
/// check, so that no file is missed.
fn watch(directory: &Path, file: &str, deadline: Instant) -> io::Result<bool> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(directory, events)?;
    if directory.join(file).exists() {
        return Ok(true);
    }
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(false);
        }
        let wait = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_file = |event: &InotifyEvent| event.name.as_deref() == Some(OsStr::new(file));
        match inotify.read_events() {
            Ok(events) if events.iter().any(is_file) => return Ok(true),
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "k8s name-space%2Fpodname eth0";

    #[test]
    fn existing_file_ends_the_wait_at_once() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(NAME), "").unwrap();
        assert!(wait_for_file(directory.path(), NAME, Duration::ZERO));
    }

    #[test]
    fn created_file_ends_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let writer = thread::spawn(move || {
            std::fs::write(path.join("another"), "").unwrap();
            std::fs::write(path.join("new"), "").unwrap();
            std::fs::rename(path.join("new"), path.join(NAME)).unwrap();
        });
        assert!(wait_for_file(
            directory.path(),
            NAME,
            Duration::from_secs(60)
        ));
        writer.join().unwrap();
    }

    #[test]
    fn file_wait_ends_with_the_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let longest = Duration::from_millis(30);
        assert!(!wait_for_file(directory.path(), NAME, longest));
        let missing = directory.path().join("missing");
        assert!(!wait_for_file(&missing, NAME, longest));
    }
}
