//! SELinux labels: a file that replaces another one has the label of that one, which an administrator may have given
//! it.

use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

const LABEL: &str = "security.selinux";
/// Longer than any label.
const LONGEST: usize = 4096;

/// Gives `new` the label of `old`. Where there is none, or none may be given, the file has the label that the policy
/// has for its directory.
pub fn keep(old: &Path, new: &Path) {
    let mut label = [0; LONGEST];
    let Ok(length) = lgetxattr(old, LABEL, &mut label[..]) else { return };
    match lsetxattr(new, LABEL, &label[..length], XattrFlags::empty()) {
        Ok(()) => {}
        Err(error @ (Errno::NOTSUP | Errno::PERM | Errno::ACCESS)) => {
            tracing::info!(file = %old.display(), %error, "the SELinux label cannot be kept; the policy's is used");
        }
        Err(error) => tracing::warn!(file = %old.display(), %error, "the SELinux label cannot be kept"),
    }
}
