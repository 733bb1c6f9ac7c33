//! [`InstallReconciler`]: checks and repairs the installed files for the agent (INST-49), and [`ConflictBackoff`]:
//! limits the repair of a configuration that another program changes again each time.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::InstallError;
use super::installation::Installation;
use crate::agent::FileCheck;
use crate::conflist::Target;
use crate::state::State;
use crate::{binaries, mtu};

/// Time limit for reading the pools. The agent answers no probe during this request, and probes time out later.
const POOLS_DEADLINE: Duration = Duration::from_secs(1);

/// The state of the repeated checks.
#[derive(Debug)]
pub struct InstallReconciler<'a> {
    installation: Installation<'a>,
    /// True if the files were installed from this environment; `None` while that is unknown.
    is_owner: Option<bool>,
    /// The last reason logged for a missing MTU file.
    reported_mtu: Option<String>,
    /// The state of a conflict with another program about the configuration.
    conflict: ConflictBackoff,
}

impl<'a> InstallReconciler<'a> {
    /// Creates a reconciler. `is_owner` is true for a process that has just run the installation. With `None` the
    /// reconciler first determines if the files were installed from this environment. Files of another environment are
    /// left to the agent of that environment.
    pub fn new(installation: Installation<'a>, is_owner: Option<bool>) -> InstallReconciler<'a> {
        InstallReconciler { installation, is_owner, reported_mtu: None, conflict: ConflictBackoff::default() }
    }

    /// Restores files that are missing or changed, unless they were installed from another environment. As this runs
    /// often, programs are only checked for existence, and no server is contacted except to compute a missing MTU file.
    pub fn reconcile(&mut self) -> FileCheck {
        let restored = self.restore();
        restored.unwrap_or_else(|error| FileCheck { restored: 0, problem: Some(error.to_string()) })
    }

    fn restore(&mut self) -> Result<FileCheck, InstallError> {
        if !self.determine_ownership()? {
            return Ok(FileCheck::default());
        }
        self.write_late_mtu();
        let (configuration, others) = self.installation.find_missing()?;
        let is_postponed = !self.conflict.is_repair_due(configuration.is_some()) && others.is_empty();
        if let Some(path) = configuration.as_ref().filter(|_| is_postponed) {
            return Ok(FileCheck { restored: 0, problem: Some(self.conflict.reason(path)) });
        }
        let is_configuration = configuration.is_some();
        let missing: Vec<PathBuf> = configuration.into_iter().chain(others).collect();
        if missing.is_empty() {
            return Ok(FileCheck::default());
        }
        let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        tracing::warn!("{} missing or changed, installing again", names.join(", "));
        let installed = self.installation.install(false);
        if is_configuration {
            self.conflict.record_outcome(&installed);
        }
        installed?;
        // The path is missing if its directory was skipped.
        Ok(FileCheck { restored: missing.iter().filter(|path| path.is_file()).count() as u64, problem: None })
    }

    /// Returns true if the files were installed from this environment. An error is not cached, so the next call tries
    /// again.
    fn determine_ownership(&mut self) -> Result<bool, InstallError> {
        if let Some(is_owner) = self.is_owner {
            return Ok(is_owner);
        }
        let is_owner = self.installation.is_recorded()?;
        if !is_owner {
            let name = &self.installation.settings.conf_name;
            tracing::info!(
                "keeping files as they are and restoring none: {name} was not installed from this environment"
            );
        }
        self.is_owner = Some(is_owner);
        Ok(is_owner)
    }

    /// Writes the MTU file if it is missing and the plugins read it. The documented order creates pools after the
    /// DaemonSet, so their encapsulation may be unknown during the installation.
    fn write_late_mtu(&mut self) {
        let layout = self.installation.layout;
        if !layout.has_persistent_state() || layout.state_dir().join(mtu::NAME).exists() {
            return;
        }
        let installation = self.installation;
        let Ok((_, conflist)) = installation.render_mounted() else { return };
        let write = || installation.write_mtu(&conflist, POOLS_DEADLINE, &mut installation.load_state());
        // The request blocks on an async runtime of its own, which is impossible on a thread of the agent's runtime.
        let Ok(written) = thread::scope(|scope| scope.spawn(write).join()) else { return };
        let reason = written.err().map(|error| error.to_string());
        if let Some(reason) = reason.as_ref().filter(|_| reason != self.reported_mtu) {
            tracing::info!("{reason}");
        }
        self.reported_mtu = reason;
    }
}

impl Installation<'_> {
    /// Returns true if the recorded configuration is the one that this environment yields. Unlike
    /// [`load_state`](Self::load_state), an unreadable record is an error here, because this check is repeated and an
    /// installation is not.
    fn is_recorded(&self) -> Result<bool, InstallError> {
        let Installation { settings, layout, .. } = *self;
        let state = State::load(layout)?;
        let target = Target::new(&layout.net_dir(&settings.net_dir), settings, &state);
        Ok(self.render_mounted()?.1.is_recorded(&target, &state))
    }

