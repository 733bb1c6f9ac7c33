//! [`NodeFiles`]: the files and locks that the calls on a node share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::file_wait::{BlockingWait, FileWait};
use crate::lock::{EarlyRelease, HostLock, LONGEST_WAIT, LockError};

/// The files and locks of one node.
#[derive(Debug, Clone)]
pub struct NodeFiles {
    root: PathBuf,
    wait: Arc<dyn FileWait>,
    /// The IPAM locks of this process, which may serve several calls.
    ipam_locks: Arc<Mutex<Vec<EarlyRelease>>>,
}

impl NodeFiles {
    /// Returns the files of the node on which this process runs.
    pub fn of_this_node() -> Self {
        NodeFiles::below("/")
    }

    /// Returns the files of a node whose root directory is `root`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        NodeFiles {
            root: root.into(),
            wait: Arc::new(BlockingWait),
            ipam_locks: Arc::default(),
        }
    }

    /// Returns the same files with another way to wait for them.
    pub fn waiting_by(self, wait: Arc<dyn FileWait>) -> Self {
        NodeFiles { wait, ..self }
    }

    /// Returns the path of a file on the node, given its absolute path there. A relative path stays
    /// relative to the working directory.
    pub fn path(&self, file: impl AsRef<Path>) -> PathBuf {
        let file = file.as_ref();
        match file.strip_prefix("/") {
            Ok(file) => self.root.join(file),
            Err(_) => file.to_owned(),
        }
    }

    /// Takes the lock on a file of the node, waiting no longer than `longest`.
    ///
    /// # Errors
    /// Returns an error if another process keeps the lock for longer, or if the file cannot be
    /// opened or locked.
    pub async fn lock(&self, file: &Path, longest: Duration) -> Result<HostLock, LockError> {
        self.wait.lock(file, longest).await
    }

    /// Waits until a directory of the node contains `file`. Returns false if it does not within
    /// `longest`.
    pub async fn wait_for(&self, directory: &Path, file: &str, longest: Duration) -> bool {
        self.wait.file(directory, file, longest).await
    }

    /// Takes the IPAM lock, which [`NodeFiles::release_ipam_locks`] may release early. If this
    /// fails, logs the reason and returns `None`. Waits for up to [`LONGEST_WAIT`].
    pub async fn ipam_lock(&self, file: &Path) -> Option<HostLock> {
        let lock = self.lock(file, LONGEST_WAIT).await;
        let lock =
            lock.inspect_err(|error| tracing::warn!(%error, "continuing without the IPAM lock"));
        lock.ok().map(|lock| self.registered(lock))
    }

    /// Takes the IPAM lock if it is free and the file can be locked.
    pub fn free_ipam_lock(&self, file: &Path) -> Option<HostLock> {
        let lock = HostLock::acquire_within(file, Duration::ZERO).ok()?;
        Some(self.registered(lock))
    }

    /// Releases all IPAM locks of this process before it waits for a busy API server, so that other
    /// processes need not wait too.
    pub fn release_ipam_locks(&self) {
        let mut locks = self
            .ipam_locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        locks.drain(..).for_each(EarlyRelease::release);
    }

    fn registered(&self, lock: HostLock) -> HostLock {
        let mut locks = self
            .ipam_locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        locks.retain(EarlyRelease::is_alive);
        locks.push(lock.early_release());
        lock
    }
}

impl PartialEq for NodeFiles {
    /// Compares the root directories.
    fn eq(&self, other: &Self) -> bool {
        self.root == other.root
    }
}

/// The node's lock, taken when a release is ready to write. Before that, a release may wait for
/// writes of endpoints.
#[derive(Debug, Default)]
pub struct ReleaseLock<'f> {
    file: Option<(&'f NodeFiles, &'f Path)>,
    lock: Option<HostLock>,
}

impl<'f> ReleaseLock<'f> {
    /// Creates a value that uses no lock if `file` is `None`.
    pub fn new(files: &'f NodeFiles, file: Option<&'f Path>) -> Self {
        ReleaseLock {
            file: file.map(|file| (files, file)),
            lock: None,
        }
    }

    /// Returns the lock, or `None` if it was not taken yet or could not be taken.
    pub fn lock(&self) -> Option<&HostLock> {
        self.lock.as_ref()
    }

