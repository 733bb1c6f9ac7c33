//! SELinux labels: a file that replaces another one gets its label, which an administrator may have set.

use std::path::Path;

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

const LABEL: &str = "security.selinux";
/// Maximum length of a label; real labels are shorter.
const LONGEST: usize = 4096;

/// Copies the label of `old` to `new`. If there is none, or setting it is not permitted, the file keeps the label that
/// the policy assigns for its directory.
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
