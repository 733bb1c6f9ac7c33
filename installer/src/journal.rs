//! The journal of DELs that could not give their addresses back, which the plugin keeps (`cni-plugin/src/journal.rs`).

use std::fs;
use std::path::PathBuf;

use crate::layout::{JOURNAL, Layout};

/// Where it is.
pub(crate) fn directory(layout: &Layout) -> PathBuf {
    layout.state_dir().join(JOURNAL)
}

/// How many entries it has; none where there is no journal.
pub(crate) fn entries(layout: &Layout) -> Option<usize> {
    let entries = fs::read_dir(directory(layout)).ok()?.flatten();
    Some(entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json")).count())
}
