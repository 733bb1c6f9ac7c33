//! [`ConflictBackoff`]: limits the repair of a configuration that another program changes again each time.

use std::path::Path;

use super::error::InstallError;

/// Number of immediate repairs in a row.
const PATIENCE: u32 = 5;

/// Maximum number of checks without a repair. The number doubles with each further repair.
const LONGEST: u32 = 16;

/// The number of repairs in a row, and the number of checks to pass before the next one.
#[derive(Debug, Default)]
pub(super) struct ConflictBackoff {
    writes: u32,
    rest: u32,
}

impl ConflictBackoff {
    /// Returns true if the configuration is to be repaired now. `is_changed` is the result of the present check.
    pub(super) fn puts_back(&mut self, is_changed: bool) -> bool {
        if !is_changed {
            *self = ConflictBackoff::default();
            return false;
        }
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        true
    }

    /// Records the result of a repair. A repair that another program undid counts as one; a failed write does not, so
    /// it is retried at each check.
    pub(super) fn ended(&mut self, installed: &Result<(), InstallError>) {
        let is_contested = |error: &InstallError| matches!(error, InstallError::File(error) if error.is_contested());
        if installed.as_ref().err().is_none_or(is_contested) {
            self.has_put_back();
        }
    }

    /// Records a repair.
    fn has_put_back(&mut self) {
        self.writes += 1;
        self.rest = match self.writes.checked_sub(PATIENCE) {
            Some(more) => (1 << more.min(8)).min(LONGEST),
            None => 0,
        };
    }

    /// Returns the reason why the configuration is not repaired now.
    pub(super) fn told(&self, path: &Path) -> String {
        let bak = path.with_added_extension("cilium_bak");
        let program = if bak.exists() {
            format!("Cilium renamed it to {}: remove Cilium, or set its cni.exclusive to false", bak.display())
        } else {
            "another program changes it each time: find out which, and stop it".to_owned()
        };
        format!(
            "{} is not as it was installed, and was put back {} times in a row; {program}; it is put back again in {} \
             minutes",
            path.display(),
            self.writes,
            self.rest + 1,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::path::PathBuf;

    use super::*;
    use crate::atomic_file::AtomicFileError;

    #[test]
    fn a_configuration_that_is_changed_each_time_is_put_back_ever_more_rarely() {
        let mut conflict = ConflictBackoff::default();
        let mut written = Vec::new();
        for look in 0..60 {
            if conflict.puts_back(true) {
                conflict.has_put_back();
                written.push(look);
            }
        }
        assert_eq!(written, [0, 1, 2, 3, 4, 6, 9, 14, 23, 40, 57]);
        assert!(!conflict.puts_back(false));
        assert!(conflict.puts_back(true), "it was left alone in between");
        // A repair that fails to write is tried at each check.
        assert!((0..60).all(|_| conflict.puts_back(true)));
    }

    #[test]
    fn installations_that_are_contested_each_time_are_tried_ever_more_rarely() {
        let tries = |kind: ErrorKind| {
            let mut conflict = ConflictBackoff::default();
            let mut tries = 0;
            for _ in 0..60 {
                if conflict.puts_back(true) {
                    let (path, source) = (PathBuf::from("/x"), Error::from(kind));
                    conflict.ended(&Err(AtomicFileError { action: "change", path, source }.into()));
                    tries += 1;
                }
            }
            tries
        };
        assert_eq!((tries(ErrorKind::ResourceBusy), tries(ErrorKind::ReadOnlyFilesystem)), (11, 60));
    }

    #[test]
    fn the_reason_names_cilium_where_it_renamed_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-calico.conflist");
        let conflict = ConflictBackoff { writes: 6, rest: 1 };
        let told = conflict.told(&path);
        assert!(
            told.contains("another program") && told.contains("6 times") && told.ends_with("in 2 minutes"),
            "{told}"
        );
        std::fs::write(dir.path().join("10-calico.conflist.cilium_bak"), "").unwrap();
        assert!(conflict.told(&path).contains("cni.exclusive"), "{}", conflict.told(&path));
    }
}
