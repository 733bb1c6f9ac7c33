//! Files that are there whole or not at all: written beside, then renamed into place.
//!
//! The draft is in the directory of the file (containerd looks again at its configuration when a file is moved away
//! from a name in there, not when one appears, INST-161), and its name ends in no suffix that a runtime reads
//! (INST-159). Each draft is locked while its process lives: what is not locked is left over from a process that died,
//! and [`sweep`] removes it.

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

/// What the names of drafts end in.
const SUFFIX: &str = ".calico-draft.tmp";
/// How often another one may take away or take up the name of a draft.
const ATTEMPTS: u32 = 10;

/// Why a file is not in place. What was there before still is.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", .path.display())]
pub struct AtomicFileError {
    /// What was tried.
    pub action: &'static str,
    /// On which file.
    pub path: PathBuf,
    /// The system's words.
    pub source: io::Error,
}

impl AtomicFileError {
    /// Returns true if another program keeps the file as it wants it.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        self.source.kind() == ErrorKind::ResourceBusy
    }
}

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is new or other than before.
    Written,
    /// It was so already; nothing was touched.
    Unchanged,
}

/// Makes `path` a file with these contents and this mode. The file is never seen with other contents than before or
/// after, nor with a wider mode.
///
/// # Errors
/// The directory is missing, read-only or full.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<Change, AtomicFileError> {
    if is_so(path, contents, mode) {
        return Ok(Change::Unchanged);
    }
    let mut draft = Draft::beside(path)?;
    draft.write(contents)?;
    draft.finish(mode)?.put_in_place()?;
    Ok(Change::Written)
}

/// Whether `path` is a file with these contents and this mode.
pub fn is_so(path: &Path, contents: &[u8], mode: u32) -> bool {
    has_mode(path, mode) && fs::read(path).is_ok_and(|found| found == contents)
}

/// Whether `path` is a regular file with this mode, and no link to one.
fn has_mode(path: &Path, mode: u32) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o7777 == mode)
}

/// A file that is being written, beside the one that it is to become. Removed when it is dropped before that.
#[derive(Debug)]
pub struct Draft {
    held: Held,
    file: File,
}

/// A draft that is written, synchronised, and open nowhere for writing: it can be executed.
#[derive(Debug)]
pub struct Finished {
    held: Held,
}

/// The draft's name, and the lock that says that somebody still needs it.
#[derive(Debug)]
struct Held {
    target: PathBuf,
    path: PathBuf,
    in_place: bool,
    /// Open for reading: a program that is open for writing cannot be executed.
    _lock: File,
}

impl Draft {
    /// Begins a draft of `target`. Nobody else may read it yet.
    ///
    /// # Errors
    /// The directory is missing, read-only or full.
    pub fn beside(target: &Path) -> Result<Draft, AtomicFileError> {
        let mut refused = io::Error::from(ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let path = draft_name(target);
            match create(&path) {
                Ok((file, lock)) => {
                    let held = Held { target: target.into(), path, in_place: false, _lock: lock };
                    return Ok(Draft { held, file });
                }
                // Somebody has that name, or swept it away before it was locked.
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

    /// Appends.
    ///
    /// # Errors
    /// The disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), AtomicFileError> {
        self.file.write_all(bytes).map_err(|source| self.held.error("write", source))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Gives the file its mode, then has it on the disk, then closes it. It gets the security label of the file that it
    /// is going to replace.
    ///
    /// # Errors
    /// The system refuses.
    pub fn finish(self, mode: u32) -> Result<Finished, AtomicFileError> {
        self.finish_for(mode, None)
    }

    /// The same, with an owner and a group where the system allows to give them.
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
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.held.path
    }

    /// Renames it to the file that it is to become, and has that on the disk as well.
    ///
    /// # Errors
    /// The system refuses; the file that was there before still is.
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
            // What remains is swept away by the next run.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives a file a second name in its directory, in place of what has it.
///
/// # Errors
/// The file system has no hard links, or the directory cannot be written.
pub fn link(file: &Path, name: &Path) -> Result<(), AtomicFileError> {
    let refused = |action| move |source| AtomicFileError { action, path: name.into(), source };
    let draft = draft_name(name);
    fs::hard_link(file, &draft).map_err(refused("make the hard link"))?;
    let renamed = fs::rename(&draft, name).map_err(refused("rename the hard link to"));
    // A rename between two names of one file leaves both.
    let _ = fs::remove_file(&draft);
    renamed?;
    sync_directory(name)
}

/// Removes drafts in `directory` that no process works on; says how many. A directory that cannot be read holds none.
pub fn sweep(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| is_draft(&entry.path()) && remove_abandoned(&entry.path())).count()
}

/// Whether a path is named like a draft.
pub fn is_draft(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.') && name.ends_with(SUFFIX))
}

/// The lock is held until the name is gone: whoever waits for it looks whether its draft still has one.
fn remove_abandoned(path: &Path) -> bool {
    let Ok(draft) = File::open(path) else { return false };
    draft.try_lock().is_ok() && fs::remove_file(path).is_ok()
}

/// Returns a name for a draft of `target` that no other draft has: process ids repeat, as each container counts its
/// own.
pub fn draft_name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let random = RandomState::new().hash_one(std::process::id());
    target.with_file_name(format!(".{name}.{random:016x}{SUFFIX}"))
}

fn create(path: &Path) -> io::Result<(File, File)> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let lock = File::open(path)?;
    lock.lock()?;
    // Swept away while it was not locked yet.
    if lock.metadata()?.nlink() == 0 {
        return Err(ErrorKind::NotFound.into());
    }
    Ok((file, lock))
}

/// Gives a file an owner and a group. Where the system refuses, as in a narrow user namespace or on a file system
/// without owners, the file stays this process's.
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
