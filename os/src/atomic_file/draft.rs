//! [`Draft`]: a file that is being written beside the file that it replaces.

use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

pub(super) const SUFFIX: &str = ".calico-draft.tmp";
/// Maximum number of attempts to create a draft, and of exchanges that put another program's file
/// back.
pub(super) const ATTEMPTS: u32 = 10;

/// The failure of an operation on a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", .path.display())]
pub struct AtomicFileError {
    /// The attempted action, which the path follows in the message.
    pub action: &'static str,
    /// The file, or the directory that cannot be synchronized.
    pub path: PathBuf,
    /// The system's error, or an error of this module.
    pub source: io::Error,
}

/// The result of an operation on a file.
pub(super) type Result<T, E = AtomicFileError> = std::result::Result<T, E>;

impl AtomicFileError {
    /// Returns true if another program keeps rewriting the file. The system's EBUSY does not count:
    /// a rename onto a mount point always fails with it.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.source.kind() == ErrorKind::ResourceBusy && self.source.raw_os_error().is_none()
    }
}

/// The effect on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The file is new or changed.
    Written,
    /// The file needed no change and was not touched.
    Unchanged,
}

/// A file that is being written next to the file that it replaces. It is removed if it is dropped
/// before it has replaced that file.
#[derive(Debug)]
pub struct Draft {
    name: DraftName,
    file: File,
}

/// A draft that is complete, synced to disk, and closed, so that it can be executed.
#[derive(Debug)]
pub struct Finished {
    pub(super) name: DraftName,
}

/// The draft's name, and the lock that shows that a process still needs the draft.
#[derive(Debug)]
pub(super) struct DraftName {
    pub(super) target: PathBuf,
    pub(super) path: PathBuf,
    pub(super) in_place: bool,
    /// Open for reading, because a program that is open for writing cannot be executed.
    _lock: File,
}

impl Draft {
    /// Creates an empty draft of `target` in the directory of `target`, with mode 0600.
    ///
    /// # Errors
    /// Returns an error, for example if the directory is missing or read-only, or if the disk is
    /// full.
    pub fn beside(target: &Path) -> Result<Draft> {
        let mut last_error = io::Error::from(ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let path = draft_name(target);
            match create(&path) {
                Ok((file, lock)) => {
                    let name = DraftName {
                        target: target.into(),
                        path,
                        in_place: false,
                        _lock: lock,
                    };
                    return Ok(Draft { name, file });
                }
                Err(error) => {
                    // Another process has that name, or removed the draft before it was locked.
                    let is_taken =
                        matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound)
                            && target.parent().is_none_or(Path::exists);
                    last_error = error;
                    if !is_taken {
                        break;
                    }
                }
            }
        }
        Err(AtomicFileError {
            action: "create a file beside",
            path: target.into(),
            source: last_error,
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|source| self.name.error("write", source))
    }

    /// Returns the draft's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.name.path
    }

    /// Completes the draft, with the SELinux label of the file that it replaces. A label that
    /// cannot be set is only logged.
    ///
    /// # Errors
    /// Returns an error if the mode cannot be set or the draft cannot be synced.
    pub fn finish(self, mode: u32) -> Result<Finished> {
        self.finish_for(mode, None)
    }

    /// Does the same as [`Draft::finish`], and sets `owner`, the user ID and the group ID, if the
    /// system permits it.
    pub(super) fn finish_for(self, mode: u32, owner: Option<(u32, u32)>) -> Result<Finished> {
        let Draft { name, file } = self;
        keep_label(&name.target, &name.path);
        name.set_mode(&file, mode)?;
        if let Some(owner) = owner {
            keep_owner(&file, owner, &name.target);
        }
        file.sync_all()
            .map_err(|source| name.error("synchronize", source))?;
        Ok(Finished { name })
    }

    /// Sets the mode and renames the draft to the file that it replaces, without syncing it.
    pub(super) fn put_in_place_unsynced(mut self, mode: u32) -> Result<()> {
        self.name.set_mode(&self.file, mode)?;
        self.name.rename()
    }
}

impl Finished {
    /// Returns the draft's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.name.path
    }

    /// Renames the draft to the file that it replaces, and syncs the directory to disk.
    ///
    /// # Errors
    /// Returns an error if the rename fails, with the previous file still in place, or if the
    /// directory cannot be synced, with the draft in place.
    pub fn put_in_place(self) -> Result<()> {
        let mut name = self.name;
        name.rename()?;
        sync_directory(&name.target)
    }
}

impl DraftName {
    fn set_mode(&self, file: &File, mode: u32) -> Result<()> {
        file.set_permissions(Permissions::from_mode(mode))
            .map_err(|source| self.error("set the mode of", source))
    }

    fn rename(&mut self) -> Result<()> {
        fs::rename(&self.path, &self.target)
            .map_err(|source| self.error("rename the new file to", source))?;
        self.in_place = true;
        Ok(())
    }

    pub(super) fn error(&self, action: &'static str, source: io::Error) -> AtomicFileError {
        AtomicFileError {
            action,
            path: self.target.clone(),
            source,
        }
    }
}

impl Drop for DraftName {
    fn drop(&mut self) {
        if !self.in_place {
            // If this fails, a later sweep removes the draft.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns true if a path has the name of a draft.
pub fn is_draft(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with('.') && name.ends_with(SUFFIX))
}

/// Returns a unique name for a draft of `target`. Process IDs do not suffice, because each
/// container counts its own.
pub fn draft_name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let random = RandomState::new().hash_one(std::process::id());
    target.with_file_name(format!(".{name}.{random:016x}{SUFFIX}"))
}

fn create(path: &Path) -> io::Result<(File, File)> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let lock = File::open(path)?;
    lock.lock()?;
    // Without a link, another process removed the draft before the lock was taken.
    if lock.metadata()?.nlink() == 0 {
        Err(ErrorKind::NotFound.into())
    } else {
        Ok((file, lock))
    }
}

/// Sets a file's owner and group, unless the system refuses, as in a restricted user namespace.
fn keep_owner(file: &File, owner: (u32, u32), target: &Path) {
    let is_owner = file
        .metadata()
        .is_ok_and(|found| (found.uid(), found.gid()) == owner);
    if let Some(error) = (!is_owner)
        .then(|| fchown(file, Some(owner.0), Some(owner.1)).err())
        .flatten()
    {
        let (uid, gid) = owner;
        tracing::info!(
            file = %target.display(), uid, gid, %error,
            "cannot keep the owner of the previous file"
        );
    }
}

pub(super) fn sync_directory(file: &Path) -> Result<()> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| AtomicFileError {
        action: "synchronize",
        path: directory.into(),
        source,
    })
}

const LABEL: &str = "security.selinux";
/// Maximum length in bytes of a label that is copied.
const LONGEST_LABEL: usize = 4096;

/// Copies the SELinux label of `old`, if it has one, to `new`.
fn keep_label(old: &Path, new: &Path) {
    let mut label = [0; LONGEST_LABEL];
    let Ok(length) = lgetxattr(old, LABEL, &mut label[..]) else {
        return;
    };
    match lsetxattr(new, LABEL, &label[..length], XattrFlags::empty()) {
        Ok(()) => {}
        Err(error @ (Errno::NOTSUP | Errno::PERM | Errno::ACCESS)) => {
            tracing::info!(
                file = %old.display(), %error,
                "cannot copy the SELinux label to the new file"
            );
        }
        Err(error) => tracing::warn!(
            file = %old.display(), %error,
            "cannot copy the SELinux label to the new file"
        ),
    }
}
