//! [`InstallReconciler`]: checks and repairs the installed files for the agent (INST-49), and
//! [`ConflictBackoff`]: limits the repair of a configuration that another program changes again
//! each time.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use libcalico::failure::Failure;
use node_process::process::build_version;

use super::InstallError;
use super::installation::Installation;
use crate::binaries;
use installation::conflist::{Selection, Target, is_read_by_runtimes};
use installation::file_check::FileCheck;
use installation::layout::DirectoryRole;
use installation::mtu;
use installation::state::{InstalledFile, State};

/// Time limit for reading the pools. It is short because the agent answers no probe during this
/// request.
const POOLS_DEADLINE: Duration = Duration::from_secs(1);

/// The pod that restores the installed files: the one that installed them last.
enum Owner {
    ThisPod,
    /// A pod with another environment or another version of the program.
    AnotherPod,
    /// No installation is recorded. The files may be those of an installer that keeps no records.
    Unrecorded,
}

#[derive(Debug, PartialEq, Eq)]
struct ConfigRecord {
    /// The version of the program that installed the configuration.
    version: String,
    /// True if the name of the configuration counts as this pod's.
    has_own_name: bool,
    file: InstalledFile,
}

/// The state of the repeated checks.
#[derive(Debug)]
pub struct InstallReconciler<'a> {
    installation: Installation<'a>,
    /// True if this process has installed the files, and no later installation by another pod was
    /// found.
    is_installer: bool,
    /// The record of the configuration that this agent restores.
    owned: Option<ConfigRecord>,
    /// True once the log says that no installation is recorded.
    reported_unrecorded: bool,
    /// The last reason logged for a missing MTU file.
    reported_mtu: Option<String>,
    /// The state of a conflict with another program about the configuration.
    conflict: ConflictBackoff,
}

struct MissingFiles {
    /// The path of the network configuration if the configuration is missing or changed.
    configuration: Option<PathBuf>,
    /// The paths of programs that are missing, and of TLS files that are missing or changed.
    others: Vec<PathBuf>,
}