    /// Takes the lock in the first call. Returns true if the lock was not available at once:
    /// earlier reads may be stale.
    pub async fn take(&mut self) -> bool {
        let Some((files, file)) = self.file.take() else {
            return false;
        };
        self.lock = files.free_ipam_lock(file);
        if self.lock.is_none() {
            self.lock = files.ipam_lock(file).await;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::file_wait::Waiting;

    fn files(directory: &tempfile::TempDir) -> NodeFiles {
        NodeFiles::below(directory.path())
    }

    #[test]
    fn absolute_path_of_a_node_is_below_its_root() {
        let files = NodeFiles::below("/srv/node1");
        assert_eq!(files.path("/run/a"), Path::new("/srv/node1/run/a"));
        assert_eq!(files.path("run/a"), Path::new("run/a"));
        assert_eq!(
            NodeFiles::of_this_node().path("/run/a"),
            Path::new("/run/a")
        );
    }

    /// Grants a free lock only, and finds no file.
    #[derive(Debug)]
    struct NoWait;

    impl FileWait for NoWait {
        fn lock<'a>(
            &'a self,
            file: &'a Path,
            longest: Duration,
        ) -> Waiting<'a, Result<HostLock, LockError>> {
            let acquired = HostLock::acquire_within(file, Duration::ZERO);
            let outcome = acquired.map_err(|error| match error {
                LockError::Busy { path, .. } => LockError::Busy {
                    path,
                    waited: longest,
                },
                error => error,
            });
            Box::pin(async move { outcome })
        }

        fn file<'a>(&'a self, _: &'a Path, _: &'a str, _: Duration) -> Waiting<'a, bool> {
            Box::pin(async { false })
        }
    }

    #[tokio::test]
    async fn files_with_another_way_to_wait_block_no_thread() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(&directory).waiting_by(Arc::new(NoWait));
        let file = files.path("/lock");
        let minute = Duration::from_secs(60);
        let held = files.lock(&file, minute).await.unwrap();
        let error = files.lock(&file, minute).await.unwrap_err();
        assert!(matches!(error, LockError::Busy { waited, .. } if waited == minute));
        assert!(!files.wait_for(directory.path(), "missing", minute).await);
        drop(held);
        files.lock(&file, Duration::ZERO).await.unwrap();
    }

    #[tokio::test]
    async fn only_ipam_locks_are_released_early() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(&directory);
        let [first, second, other] = ["/first", "/second", "/other"].map(|name| files.path(name));
        let is_free = |path: &Path| HostLock::acquire_within(path, Duration::ZERO).is_ok();
        let locks = [
            files.ipam_lock(&first).await.unwrap(),
            files.free_ipam_lock(&second).unwrap(),
        ];
        let _stays = files.lock(&other, Duration::ZERO).await.unwrap();
        assert!(!is_free(&first) && locks.iter().all(HostLock::is_held));
        files.release_ipam_locks();
        assert!(is_free(&first) && is_free(&second) && !is_free(&other));
        assert!(!locks.iter().any(HostLock::is_held));
        let again = files.ipam_lock(&first).await.unwrap();
        drop(locks);
        assert!(again.is_held() && !is_free(&first));
    }

    #[tokio::test]
    async fn failure_to_take_the_ipam_lock_is_no_error() {
        let files = NodeFiles::of_this_node();
        let lock = files.ipam_lock(Path::new("/proc/no/such/ipam.lock")).await;
        assert!(lock.is_none());
    }

    #[tokio::test]
    async fn release_lock_reports_a_wait_once() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(&directory);
        let file = files.path("/lock");
        let mut free = ReleaseLock::new(&files, Some(&file));
        assert!(!free.take().await && free.lock().is_some());
        let (waiting, path) = (files.clone(), file.clone());
        let second = tokio::task::spawn_blocking(move || {
            tokio::runtime::Handle::current().block_on(async {
                let mut second = ReleaseLock::new(&waiting, Some(&path));
                let taken = (second.take().await, second.take().await);
                (taken.0, taken.1, second.lock().is_some())
            })
        });
        while !HostLock::is_waited_for(&file) {
            thread::sleep(Duration::from_millis(1));
        }
        drop(free);
        assert_eq!(second.await.unwrap(), (true, false, true));
        let mut none = ReleaseLock::new(&files, None);
        assert!(!none.take().await && none.lock().is_none());
    }
}
