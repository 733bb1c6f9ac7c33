//! For tests: the processes that wait for a lock.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::HostLock;

impl HostLock {
    /// Returns true if a thread or a process waits for the lock on a file.
    ///
    /// # Panics
    /// Panics if the file or the kernel's list of locks cannot be read.
    pub fn is_waited_for(file: &Path) -> bool {
        let locks = fs::read_to_string("/proc/locks").expect("the kernel lists locks");
        let metadata = fs::metadata(file).expect("a lock is a file");
        let inode = format!(":{} 0 EOF", metadata.ino());
        locks
            .lines()
            .any(|line| line.contains("->") && line.contains(&inode))
    }
}