impl<'a> InstallReconciler<'a> {
    /// Creates a reconciler. `is_installer` is true for a process that has just run the
    /// installation. Any other process restores files only if its own environment and version
    /// installed them.
    pub fn new(installation: Installation<'a>, is_installer: bool) -> InstallReconciler<'a> {
        let conflict = ConflictBackoff::default();
        // With this record the first check recognizes a later installation by another pod.
        let owned = if is_installer {
            installation.read_record().unwrap_or_default()
        } else {
            None
        };
        let (reported_unrecorded, reported_mtu) = (false, None);
        InstallReconciler {
            installation,
            is_installer,
            owned,
            reported_unrecorded,
            reported_mtu,
            conflict,
        }
    }

    /// Restores files that are missing or changed, unless they belong to another pod or to an
    /// unknown installer, or a conflict postpones the repair. As this runs often, programs are only
    /// checked for existence, and only a missing MTU file needs a server.
    pub fn reconcile(&mut self) -> FileCheck {
        let restored = self.restore();
        let check = restored.unwrap_or_else(|error| FileCheck {
            problem: Some(error.to_string()),
            ..FileCheck::default()
        });
        FileCheck {
            selection: self.selection(),
            ..check
        }
    }

    /// Returns true if this pod restores the files.
    fn is_owner(&self) -> bool {
        self.is_installer || self.owned.is_some()
    }

    /// Returns the choice of the container runtimes, or [`Selection::Unknown`] if this pod does not
    /// restore the files.
    fn selection(&self) -> Selection {
        let Installation {
            settings, layout, ..
        } = self.installation;
        if !self.is_owner() {
            return Selection::Unknown;
        }
        let Ok((_, conflist)) = self.installation.render_mounted() else {
            return Selection::Unknown;
        };
        let state = State::load(layout).unwrap_or_default();
        let target = Target::new(&layout.net_dir(&settings.net_dir), settings, &state);
        Selection::find(&target, &settings.net_dir, conflist.network())
    }

    fn restore(&mut self) -> Result<FileCheck, InstallError> {
        match self.determine_owner()? {
            Owner::ThisPod => {}
            Owner::Unrecorded => return Ok(FileCheck::default()),
            Owner::AnotherPod => {
                let name = &self.installation.settings.conf_name;
                let suspension = format!(
                    "restoring no file: the recorded installation is not that of {name} by this \
                     environment and this version; delete this pod, so that its init container \
                     installs again, or delete its DaemonSet if the node has two"
                );
                return Ok(FileCheck {
                    suspension: Some(suspension),
                    ..FileCheck::default()
                });
            }
        }
        self.write_late_mtu();
        let MissingFiles {
            configuration,
            others,
        } = self.installation.find_missing()?;
        let is_postponed =
            !self.conflict.is_repair_due(configuration.is_some()) && others.is_empty();
        if let Some(path) = configuration.as_ref().filter(|_| is_postponed) {
            return Ok(FileCheck {
                problem: Some(self.conflict.reason(path)),
                ..FileCheck::default()
            });
        }
        let is_configuration = configuration.is_some();
        let missing: Vec<PathBuf> = configuration.into_iter().chain(others).collect();
        if missing.is_empty() {
            return Ok(FileCheck::default());
        }
        let names: Vec<String> = missing
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        tracing::warn!("{} missing or changed, installing again", names.join(", "));
        let installed = self.installation.install(false);
        if is_configuration {
            self.conflict.record_outcome(&installed);
        }
        installed?;
        // The next check would take a record that this installation changed for that of another
        // installation.
        self.owned = self
            .installation
            .read_record()
            .unwrap_or_default()
            .or(self.owned.take());
        // The configuration was written, although another program may be replacing it now. Another
        // path may still be missing, for example if its directory was skipped.
        let (written, others) = missing.split_at(usize::from(is_configuration));
        let restored = (written.len() + others.iter().filter(|path| path.is_file()).count()) as u64;
        Ok(FileCheck {
            restored,
            ..FileCheck::default()
        })
    }

    /// Determines the pod that restores the files, by the record and not by the file, which people
    /// and other programs change too. An unreadable or missing record does not end the ownership of
    /// this pod.
    fn determine_owner(&mut self) -> Result<Owner, InstallError> {
        let was_owner = self.is_owner();
        let record = match self.installation.read_record() {
            Ok(Some(record)) => record,
            Ok(None) | Err(_) if was_owner => return Ok(Owner::ThisPod),
            Ok(None) => {
                if !std::mem::replace(&mut self.reported_unrecorded, true) {
                    let name = &self.installation.settings.conf_name;
                    tracing::info!(
                        conf = name,
                        "restoring no files: no installation of the configuration is recorded"
                    );
                }
                return Ok(Owner::Unrecorded);
            }
            Err(error) => return Err(error.into()),
        };
        let is_known = self
            .owned
            .as_ref()
            .map_or(self.is_installer, |owned| *owned == record);
        if !is_known && !self.installation.is_recorded(&record)? {
            (self.owned, self.is_installer) = (None, false);
            return Ok(Owner::AnotherPod);
        }
        self.owned = Some(record);
        Ok(Owner::ThisPod)
    }

    /// Writes the MTU file if it is missing and the plugins read it: the pools may be created after
    /// the installation.
    fn write_late_mtu(&mut self) {
        let layout = self.installation.layout;
        if !layout.has_persistent_state() || layout.state_dir().join(mtu::NAME).exists() {
            return;
        }
        let installation = self.installation;
        let Ok((_, conflist)) = installation.render_mounted() else {
            return;
        };
        let write =
            || installation.write_mtu(&conflist, POOLS_DEADLINE, &mut installation.load_state());
        // The request blocks on an async runtime of its own, which is impossible on a thread of the
        // agent's runtime.
        let Ok(written) = thread::scope(|scope| scope.spawn(write).join()) else {
            return;
        };
        let not_written = written.err().map(|error| error.to_string());
        if let Some(not_written) = not_written
            .as_ref()
            .filter(|_| not_written != self.reported_mtu)
        {
            tracing::info!("{not_written}");
        }
        self.reported_mtu = not_written;
    }
}

impl Installation<'_> {
    /// Reads the record of this pod's configuration, or else that of another configuration. If
    /// another program converted this pod's `.conf` file to a list, the name of the list counts as
    /// this pod's too.
    fn read_record(&self) -> Result<Option<ConfigRecord>, Failure> {
        let Installation {
            settings, layout, ..
        } = *self;
        let state = State::load(layout)?;
        let own = settings.conf_name.as_str();
        let is_own = |name: &str| name == own || name.strip_suffix("list") == Some(own);
        let recorded = state.files.get(&DirectoryRole::Net).into_iter().flatten();
        let configurations = recorded.filter(|(name, _)| is_read_by_runtimes(name));
        let found = configurations.max_by_key(|(name, _)| is_own(name));
        Ok(found.map(|(name, file)| {
            let (version, has_own_name) = (state.version.clone(), is_own(name));
            ConfigRecord {
                version,
                has_own_name,
                file: file.clone(),
            }
        }))
    }

    /// Returns true if the record is that of this environment's configuration, by this version.
    fn is_recorded(&self, record: &ConfigRecord) -> Result<bool, InstallError> {
        let is_same = self.render_mounted()?.1.is_recorded(&record.file);
        Ok(is_same && record.has_own_name && record.version == build_version())
    }

