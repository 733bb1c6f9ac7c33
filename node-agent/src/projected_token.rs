//! Watches the directory of the pod's own token. kubelet replaces its whole content when the token
//! or the CA certificates change (INST-45).

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, timeout};

/// Quiet time that ends a burst. One replacement causes several events.
const QUIET_TIME: Duration = Duration::from_millis(50);

/// Time after which a burst counts as a change even if events continue.
const MAX_BURST: Duration = Duration::from_secs(1);

/// Pause between two attempts to watch a directory that cannot be watched.
const RETRY: Duration = Duration::from_secs(10);

/// The directory of the pod's own token, and the watch on it, which is `None` while the directory
/// cannot be watched.
#[derive(Debug, Default)]
pub(super) struct ProjectedToken {
    directory: PathBuf,
    watch: Option<AsyncFd<DirectoryWatch>>,
    /// True if a change was not reported yet. This is a field because the caller may drop the
    /// future of [`changed`](Self::changed) and call again.
    has_unreported_change: bool,
    has_warned: bool,
}

/// An inotify instance with one watch.
#[derive(Debug)]
struct DirectoryWatch(Inotify);

impl AsRawFd for DirectoryWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl DirectoryWatch {
    #[expect(
        deprecated,
        reason = "its successor is `unsafe`, which is forbidden; a Watch keeps its descriptor open"
    )]
    fn open(directory: &Path) -> io::Result<AsyncFd<DirectoryWatch>> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let changes =
            AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE;
        let ends =
            AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(directory, changes | ends)?;
        AsyncFd::new(DirectoryWatch(inotify))
    }

    /// Reads all pending events. Returns true if the watch is still active.
    fn drain(&self) -> nix::Result<bool> {
        let ends =
            AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
        let mut is_active = true;
        loop {
            match self.0.read_events() {
                Ok(events) => is_active &= !events.iter().any(|event| event.mask.intersects(ends)),
                Err(Errno::EAGAIN) => return Ok(is_active),
                Err(error) => return Err(error),
            }
        }
    }
}

impl ProjectedToken {
    /// Starts to watch the directory. If this is not possible yet, [`changed`](Self::changed) tries
    /// again.
    pub(super) fn new(directory: impl Into<PathBuf>) -> Self {
        let mut projected = ProjectedToken {
            directory: directory.into(),
            ..ProjectedToken::default()
        };
        projected.open();
        projected
    }

    /// Waits for a change of the directory, and then until no event occurs for [`QUIET_TIME`], at
    /// most for [`MAX_BURST`]. The end of the watch, and a later new watch, count as changes, as
    /// events may have been missed.
    pub(super) async fn changed(&mut self) {
        while !self.has_unreported_change {
            if self.watch.is_none() {
                sleep(RETRY).await;
                self.has_unreported_change = self.open();
                continue;
            }
            self.next_events().await;
        }
        let until = Instant::now() + MAX_BURST;
        while self.watch.is_some()
            && timeout(QUIET_TIME, self.next_events()).await.is_ok()
            && Instant::now() < until
        {}
        self.has_unreported_change = false;
    }

    /// Waits for events, or for the end of the watch, and records them as a change. Does nothing
    /// without a watch.
    async fn next_events(&mut self) {
        let Some(watch) = &self.watch else { return };
        let is_active = match watch.readable().await {
            Ok(mut ready) => {
                ready.clear_ready();
                watch.get_ref().drain().unwrap_or(false)
            }
            Err(_) => false,
        };
        self.has_unreported_change = true;
        if !is_active {
            self.watch = None;
        }
    }

    fn open(&mut self) -> bool {
        let opened = DirectoryWatch::open(&self.directory);
        if let Some(error) = opened.as_ref().err().filter(|_| !self.has_warned) {
            let directory = self.directory.display();
            tracing::warn!(
                %directory, %error,
                "cannot watch the directory of this pod's token; trying again"
            );
        }
        self.has_warned = opened.is_err();
        self.watch = opened.ok();
        self.watch.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(200);

    /// Replaces the content of `directory` as kubelet does: renames a symbolic link over the old
    /// link.
    fn swap(directory: &Path, generation: &str, token: &str) {
        fs::create_dir(directory.join(generation)).unwrap();
        fs::write(directory.join(generation).join("token"), token).unwrap();
        symlink(generation, directory.join("..data_tmp")).unwrap();
        fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    }

    #[tokio::test]
    async fn kubelets_token_swap_is_detected_once() {
        let directory = tempfile::tempdir().unwrap();
        swap(directory.path(), "..1", "old");
        let mut projected = ProjectedToken::new(directory.path());
        assert!(
            timeout(SHORT, projected.changed()).await.is_err(),
            "nothing changed"
        );
        swap(directory.path(), "..2", "new");
        timeout(LONG, projected.changed()).await.unwrap();
        assert_eq!(
            fs::read_to_string(directory.path().join("..data/token")).unwrap(),
            "new"
        );
        assert!(
            timeout(SHORT, projected.changed()).await.is_err(),
            "it was told once"
        );
    }

    #[tokio::test]
    async fn burst_of_token_swaps_is_reported_as_a_single_change() {
        let directory = tempfile::tempdir().unwrap();
        let mut projected = ProjectedToken::new(directory.path());
        for generation in ["..1", "..2", "..3", "..4", "..5"] {
            swap(directory.path(), generation, generation);
        }
        timeout(LONG, projected.changed()).await.unwrap();
        assert!(timeout(SHORT, projected.changed()).await.is_err());
    }

    /// With a real clock, a test that the machine delays could reach both time limits at once.
    #[tokio::test(start_paused = true)]
    async fn token_change_survives_a_cancelled_wait() {
        let directory = tempfile::tempdir().unwrap();
        let mut projected = ProjectedToken::new(directory.path());
        fs::write(directory.path().join("token"), "new").unwrap();
        // Long enough to see the event, too short to report the change.
        assert!(timeout(QUIET_TIME / 5, projected.changed()).await.is_err());
        timeout(LONG, projected.changed()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn token_directory_created_later_counts_as_a_change() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("serviceaccount");
        let mut projected = ProjectedToken::new(&directory);
        assert!(
            timeout(3 * RETRY, projected.changed()).await.is_err(),
            "without a hot loop"
        );
        fs::create_dir(&directory).unwrap();
        timeout(2 * RETRY, projected.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn deleted_token_directory_is_reported_once() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("serviceaccount");
        fs::create_dir(&directory).unwrap();
        let mut projected = ProjectedToken::new(&directory);
        fs::remove_dir(&directory).unwrap();
        timeout(LONG, projected.changed()).await.unwrap();
        assert!(projected.watch.is_none());
        assert!(timeout(SHORT, projected.changed()).await.is_err());
    }
}
