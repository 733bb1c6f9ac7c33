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
    pub(super) fn is_repair_due(&mut self, is_changed: bool) -> bool {
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
    pub(super) fn record_outcome(&mut self, installed: &Result<(), InstallError>) {
        if installed.as_ref().err().is_none_or(InstallError::is_contested) {
            self.record_repair();
        }
    }

    /// Records a repair.
    fn record_repair(&mut self) {
        self.writes += 1;
        self.rest = match self.writes.checked_sub(PATIENCE) {
            Some(more) => (1 << more.min(8)).min(LONGEST),
            None => 0,
        };
    }

    /// Returns the reason why the configuration is not repaired now.
    pub(super) fn reason(&self, path: &Path) -> String {
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
            if conflict.is_repair_due(true) {
                conflict.record_repair();
                written.push(look);
            }
        }
        assert_eq!(written, [0, 1, 2, 3, 4, 6, 9, 14, 23, 40, 57]);
        assert!(!conflict.is_repair_due(false));
        assert!(conflict.is_repair_due(true), "it was left alone in between");
        // A repair that fails to write is tried at each check.
        assert!((0..60).all(|_| conflict.is_repair_due(true)));
    }

    #[test]
    fn installations_that_are_contested_each_time_are_tried_ever_more_rarely() {
        let tries = |kind: ErrorKind| {
            let mut conflict = ConflictBackoff::default();
            let mut tries = 0;
            for _ in 0..60 {
                if conflict.is_repair_due(true) {
                    let (path, source) = (PathBuf::from("/x"), Error::from(kind));
                    conflict.record_outcome(&Err(AtomicFileError { action: "change", path, source }.into()));
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
        let reason = conflict.reason(&path);
        assert!(
            reason.contains("another program") && reason.contains("6 times") && reason.ends_with("in 2 minutes"),
            "{reason}"
        );
        std::fs::write(dir.path().join("10-calico.conflist.cilium_bak"), "").unwrap();
        assert!(conflict.reason(&path).contains("cni.exclusive"), "{}", conflict.reason(&path));
    }
}
