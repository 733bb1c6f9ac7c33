//! Finds directories of the node that were removed while this container has them mounted. The mount
//! still leads to the removed directory, which no runtime reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

/// Interval between two reads of the list of mounts.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// The suffix that the kernel adds to the path of a removed directory in the list of mounts.
const REMOVED: &str = "//deleted";

/// Waits until one of the mounted directories is removed on the node, and returns its mount point.
pub(super) async fn wait_for_removal(directories: &[PathBuf]) -> PathBuf {
    loop {
        if let Some(removed) = removed(directories) {
            return removed;
        }
        sleep(INTERVAL).await;
    }
}

/// Returns the mount point of the first of the mounted directories that is removed on the node.
pub(super) fn removed(directories: &[PathBuf]) -> Option<PathBuf> {
    // The number of a directory's links cannot be used instead: on an overlay file system it may be
    // 1 after the removal.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    directories
        .iter()
        .find(|directory| is_removed(&mounts, directory))
        .cloned()
}

/// Returns true if `mounts`, the text of `/proc/self/mountinfo`, lists a removed directory at the
/// mount point `point`.
///
/// A line has the form `36 35 98:0 /mnt1 /mnt2 rw,noatime …`, with the mounted directory before the
/// mount point. A later line covers an earlier one with the same mount point.
fn is_removed(mounts: &str, point: &Path) -> bool {
    let is_removed = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        (Path::new(at) == point).then(|| root.ends_with(REMOVED))
    };
    mounts.lines().rev().find_map(is_removed).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn removed_directory_is_found_unless_another_mount_covers_it() {
        let net = Path::new("/host/etc/cni/net.d");
        let line = |root: &str, point: &str| {
            format!("22 21 8:1 {root} {point} rw,relatime - ext4 /dev/sda1 rw\n")
        };
        let live = line("/etc/cni/net.d", "/host/etc/cni/net.d");
        let removed = line("/etc/cni/net.d//deleted", "/host/etc/cni/net.d");
        assert!(!is_removed("", net) && !is_removed(&live, net));
        assert!(is_removed(&removed, net) && is_removed(&format!("{live}{removed}"), net));
        assert!(!is_removed(&format!("{removed}{live}"), net));
        assert!(!is_removed(
            &line("/opt/cni/bin//deleted", "/host/opt/cni/bin"),
            net
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn directory_that_is_no_mount_is_never_reported() {
        let directory = tempfile::tempdir().unwrap();
        assert!(
            timeout(3 * INTERVAL, wait_for_removal(&[directory.path().into()]))
                .await
                .is_err()
        );
    }
}
