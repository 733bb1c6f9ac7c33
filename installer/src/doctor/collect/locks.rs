//! Finds processes that hold the locks of this node. Locks are normally held for milliseconds, so a process that is
//! seen repeatedly is slow or stuck.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::{major, minor};
use tokio::time::sleep;

use crate::doctor::snapshot::{Holder, Lock, Unobserved};

/// Observation time. An ADD holds the IPAM lock while it waits for the datastore.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOKS: u32 = 30;

/// Observes a lock until it is free, or has been held by the same process for the whole time.
pub(super) async fn observe(name: &'static str, path: &Path) -> Lock {
    let holder = wait(path).await.map_err(Unobserved::new);
    Lock { name, path: path.to_owned(), holder }
}

/// Returns the process that held the lock all the time, or `None` once the lock is free or another process holds it.
async fn wait(path: &Path) -> io::Result<Option<Holder>> {
    let mut holder = observe_once(path)?;
    let first = holder.clone();
    for _ in 0..LOOKS {
        if holder.is_none() || holder != first {
            return Ok(None);
        }
        sleep(PATIENCE / LOOKS).await;
        holder = observe_once(path)?;
    }
    Ok(holder)
}

/// Takes the lock and releases it again. Returns the holder if the lock is held. A missing file is not created and
/// counts as free.
fn observe_once(path: &Path) -> io::Result<Option<Holder>> {
    let file = match File::options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let found = file.metadata()?;
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let process = find_process(&locks, major(found.dev()), minor(found.dev()), found.ino());
    Ok(Some(Holder { command: process.map(command).unwrap_or_default(), process }))
}

/// Returns the process that holds a lock, from lines such as `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`. A
/// waiting process has an arrow after the number. Processes of other PID namespaces are not listed.
fn find_process(locks: &str, major: u64, minor: u64, inode: u64) -> Option<u32> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, process, file, ..] = fields[..] else { return None };
        let mut file = file.split(':');
        let (at_major, at_minor, at_inode) = (file.next()?, file.next()?, file.next()?);
        let device = (u64::from_str_radix(at_major, 16).ok()?, u64::from_str_radix(at_minor, 16).ok()?);
        (device == (major, minor) && at_inode.parse() == Ok(inode)).then(|| process.parse().ok())?
    };
    locks.lines().find_map(of)
}

/// Returns the command line of a process, or its name if the command line is empty.
fn command(process: u32) -> String {
    let read = |name: &str| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
    let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
    let line = if line.trim().is_empty() { String::from_utf8_lossy(&read("comm")).into_owned() } else { line };
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_by_device_and_inode_and_whoever_waits_is_none() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 08:01:1234 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 11 00:1a:1234 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 12 08:01:1234 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 13 08:01:1234 0 EOF\n";
        assert_eq!(find_process(locks, 8, 1, 1234), Some(13));
        assert_eq!(find_process(locks, 0, 26, 1234), Some(11));
        assert_eq!(find_process(locks, 8, 1, 1), None);
        assert_eq!(find_process("nonsense\n1: FLOCK a b c d\n", 8, 1, 1), None);
    }

    #[test]
    fn a_lock_that_is_held_has_its_process_and_a_free_one_has_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.lock");
        assert_eq!(observe_once(&path).unwrap(), None);
        assert!(!path.exists(), "to look for it is not to make it");
        let file = File::create(&path).unwrap();
        assert_eq!(observe_once(&path).unwrap(), None);
        file.lock().unwrap();
        let holder = observe_once(&path).unwrap().unwrap();
        assert_eq!(holder.process, Some(std::process::id()));
        assert!(holder.command.contains("installer"), "{}", holder.command);
    }

    /// A path through a file cannot be opened, not even by root.
    #[tokio::test]
    async fn a_lock_that_cannot_be_opened_is_not_free() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = observe("x", &file.path().join("lock")).await;
        assert!(lock.holder.unwrap_err().to_string().contains("Not a directory"));
    }
}
