//! Atomic file replacement: writes a draft in the same directory, then renames it.
//!
//! The draft must be in the directory of the file, because containerd reloads its configuration when a file in there is
//! renamed, and not when one is moved in from elsewhere (INST-161). The draft's name has no extension that a runtime
//! reads (INST-159). Each draft is locked while its process runs. An unlocked draft is left over from a process that
//! ended, and [`sweep`] removes it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::security_label;

mod amend;
mod exchange;
pub mod regular_file;
mod there;

pub use amend::{amend, settled};
pub use there::There;

/// The end of a draft's name.
const SUFFIX: &str = ".calico-draft.tmp";
/// Number of attempts, as another process may take or remove the name of a draft.
const ATTEMPTS: u32 = 10;

/// The reason why a file was not replaced. The previous file is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", .path.display())]
pub struct AtomicFileError {
    /// The attempted action.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl AtomicFileError {
    /// Returns true if another program keeps rewriting the file.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.source.kind() == ErrorKind::ResourceBusy
    }
}

/// The effect on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The file is new or changed.
    Written,
    /// The file had the wanted contents already and was not touched.
    Unchanged,
}

/// Makes `path` a file with these contents and this mode. Readers see the previous or the new contents only, and never
/// a wider mode.
///
/// # Errors
/// Returns an error if the directory is missing, read-only or full.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<Change, AtomicFileError> {
    if is_so(path, contents, mode) {
        return Ok(Change::Unchanged);
    }
    let mut draft = Draft::beside(path)?;
    draft.write(contents)?;
    draft.finish(mode)?.put_in_place()?;
    Ok(Change::Written)
}

/// Returns true if `path` is a file with these contents and this mode.
pub fn is_so(path: &Path, contents: &[u8], mode: u32) -> bool {
    has_mode(path, mode) && fs::read(path).is_ok_and(|found| found == contents)
}

/// Returns true if `path` is a regular file with this mode. A link to such a file does not count.
fn has_mode(path: &Path, mode: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o7777 == mode)
}

/// A file that is being written next to the file that it replaces. It is removed if it is dropped before that.
#[derive(Debug)]
pub struct Draft {
    held: Held,
    file: File,
}

/// A draft that is complete, synced to disk, and nowhere open for writing, so that it can be executed.
#[derive(Debug)]
pub struct Finished {
    held: Held,
}

/// The draft's name, and the lock that shows that a process still needs the draft.
#[derive(Debug)]
struct Held {
    target: PathBuf,
    path: PathBuf,
    in_place: bool,
    /// Open for reading, because a program that is open for writing cannot be executed.
    _lock: File,
}

impl Draft {
    /// Creates a draft of `target`, which no other user may read yet.
    ///
    /// # Errors
    /// Returns an error if the directory is missing, read-only or full.
    pub fn beside(target: &Path) -> Result<Draft, AtomicFileError> {
        let mut refused = io::Error::from(ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let path = draft_name(target);
            match create(&path) {
                Ok((file, lock)) => {
                    let held = Held { target: target.into(), path, in_place: false, _lock: lock };
                    return Ok(Draft { held, file });
                }
                // Another process has that name, or removed the draft before it was locked.
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => {
                    let is_missing = !target.parent().is_none_or(Path::exists);
                    refused = error;
                    if is_missing {
                        break;
                    }
                }
                Err(error) => {
                    refused = error;
                    break;
                }
            }
        }
        Err(AtomicFileError { action: "create a file beside", path: target.into(), source: refused })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Returns an error if the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), AtomicFileError> {
        self.file.write_all(bytes).map_err(|source| self.held.error("write", source))
    }

    /// Returns the draft's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Sets the file's mode and the security label of the file that it replaces, syncs the file to disk and closes it.
    ///
    /// # Errors
    /// Returns an error if the system refuses.
    /// The system refuses.
    pub fn finish(self, mode: u32) -> Result<Finished, AtomicFileError> {
        self.finish_for(mode, None)
    }

