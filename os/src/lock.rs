//! [`HostLock`]: a lock on a file, usually the lock by which the plugin's processes on a node take
//! turns.
//!
//! Two first pods on a node then share a new block instead of claiming one each. The operations are
//! correct without the lock too, with one exception (`alloc/reserved_handle`), because every write
//! is a compare-and-swap. Upstream's processes use the same file, also with flock(2) (IPAM-44).

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

/// Default path of the lock file. `ipam_lock_file` overrides it (IPAM-43).
pub const DEFAULT_PATH: &str = "/var/run/calico/ipam.lock";
/// Longest wait before an operation continues without the lock. Upstream waits forever, so that one
/// stuck process blocks the whole node.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The lock, which is released when this value is dropped.
#[derive(Debug)]
pub struct HostLock {
    held: LockedFile,
}

/// The locked file; `None` after an early release.
type LockedFile = Arc<Mutex<Option<File>>>;

/// The IPAM locks of this process, which may serve several calls.
static IPAM_LOCKS: Mutex<Vec<Weak<Mutex<Option<File>>>>> = Mutex::new(Vec::new());

/// Releases all IPAM locks of this process before it waits for a busy API server, so that other
/// processes need not wait too.
pub fn release_ipam_locks() {
    for held in IPAM_LOCKS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
        .filter_map(|held| held.upgrade())
    {
        *held.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The reason why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file or its directory cannot be opened, or the file cannot be locked.
    #[error("cannot {action} lock file {path}: {cause}")]
    File {
        /// The attempted action: `open` or `lock`.
        action: &'static str,
        /// The lock file.
        path: String,
        /// The system's error.
        cause: io::Error,
    },
    /// Other processes kept the lock for the whole wait.
    #[error(
        "lock file {path} stayed locked for {waited:?}; see /proc/locks for the process that holds \
         it"
    )]
    Busy {
        /// The lock file.
        path: String,
        /// Duration of the wait.
        waited: Duration,
    },
}

impl HostLock {
    /// Takes the lock as an IPAM lock, which [`release_ipam_locks`] may release early. If this
    /// fails, logs the reason and returns `None`. Blocks the thread for up to [`LONGEST_WAIT`].
    pub fn acquire(path: &Path) -> Option<HostLock> {
        let lock = Self::acquire_within(path, LONGEST_WAIT);
        let lock =
            lock.inspect_err(|error| tracing::warn!(%error, "continuing without the IPAM lock"));
        lock.ok().map(Self::register_as_ipam_lock)
    }

    /// Takes the lock as an IPAM lock if it is free and the file can be locked.
    pub fn try_acquire(path: &Path) -> Option<HostLock> {
        Self::acquire_within(path, Duration::ZERO)
            .ok()
            .map(Self::register_as_ipam_lock)
    }

    /// Returns true until [`release_ipam_locks`] releases the lock.
    pub fn is_held(&self) -> bool {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    fn register_as_ipam_lock(self) -> Self {
        let mut all = IPAM_LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|held| held.strong_count() > 0);
        all.push(Arc::downgrade(&self.held));
        drop(all);
        self
    }

    /// Takes the lock, waiting no longer than `wait`.
    pub fn acquire_within(path: &Path, wait: Duration) -> Result<HostLock, LockError> {
        Self::acquire_as(path, wait, File::try_lock, File::lock)
    }

    /// Takes a shared lock, waiting no longer than `wait`. Several processes may have the shared
    /// lock at the same time.
    pub fn acquire_shared_within(path: &Path, wait: Duration) -> Result<HostLock, LockError> {
        Self::acquire_as(path, wait, File::try_lock_shared, File::lock_shared)
    }

    fn new(file: File) -> Self {
        HostLock {
            held: Arc::new(Mutex::new(Some(file))),
        }
    }

    fn acquire_as(
        path: &Path,
        wait: Duration,
        try_lock: fn(&File) -> Result<(), TryLockError>,
        lock: fn(&File) -> io::Result<()>,
    ) -> Result<HostLock, LockError> {
        let failed = |action| {
            move |cause| LockError::File {
                action,
                path: path.display().to_string(),
                cause,
            }
        };
        let busy = || LockError::Busy {
            path: path.display().to_string(),
            waited: wait,
        };
        let file = open(path).map_err(failed("open"))?;
        match try_lock(&file) {
            Ok(()) => Ok(HostLock::new(file)),
            Err(TryLockError::WouldBlock) if wait.is_zero() => Err(busy()),
            Err(TryLockError::WouldBlock) => {
                let waited = lock_within(file, wait, lock).ok_or_else(busy)?;
                waited.map(HostLock::new).map_err(failed("lock"))
            }
            Err(TryLockError::Error(cause)) => Err(failed("lock")(cause)),
        }
    }
}

/// The node's lock, taken when a release is ready to write. Before that, a release may wait for
/// writes of endpoints.
#[derive(Debug, Default)]
pub struct ReleaseLock<'f> {
    file: Option<&'f Path>,
    lock: Option<HostLock>,
}

impl<'f> ReleaseLock<'f> {
    /// Creates a value that uses no lock if `file` is `None`.
    pub fn new(file: Option<&'f Path>) -> Self {
        ReleaseLock { file, lock: None }
    }

    /// Returns the lock, or `None` if it was not taken yet or could not be taken.
    pub fn lock(&self) -> Option<&HostLock> {
        self.lock.as_ref()
    }

