//! Copies of files that are not JSON objects, made before the configuration replaces them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::active_config::is_read;
use crate::atomic_file::{self, AtomicFileError};
use crate::plugin_chain::Unreadable;
use crate::regular_file;

/// Maximum number of copies. A further copy overwrites the last one.
const MOST: u32 = 9;

/// A copy of a file that will be replaced.
#[derive(Debug)]
pub(super) struct Backup {
    path: PathBuf,
    reason: Unreadable,
}

impl Backup {
    /// Copies a file, unless it is blank. Only root may read the copy, because it may contain a token.
    ///
    /// # Errors
    /// Returns an error if the copy cannot be written. The file must not be replaced then.
    pub(super) fn write(path: &Path, text: &[u8], reason: Unreadable) -> Result<Option<Backup>, AtomicFileError> {
        if text.trim_ascii().is_empty() {
            return Ok(None);
        }
        let copy = free(path, text);
        atomic_file::replace(&copy, text, 0o600)?;
        Ok(Some(Backup { path: copy, reason }))
    }

    /// Logs a warning that `path` was replaced.
    pub(super) fn warn(&self, path: &Path) {
        tracing::warn!(
            "{}: {}; it was replaced, and plugins that others chained into it are no longer there: its copy is {}; add \
             them again, then remove the copy",
            path.display(),
            self.reason,
            self.path.display()
        );
    }
}

/// Returns the path of an existing copy with the same content, or the first free path.
fn free(path: &Path, text: &[u8]) -> PathBuf {
    for copy in (1..MOST).map(|number| name(path, number)) {
        match regular_file::contents(&copy) {
            Ok(kept) if kept != text => {}
            Ok(_) => return copy,
            Err(error) if error.kind() == ErrorKind::NotFound => return copy,
            Err(_) => {}
        }
    }
    name(path, MOST)
}

/// Returns true if the file has the name of a copy.
pub(crate) fn is_backup(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of = name.rsplit_once(".unreadable").filter(|(_, number)| number.is_empty() || number.starts_with('.'));
    of.is_some_and(|(of, _)| is_read(of))
}

/// Returns the path of a copy. No runtime loads a file with this extension.
fn name(path: &Path, number: u32) -> PathBuf {
    let first = path.with_added_extension("unreadable");
    if number == 1 { first } else { first.with_added_extension(number.to_string()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keep_of_more_than_the_most_writes_over_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-calico.conflist");
        for number in 0..20 {
            Backup::write(&path, number.to_string().as_bytes(), Unreadable::NoObject).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), MOST as usize);
        assert!(fs::read_dir(dir.path()).unwrap().all(|copy| is_backup(&copy.unwrap().path())));
        assert!(
            ["10-calico.conflist", "x.unreadable", "a.conf.unreadables"]
                .into_iter()
                .all(|name| !is_backup(name.as_ref()))
        );
        assert_eq!(fs::read_to_string(name(&path, 1)).unwrap(), "0");
        assert_eq!(fs::read_to_string(name(&path, MOST)).unwrap(), "19");
        assert_eq!(fs::metadata(name(&path, 1)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
