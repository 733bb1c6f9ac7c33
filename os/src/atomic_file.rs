//! Atomic file replacement: writes a draft in the same directory, then renames it.
//!
//! containerd reloads its configuration when a file in its directory is renamed, and not when one
//! is moved in from elsewhere (INST-161). The draft's name has no extension that a runtime reads
//! (INST-159). Each draft except that of a [`link()`] is locked while its process runs; [`sweep`]
//! removes unlocked ones.

mod amend;
mod draft;
mod exchange;
pub mod regular_file;

use std::fs::{self, Metadata};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub use amend::{amend, amend_by, read_complete};
pub use draft::{AtomicFileError, Change, Draft, Finished, draft_name, is_draft};
use draft::{Result, sync_directory};
pub use exchange::Replacement;
pub use regular_file::ReadFile;

/// Makes `path` a file with these contents and this mode. Readers see either the previous file or
/// the complete new file with its mode.
///
/// # Errors
/// Returns an error, for example if the directory of `path` is missing or read-only, or if the disk
/// is full.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<Change> {
    if has_contents(path, contents, mode) {
        return Ok(Change::Unchanged);
    }
    let mut draft = Draft::beside(path)?;
    draft.write(contents)?;
    draft.finish(mode)?.put_in_place()?;
    Ok(Change::Written)
}

/// Makes `path` a file with these contents and this mode, as [`replace`] does, but without waiting
/// for the disk and without the previous file's SELinux label. Also removes the drafts of killed
/// processes in the directory. For files that a reboot may lose: a crash of the machine may leave an
/// empty file.
///
/// # Errors
/// Returns an error, for example if the directory of `path` is missing or read-only.
pub fn replace_unsynced(path: &Path, contents: &[u8], mode: u32) -> Result<()> {
    let mut draft = Draft::beside(path)?;
    draft.write(contents)?;
    draft.put_in_place_unsynced(mode)?;
    sweep(path.parent().unwrap_or(Path::new("/")));
    Ok(())
}

/// Returns true if `path` is a regular file, not a link, with these contents and this mode.
pub fn has_contents(path: &Path, contents: &[u8], mode: u32) -> bool {
    let has_mode = |found: Metadata| {
        let is_equal =
            found.permissions().mode() & 0o7777 == mode && found.len() == contents.len() as u64;
        found.is_file() && is_equal
    };
    fs::symlink_metadata(path).is_ok_and(has_mode)
        && fs::read(path).is_ok_and(|found| found == contents)
}

/// Gives `file` the second name `name`, and replaces any other file of that name.
///
/// # Errors
/// Returns an error, for example if the file system has no hard links, if the directory cannot be
/// written, or if another process sweeps the directory at the same time: the draft is a name of
/// `file` and so cannot be locked.
pub fn link(file: &Path, name: &Path) -> Result<()> {
    let refused = |action| {
        move |source| AtomicFileError {
            action,
            path: name.into(),
            source,
        }
    };
    let draft = draft_name(name);
    fs::hard_link(file, &draft).map_err(refused("make the hard link"))?;
    let renamed = fs::rename(&draft, name).map_err(refused("rename the hard link to"));
    // A rename between two names of one file keeps both names.
    let _ = fs::remove_file(&draft);
    renamed?;
    sync_directory(name)
}

/// Removes the drafts in `directory` that no process has locked, and returns their number.
pub fn sweep(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| is_draft(&entry.path()) && remove_abandoned(&entry.path()))
        .count()
}

/// Removes a draft that no process has locked. The lock is held until the name is removed. The
/// draft's creator may wait for the lock, and then checks that the draft still has a name.
fn remove_abandoned(path: &Path) -> bool {
    let Ok(draft) = regular_file::open(path) else {
        return false;
    };
    draft.try_lock().is_ok() && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests;
