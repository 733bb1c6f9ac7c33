//! The journal of DELs that could not give their addresses back, which the plugin keeps (`cni-plugin/src/journal.rs`).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::layout::{JOURNAL, Layout};

/// Where it is.
pub(crate) fn directory(layout: &Layout) -> PathBuf {
    layout.state_dir().join(JOURNAL)
}

/// The file whose lock whoever pays debts has.
pub(crate) fn lock(layout: &Layout) -> PathBuf {
    directory(layout).join("lock")
}

/// How many entries it has; `None` where there is no journal.
///
/// # Errors
/// There is one, and it cannot be read.
pub(crate) fn entries(layout: &Layout) -> io::Result<Option<usize>> {
    let entries = match fs::read_dir(directory(layout)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut count = 0;
    for entry in entries {
        count += usize::from(entry?.path().extension().is_some_and(|extension| extension == "json"));
    }
    Ok(Some(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_journal_is_told_from_none_and_from_one_that_cannot_be_read() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        assert_eq!(entries(&layout).unwrap(), None);
        fs::create_dir_all(directory(&layout)).unwrap();
        fs::write(lock(&layout), "").unwrap();
        assert_eq!(entries(&layout).unwrap(), Some(0));
        fs::write(directory(&layout).join("a.json"), "{}").unwrap();
        assert_eq!(entries(&layout).unwrap(), Some(1));
        fs::remove_dir_all(directory(&layout)).unwrap();
        fs::write(directory(&layout), "").unwrap();
        assert!(entries(&layout).is_err());
    }
}
