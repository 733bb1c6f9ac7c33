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
    /// Returns true until `NodeFiles::release_ipam_locks` releases the lock.
    pub fn is_held(&self) -> bool {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    /// Returns a reference by which `NodeFiles::release_ipam_locks` releases the lock early.
    pub(crate) fn early_release(&self) -> EarlyRelease {
        EarlyRelease(Arc::downgrade(&self.held))
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

/// A reference to a lock that another part of the process has.
#[derive(Debug)]
pub(crate) struct EarlyRelease(Weak<Mutex<Option<File>>>);

impl EarlyRelease {
    /// Releases the lock. Does nothing if it is released already.
    pub(crate) fn release(self) {
        if let Some(held) = self.0.upgrade() {
            *held.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Returns true as long as the lock's value exists.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
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
        let lock = HostLock::acquire_within(&path, Duration::ZERO).unwrap();
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
        let first = HostLock::acquire_within(&path, Duration::ZERO).unwrap();
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
        let first = HostLock::acquire_within(&path, Duration::ZERO).unwrap();
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
}