    /// Returns the path of the network configuration if it is missing or changed, and the paths of recorded programs
    /// that are missing and of TLS files that are missing or changed. Writes nothing.
    fn find_missing(&self) -> Result<(Option<PathBuf>, Vec<PathBuf>), InstallError> {
        let Installation { settings, layout, .. } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        let state = self.load_state();
        let target = Target::new(&net_dir, settings, &state);
        let (assets, rendered) = self.render_mounted()?;
        let configuration = (!rendered.is_written(&target)).then(|| target.path());
        let mut others = assets.missing(&net_dir).map_err(InstallError::Tls)?;
        let names = binaries::program_names(settings, layout);
        for (place, directory) in layout.bin_dirs().into_iter().filter(|(_, directory)| directory.is_dir()) {
            let recorded = names.iter().filter(|name| state.get(place, name).is_some());
            others.extend(recorded.map(|name| directory.join(name)).filter(|path| !path.is_file()));
        }
        Ok((configuration, others))
    }
}

/// Number of immediate repairs in a row.
const IMMEDIATE_REPAIRS: u32 = 5;

/// Maximum number of checks without a repair. The number doubles with each further repair.
const MAX_SKIPPED_CHECKS: u32 = 16;

/// The number of repairs in a row, and the number of checks to pass before the next one.
#[derive(Debug, Default)]
struct ConflictBackoff {
    repairs: u32,
    checks_to_skip: u32,
}

impl ConflictBackoff {
    /// Returns true if the configuration is to be repaired now. `is_changed` is the result of the present check; false
    /// ends the conflict.
    fn is_repair_due(&mut self, is_changed: bool) -> bool {
        if !is_changed {
            *self = ConflictBackoff::default();
            return false;
        }
        if self.checks_to_skip > 0 {
            self.checks_to_skip -= 1;
            return false;
        }
        true
    }

    /// Records the result of a repair. A successful write counts as a repair, and so does one that failed because
    /// another program rewrote the file again and again. Any other failure does not count, so the write is retried at
    /// each check.
    fn record_outcome(&mut self, installed: &Result<(), InstallError>) {
        if installed.as_ref().err().is_none_or(InstallError::is_contested) {
            self.record_repair();
        }
    }

    /// Records a repair.
    fn record_repair(&mut self) {
        self.repairs += 1;
        let more = self.repairs.checked_sub(IMMEDIATE_REPAIRS);
        self.checks_to_skip = more.map_or(0, |more| (1 << more.min(8)).min(MAX_SKIPPED_CHECKS));
    }

    /// Returns the reason why the configuration is not repaired now.
    fn reason(&self, path: &Path) -> String {
        let bak = path.with_added_extension("cilium_bak");
        let program = if bak.exists() {
            format!("Cilium renamed the file to {}: remove Cilium, or set its cni.exclusive to false", bak.display())
        } else {
            "another program changes the file each time: find and stop this program".to_owned()
        };
        let (path, repairs, minutes) = (path.display(), self.repairs, self.checks_to_skip + 1);
        format!(
            "{path} is missing or changed, and was restored {repairs} times in a row; {program}; the next restoration \
             is in {minutes} minutes"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};
    use std::path::PathBuf;

    use super::*;
    use os::atomic_file::AtomicFileError;

    #[test]
    fn configuration_changed_each_time_is_restored_less_often() {
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
    fn contested_installations_are_retried_less_often() {
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
    fn conflict_reason_names_cilium_if_a_cilium_backup_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10-calico.conflist");
        let conflict = ConflictBackoff { repairs: 6, checks_to_skip: 1 };
        let reason = conflict.reason(&path);
        assert!(
            reason.contains("another program") && reason.contains("6 times") && reason.ends_with("in 2 minutes"),
            "{reason}"
        );
        std::fs::write(dir.path().join("10-calico.conflist.cilium_bak"), "").unwrap();
        assert!(conflict.reason(&path).contains("cni.exclusive"), "{}", conflict.reason(&path));
    }
}
