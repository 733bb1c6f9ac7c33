//! [`Turn`]: the node's lock for one release.

use std::path::Path;

use crate::lock::HostLock;

/// The node's lock, taken when a release is ready to write. Before that, a release may wait for writes of endpoints,
/// and other processes of the node should not wait for these.
#[derive(Debug, Default)]
pub struct Turn<'f> {
    file: Option<&'f Path>,
    lock: Option<HostLock>,
}

impl<'f> Turn<'f> {
    /// Creates a turn that uses no lock if `file` is `None`.
    pub fn of(file: Option<&'f Path>) -> Self {
        Turn { file, lock: None }
    }

    /// Returns the lock after it was taken.
    pub fn lock(&self) -> Option<&HostLock> {
        self.lock.as_ref()
    }

    /// Takes the lock, once. Returns true if another process had it meanwhile, so that earlier reads may be stale.
    pub(super) fn take(&mut self) -> bool {
        let Some(file) = self.file.take() else { return false };
        self.lock = HostLock::try_acquire(file);
        if self.lock.is_none() {
            self.lock = HostLock::acquire(file);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Returns true if a process waits for the lock on the file.
    fn is_waited_for(file: &Path) -> bool {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let inode = format!(":{} 0 EOF", std::fs::metadata(file).unwrap().ino());
        locks.lines().any(|line| line.contains("->") && line.contains(&inode))
    }

    #[test]
    fn a_turn_tells_once_that_it_was_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        let mut free = Turn::of(Some(&file));
        assert!(!free.take() && free.lock().is_some());
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let mut second = Turn::of(Some(&file));
                (second.take(), second.take(), second.lock().is_some())
            });
            while !is_waited_for(&file) {
                thread::sleep(Duration::from_millis(1));
            }
            drop(free);
            assert_eq!(second.join().unwrap(), (true, false, true));
        });
        let mut none = Turn::of(None);
        assert!(!none.take() && none.lock().is_none());
    }
}
