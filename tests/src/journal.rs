//! The journal of deferred DELs of the host that the calling thread is in.

use std::fs;
use std::path::PathBuf;

/// The directory of the journal.
pub const JOURNAL: &str = "/var/lib/calico/cni-journal";

/// Returns the files of the deferred DELs, also of those with the extension of older versions.
pub fn journal_entries() -> Vec<PathBuf> {
    let files = fs::read_dir(JOURNAL)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json" || extension == "debt")
        })
        .collect()
}
