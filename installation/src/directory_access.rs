//! [`UnwritableDirectory`]: a directory that root may not write without the capability
//! `DAC_OVERRIDE`, mostly because it belongs to another user. Kubespray gives the runtime's
//! directories to the user `kube`.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

/// The ways to get write access, for messages.
pub const REMEDY: &str = "enable components/dac-override (cni.dacOverride of the chart), or give \
                          the directory to root on the node";

/// The permission bits that are needed to create files in a directory.
const WRITE_AND_SEARCH: u32 = 0o3;

/// A directory that root may not write without the capability `DAC_OVERRIDE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct UnwritableDirectory {
    /// The path.
    pub path: PathBuf,
    /// The user who owns the directory.
    pub owner: u32,
    /// The group of the directory.
    pub group: u32,
    /// The permission bits.
    pub mode: u32,
    /// True if this process may not write the directory, because it lacks the capability.
    pub is_denied: bool,
}

impl fmt::Display for UnwritableDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {REMEDY}", self.observation())
    }
}

impl UnwritableDirectory {
    /// Examines a directory. Returns `None` if root may write it without any capability, or if it
    /// is missing or cannot be examined.
    #[must_use]
    pub fn examine(path: &Path) -> Option<UnwritableDirectory> {
        let found = fs::metadata(path).ok()?;
        let (owner, group, mode) = (found.uid(), found.gid(), found.mode() & 0o7777);
        let is_denied = access(path, AccessFlags::W_OK | AccessFlags::X_OK) == Err(Errno::EACCES);
        let unwritable = UnwritableDirectory {
            path: path.to_owned(),
            owner,
            group,
            mode,
            is_denied,
        };
        (!may_root_write(owner, group, mode)).then_some(unwritable)
    }

    /// Examines a directory. Returns `None` unless only the missing capability keeps this process
    /// from writing it.
    #[must_use]
    pub fn denied(path: &Path) -> Option<UnwritableDirectory> {
        UnwritableDirectory::examine(path).filter(|directory| directory.is_denied)
    }

    /// Returns a description without the remedy.
    #[must_use]
    pub fn observation(&self) -> String {
        let UnwritableDirectory {
            path,
            owner,
            group,
            mode,
            ..
        } = self;
        format!(
            "{} belongs to user {owner} and group {group} with mode {mode:04o}, so root needs the \
             capability DAC_OVERRIDE to write there",
            path.display()
        )
    }
}

/// Returns true if root, without capabilities and further groups, may create files in a directory.
fn may_root_write(owner: u32, group: u32, mode: u32) -> bool {
    let class = match (owner, group) {
        (0, _) => mode >> 6,
        (_, 0) => mode >> 3,
        _ => mode,
    };
    class & WRITE_AND_SEARCH == WRITE_AND_SEARCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_writes_by_the_class_of_its_user_and_group() {
        for (owner, group, mode, expected) in [
            (0, 0, 0o755, true),
            (0, 0, 0o555, false),
            (997, 0, 0o755, false),
            (997, 0, 0o775, true),
            (997, 997, 0o775, false),
            (997, 997, 0o1777, true),
        ] {
            assert_eq!(
                may_root_write(owner, group, mode),
                expected,
                "{owner} {group} {mode:o}"
            );
        }
    }

    #[test]
    fn unwritable_directory_is_described_with_owner_mode_and_remedy() {
        let path = PathBuf::from("/host/etc/cni/net.d");
        let directory = UnwritableDirectory {
            path,
            owner: 997,
            group: 0,
            mode: 0o755,
            is_denied: true,
        };
        assert_eq!(
            directory.to_string(),
            "/host/etc/cni/net.d belongs to user 997 and group 0 with mode 0755, so root needs the \
             capability DAC_OVERRIDE to write there; enable components/dac-override \
             (cni.dacOverride of the chart), or give the directory to root on the node"
        );
        assert_eq!(
            UnwritableDirectory::examine(Path::new("/no/such/directory")),
            None
        );
    }
}
