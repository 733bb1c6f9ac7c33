//! Waits until Felix has programmed a pod's policy, for at most `policy_setup_timeout_seconds`.
//!
//! Felix then creates a file for the endpoint. A timeout is not an error: the pod starts, and its policy takes effect
//! later.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd;

/// The polling interval while the directory cannot be watched, for example because it does not exist yet.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Returns true if `file` appears in `directory` within `timeout`. The content of the file does not matter.
pub fn wait_for_file(directory: &Path, file: &str, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        match watch(directory, file, deadline) {
            Ok(found) => return found,
            Err(error) => tracing::debug!(directory = %directory.display(), %error, "cannot watch; looking again"),
        }
        if directory.join(file).exists() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(LOOK_AGAIN));
    }
}

/// Waits for `file` with inotify until `deadline`. The watch starts before the first check, so that a file that appears
/// between the two is not missed.
fn watch(directory: &Path, file: &str, deadline: Instant) -> io::Result<bool> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(directory, events)?;
    if directory.join(file).exists() {
        return Ok(true);
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], wait) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        match inotify.read_events() {
            Ok(events) if events.iter().any(|event| event.name.as_deref() == Some(OsStr::new(file))) => {
                return Ok(true);
            }
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
    fn a_file_that_is_there_is_seen_at_once() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(NAME), "").unwrap();
        assert!(wait_for_file(directory.path(), NAME, Duration::ZERO));
    }

    #[test]
    fn a_file_that_appears_ends_the_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let writer = std::thread::spawn(move || {
            std::fs::write(path.join("another"), "").unwrap();
            std::fs::write(path.join("new"), "").unwrap();
            std::fs::rename(path.join("new"), path.join(NAME)).unwrap();
        });
        assert!(wait_for_file(directory.path(), NAME, Duration::from_secs(60)));
        writer.join().unwrap();
    }

    #[test]
    fn the_wait_ends_without_the_file_too() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!wait_for_file(directory.path(), NAME, Duration::from_millis(30)));
        assert!(!wait_for_file(&directory.path().join("missing"), NAME, Duration::from_millis(30)));
    }
}
