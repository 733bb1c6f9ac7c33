//! The journal of deferred DELs, at its path in this process's file system.

use std::path::PathBuf;

use ipam_plugin::journal::Journal;

use crate::layout::{JOURNAL, Layout};

/// Returns the directory of the journal.
pub(crate) fn directory(layout: &Layout) -> PathBuf {
    layout.state_dir().join(JOURNAL)
}

/// Returns the lock file of the process that replays deferred DELs.
pub(crate) fn lock(layout: &Layout) -> PathBuf {
    directory(layout).join("lock")
}

/// Returns the journal.
pub(crate) fn of(layout: &Layout) -> Journal {
    Journal::new(directory(layout))
}

#[cfg(test)]
mod tests {
    use ipam_plugin::journal::DEFAULT_DIRECTORY;

    use super::*;

    #[test]
    fn the_journal_of_this_machine_is_where_the_plugin_writes_it() {
        assert_eq!(directory(&Layout::node()), PathBuf::from(DEFAULT_DIRECTORY));
    }
}