    /// Finds the configuration and TLS files that are missing or changed, and recorded programs
    /// that are missing.
    fn find_missing(&self) -> Result<MissingFiles, InstallError> {
        let Installation {
            settings, layout, ..
        } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        let state = self.load_state();
        let target = Target::new(&net_dir, settings, &state);
        let (assets, rendered) = self.render_mounted()?;
        let configuration = (!rendered.is_written(&target)).then(|| target.path());
        let mut others = assets.missing(&net_dir).map_err(Failure::from)?;
        let names = binaries::program_names(settings, layout);
        for (place, directory) in layout
            .bin_dirs()
            .into_iter()
            .filter(|(_, directory)| directory.is_dir())
        {
            let recorded = names.iter().filter(|name| state.get(place, name).is_some());
            others.extend(
                recorded
                    .map(|name| directory.join(name))
                    .filter(|path| !path.is_file()),
            );
        }
        Ok(MissingFiles {
            configuration,
            others,
        })
    }
}

/// Number of immediate repairs in a row.
const IMMEDIATE_REPAIRS: u32 = 5;

/// Maximum number of checks without a repair. The number doubles with each further repair.
const MAX_SKIPPED_CHECKS: u32 = 16;

/// The number of repairs in a row, and the number of checks to pass before the next repair.
#[derive(Debug, Default)]
struct ConflictBackoff {
    repairs: u32,
    checks_to_skip: u32,
}

impl ConflictBackoff {
    /// Returns true if the configuration is to be repaired now. A check that finds it unchanged
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

    /// Records the result of a repair. A failed one counts only if another program rewrote the file
    /// again and again.
    fn record_outcome(&mut self, installed: &Result<(), InstallError>) {
        if installed
            .as_ref()
            .err()
            .is_none_or(InstallError::is_contested)
        {
            self.record_repair();
        }
    }

    fn record_repair(&mut self) {
        self.repairs += 1;
        let more = self.repairs.checked_sub(IMMEDIATE_REPAIRS);
        self.checks_to_skip = more.map_or(0, |more| (1 << more.min(8)).min(MAX_SKIPPED_CHECKS));
    }

    /// Returns the reason why the configuration is not repaired now.
    fn reason(&self, path: &Path) -> String {
        let (path, repairs, minutes) = (path.display(), self.repairs, self.checks_to_skip + 1);
        format!(
            "{path} is missing or changed, and its repair was tried {repairs} times in a row; \
             another program changes the file each time: find and stop this program; the next \
             attempt is in {minutes} minutes"
        )
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use std::fs;
    use std::io::{Error, ErrorKind};
    use std::path::PathBuf;

    use super::*;
    use dataplane::host_network::testing::FixedNetwork;
    use installation::layout::Layout;
    use installation::settings::Settings;
    use os::atomic_file::AtomicFileError;

    /// istio-cni and linkerd-cni convert a single plugin to a list under another name.
    #[test]
    fn record_of_a_conf_file_stays_own_after_its_conversion_to_a_list() {
        let root = tempfile::tempdir().unwrap();
        let (layout, network) = (Layout::below(root.path()), FixedNetwork::default());
        let lookup = |name: &str| (name == "CNI_CONF_NAME").then(|| "10-calico.conf".to_owned());
        let settings = Settings::from_environment(Variables::new(&lookup), "n").unwrap();
        let installation = Installation {
            settings: &settings,
            layout: &layout,
            account: None,
            network: &network,
        };
        let net_dir = layout.net_dir(&settings.net_dir);
        fs::create_dir_all(&net_dir).unwrap();
        assert_eq!(installation.read_record().unwrap(), None);
        let list = r#"{"name": "n", "plugins": [{"type": "calico"}, {"type": "istio-cni"}]}"#;
        for (name, is_own) in [
            ("10-calico.conf", true),
            ("10-calico.conflist", true),
            ("05-calico.conf", false),
        ] {
            let mut state = State::default();
            state.record(DirectoryRole::Net, name, Some("aa".into()), false);
            state.save(&layout).unwrap();
            let _ = fs::remove_file(net_dir.join("10-calico.conflist"));
            let before = installation.read_record().unwrap().unwrap();
            fs::write(net_dir.join("10-calico.conflist"), list).unwrap();
            assert_eq!(
                (
                    installation.read_record().unwrap().as_ref(),
                    before.has_own_name
                ),
                (Some(&before), is_own)
            );
        }
    }

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
        // A repair that is not recorded is tried at each check.
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
                    conflict.record_outcome(&Err(AtomicFileError {
                        action: "change",
                        path,
                        source,
                    }
                    .into()));
                    tries += 1;
                }
            }
            tries
        };
        assert_eq!(
            (
                tries(ErrorKind::ResourceBusy),
                tries(ErrorKind::ReadOnlyFilesystem)
            ),
            (11, 60)
        );
    }

    #[test]
    fn conflict_reason_names_the_file_and_the_next_restoration() {
        let reason = ConflictBackoff {
            repairs: 6,
            checks_to_skip: 1,
        }
        .reason(Path::new("/x/10-calico.conflist"));
        assert!(
            reason.starts_with("/x/10-calico.conflist is missing or changed")
                && reason.contains("6 times"),
            "{reason}"
        );
        assert!(
            reason.contains("another program") && reason.ends_with("in 2 minutes"),
            "{reason}"
        );
    }
}