    /// Takes the lock in the first call. Returns true if the lock was not available at once:
    /// earlier reads may be stale.
    pub fn take(&mut self) -> bool {
        let Some(file) = self.file.take() else {
            return false;
        };
        self.lock = HostLock::try_acquire(file);
        if self.lock.is_none() {
            self.lock = HostLock::acquire(file);
            return true;
        }
        false
    }
}

/// Opens the file with the modes that upstream uses. The file is never removed (IPAM-44).
fn open(path: &Path) -> io::Result<File> {
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
    };
    match (open(), path.parent()) {
        (Err(error), Some(directory)) if error.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(directory)?;
            open()
        }
        (outcome, _) => outcome,
    }
}

/// Waits for the lock in a thread, because flock(2) has no timeout. Returns `None` after the
/// timeout.
fn lock_within(
    file: File,
    wait: Duration,
    lock: fn(&File) -> io::Result<()>,
) -> Option<io::Result<File>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let outcome = lock(&file).map(|()| file);
        // After the timeout there is no receiver, and the lock is released as soon as the thread
        // gets it.
        let _ = sender.send(outcome);
    });
    receiver.recv_timeout(wait).ok()
}

#[cfg(any(test, feature = "testing"))]
mod testing;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn host_lock_is_a_flock_on_a_private_file_in_a_created_directory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/calico/ipam.lock");
        let lock = HostLock::acquire(&path).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let ours = format!(":{} 0 EOF", metadata.ino());
        let line = locks
            .lines()
            .find(|line| line.contains(&ours))
            .expect("the lock is in /proc/locks");
        assert!(line.contains("FLOCK") && line.contains("WRITE"), "{line}");
        drop(lock);
        assert!(path.exists(), "the file stays");
    }

    #[test]
    fn second_acquire_blocks_until_release() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam.lock");
        let first = HostLock::acquire(&path).unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| HostLock::acquire_within(&path, Duration::from_secs(60)));
            while !HostLock::is_waited_for(&path) {
                assert!(!second.is_finished(), "the second acquire does not wait");
                thread::sleep(Duration::from_millis(1));
            }
            drop(first);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn timed_out_acquire_does_not_retain_the_lock_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam.lock");
        let first = HostLock::acquire(&path).unwrap();
        let error = HostLock::acquire_within(&path, Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, LockError::Busy { .. }), "{error}");
        drop(first);
        HostLock::acquire_within(&path, Duration::from_secs(20)).unwrap();
    }

    #[test]
    fn shared_locks_exclude_only_an_exclusive_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shared.lock");
        let first = HostLock::acquire_shared_within(&path, Duration::ZERO).unwrap();
        let second = HostLock::acquire_shared_within(&path, Duration::ZERO).unwrap();
        drop(first);
        assert!(matches!(
            HostLock::acquire_within(&path, Duration::ZERO),
            Err(LockError::Busy { .. })
        ));
        drop(second);
        // A child process that another test starts has the open file until it executes its program.
        let _alone = HostLock::acquire_within(&path, Duration::from_secs(20)).unwrap();
        assert!(matches!(
            HostLock::acquire_shared_within(&path, Duration::ZERO),
            Err(LockError::Busy { .. })
        ));
    }

    /// Other tests of this process have IPAM locks, so the test runs itself in a child process.
    #[test]
    fn only_address_locks_are_released_early() {
        const CHILD: &str = "CALICO_TEST_LET_OTHERS_IN";
        if std::env::var_os(CHILD).is_none() {
            let name = "lock::tests::only_address_locks_are_released_early";
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            assert!(
                child
                    .args(["--exact", name])
                    .env(CHILD, "1")
                    .status()
                    .unwrap()
                    .success()
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [first, second, other] = ["first", "second", "other"].map(|name| dir.path().join(name));
        let is_free = |path: &Path| HostLock::acquire_within(path, Duration::ZERO).is_ok();
        let locks = [
            HostLock::acquire(&first).unwrap(),
            HostLock::try_acquire(&second).unwrap(),
        ];
        let _stays = HostLock::acquire_within(&other, Duration::ZERO).unwrap();
        assert!(!is_free(&first) && locks.iter().all(HostLock::is_held));
        release_ipam_locks();
        assert!(is_free(&first) && is_free(&second) && !is_free(&other));
        assert!(!locks.iter().any(HostLock::is_held));
        let again = HostLock::acquire(&first).unwrap();
        drop(locks);
        assert!(again.is_held() && !is_free(&first));
    }

    #[test]
    fn failure_to_acquire_the_optional_host_lock_is_no_error() {
        assert!(HostLock::acquire(Path::new("/proc/no/such/ipam.lock")).is_none());
    }

    #[test]
    fn release_lock_reports_a_wait_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        let mut free = ReleaseLock::new(Some(&file));
        assert!(!free.take() && free.lock().is_some());
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let mut second = ReleaseLock::new(Some(&file));
                (second.take(), second.take(), second.lock().is_some())
            });
            while !HostLock::is_waited_for(&file) {
                thread::sleep(Duration::from_millis(1));
            }
            drop(free);
            assert_eq!(second.join().unwrap(), (true, false, true));
        });
        let mut none = ReleaseLock::new(None);
        assert!(!none.take() && none.lock().is_none());
    }
}
