//! Files with hints for the next calls of the node: [`crate::busy`], [`crate::exhausted`],
//! [`crate::alloc::block_hints`]. A reboot deletes them.
//!
//! Calls are correct without the hints. A missing or invalid file therefore counts as a file
//! without hints, and a write does not wait for the disk. If two processes write at the same time,
//! one of the hints may be lost.

use std::path::Path;
use std::{fs, io};

use os::atomic_file;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The mode of a hint file.
const MODE: u32 = 0o644;

/// Reads the hints of a regular file of at most `largest` bytes. Returns `None` for a missing,
/// larger or invalid file, and for a symbolic link, because the plugin writes none.
pub(crate) fn read<T: DeserializeOwned>(file: &Path, largest: u64) -> Option<T> {
    let metadata = fs::symlink_metadata(file).ok()?;
    let is_valid = metadata.is_file() && metadata.len() <= largest;
    serde_json::from_slice(&is_valid.then(|| fs::read(file).ok()).flatten()?).ok()
}

/// Replaces `file` by the hints, so that readers see the previous or the new hints only. Creates the
/// directory if it is missing.
///
/// # Errors
/// Returns the system's error. The previous file then stays.
pub(crate) fn write(file: &Path, hints: &impl Serialize) -> io::Result<()> {
    let hints = serde_json::to_vec(hints)?;
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    atomic_file::replace_unsynced(file, &hints, MODE).map_err(|error| error.source)
}

/// Writes the hints in place, for a file that is read and written only under the node's lock.
/// Creates the directory if it is missing.
///
/// # Errors
/// Returns the system's error.
pub(crate) fn write_in_place(file: &Path, hints: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(hints)?;
    fs::write(file, &text).or_else(|_| {
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, &text)
    })
}