    /// Does the same as [`Draft::finish`], and sets owner and group if the system permits it.
    fn finish_for(self, mode: u32, owner: Option<(u32, u32)>) -> Result<Finished, AtomicFileError> {
        let Draft { held, file } = self;
        security_label::keep(&held.target, &held.path);
        file.set_permissions(Permissions::from_mode(mode)).map_err(|source| held.error("set the mode of", source))?;
        if let Some(owner) = owner {
            give(&file, owner, &held.target);
        }
        file.sync_all().map_err(|source| held.error("synchronise", source))?;
        Ok(Finished { held })
    }
}

impl Finished {
    /// Returns the draft's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Renames the draft to the file that it replaces, and syncs the directory to disk.
    ///
    /// # Errors
    /// Returns an error if the system refuses; the previous file then still exists.
    pub fn put_in_place(self) -> Result<(), AtomicFileError> {
        let mut held = self.held;
        fs::rename(&held.path, &held.target).map_err(|source| held.error("rename the new file to", source))?;
        held.in_place = true;
        sync_directory(&held.target)
    }
}

impl Held {
    fn error(&self, action: &'static str, source: io::Error) -> AtomicFileError {
        AtomicFileError { action, path: self.target.clone(), source }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.in_place {
            // A later run removes a draft that remains here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives a file a second name in its directory, replacing any file of that name.
///
/// # Errors
/// Returns an error if the file system has no hard links, or if the directory cannot be written.
pub fn link(file: &Path, name: &Path) -> Result<(), AtomicFileError> {
    let refused = |action| move |source| AtomicFileError { action, path: name.into(), source };
    let draft = draft_name(name);
    fs::hard_link(file, &draft).map_err(refused("make the hard link"))?;
    let renamed = fs::rename(&draft, name).map_err(refused("rename the hard link to"));
    // A rename between two names of one file keeps both names.
    let _ = fs::remove_file(&draft);
    renamed?;
    sync_directory(name)
}

/// Removes drafts in `directory` that no process uses, and returns their number. An unreadable directory counts as
/// empty.
pub fn sweep(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| is_draft(&entry.path()) && remove_abandoned(&entry.path())).count()
}

/// Returns true if a path has the name of a draft.
pub fn is_draft(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.') && name.ends_with(SUFFIX))
}

/// Removes a draft unless it is in use. The lock is kept until the name is removed, because its creator may wait for
/// the lock and checks afterwards that the draft still has a name.
fn remove_abandoned(path: &Path) -> bool {
    let Ok(draft) = File::open(path) else { return false };
    draft.try_lock().is_ok() && fs::remove_file(path).is_ok()
}

/// Returns a unique name for a draft of `target`. Process IDs do not suffice, because each container counts its own.
pub fn draft_name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let random = RandomState::new().hash_one(std::process::id());
    target.with_file_name(format!(".{name}.{random:016x}{SUFFIX}"))
}

fn create(path: &Path) -> io::Result<(File, File)> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let lock = File::open(path)?;
    lock.lock()?;
    // Another process removed the draft before it was locked.
    if lock.metadata()?.nlink() == 0 {
        return Err(ErrorKind::NotFound.into());
    }
    Ok((file, lock))
}

/// Sets a file's owner and group. If the system refuses, as in a restricted user namespace or on a file system without
/// owners, the file keeps this process's owner.
fn give(file: &File, owner: (u32, u32), target: &Path) {
    let is_so = file.metadata().is_ok_and(|found| (found.uid(), found.gid()) == owner);
    if let Some(error) = (!is_so).then(|| fchown(file, Some(owner.0), Some(owner.1)).err()).flatten() {
        let (uid, gid) = owner;
        tracing::info!(file = %target.display(), uid, gid, %error, "the owner of the file cannot be kept");
    }
}

fn sync_directory(file: &Path) -> Result<(), AtomicFileError> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let synchronised = File::open(directory).and_then(|directory| directory.sync_all());
    synchronised.map_err(|source| AtomicFileError { action: "synchronise", path: directory.into(), source })
}

#[cfg(test)]
mod tests;
