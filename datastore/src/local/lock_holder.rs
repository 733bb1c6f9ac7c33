//! Finds the process that keeps the database locked, for the error of a process that waited in vain.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns `process 4711 (calico)`, or `None` if the kernel does not reveal the process.
pub(super) fn find(path: &Path) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let mut shared = path.as_os_str().to_owned();
    shared.push("-shm");
    let inodes: Vec<u64> = [path, Path::new(&shared)].iter().filter_map(|p| Some(p.metadata().ok()?.ino())).collect();
    let pid = writer(&locks, &inodes)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("process {pid} ({})", name.trim_end()))
}

/// Returns the process that has a write lock on one of the inodes, from lines such as `1: POSIX  ADVISORY  WRITE 4711
/// 08:01:123456 120 120`. A line with `->` describes a waiting process.
fn writer(locks: &str, inodes: &[u64]) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (kind, _, mode) = (fields.next()?, fields.next()?, fields.next()?);
        let (pid, file) = (fields.next()?, fields.next()?);
        let inode: u64 = file.rsplit(':').next()?.parse().ok()?;
        (kind == "POSIX" && mode == "WRITE" && inodes.contains(&inode)).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_writer_and_not_readers_or_waiters() {
        let locks = "1: POSIX  ADVISORY  READ 11 08:01:77 128 128\n\
                     2: POSIX  ADVISORY  WRITE 12 08:01:78 120 120\n\
                     3: POSIX  ADVISORY  WRITE 13 08:01:77 120 120\n\
                     3: -> POSIX  ADVISORY  WRITE 14 08:01:77 120 120\n";
        assert_eq!(writer(locks, &[77]), Some(13));
        assert_eq!(writer(locks, &[79]), None);
        assert_eq!(writer("", &[77]), None);
    }
}
