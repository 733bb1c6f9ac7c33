//! Reports the remaining files in Calico's directories. `calico uninstall` keeps them.

use std::fs;
use std::path::{Path, PathBuf};

use datastore::kubernetes::GROUP_FILE;
use netconf::conf::DatastoreConf;

use super::report::UninstallReport;
use crate::conflist::is_backup;
use crate::layout::{JOURNAL, Layout};
use crate::{nodename, state};

/// The directory for files of the plugins and calico-node that do not survive a reboot.
const RUN_DIR: &str = "/var/run/calico";

/// Reports all files that the report does not name yet. `is_recorded` is true if the state file stays.
pub(super) fn report_unowned(layout: &Layout, is_recorded: bool, report: &mut UninstallReport) {
    for path in entries(&layout.state_dir()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !report.mentions(&path.display().to_string()) && (is_recorded || name != state::NAME) {
            report.add_remaining(path.display(), reason(&name));
        }
    }
    for path in entries(&layout.path(RUN_DIR)) {
        report.add_remaining(path.display(), "plugins and calico-node share it; it is gone after a reboot");
    }
}

/// Reports the installer's copies of unreadable configurations.
pub(super) fn report_backups(directory: &Path, report: &mut UninstallReport) {
    for path in entries(directory).into_iter().filter(|path| is_backup(path)) {
        report.add_remaining(
            path.display(),
            "the copy of a configuration that was no JSON object and was replaced; it may \
            hold a token: remove it when its plugins are added again",
        );
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn reason(name: &str) -> &'static str {
    let is = |path: &str| Path::new(path).file_name().is_some_and(|known| known == name);
    let is_database = ["", "-wal", "-shm"].iter().any(|end| is(&format!("{}{end}", DatastoreConf::DEFAULT_PATH)));
    match name {
        nodename::NAME => "calico-node goes by it, too; another name would be another node to IPAM",
        state::NAME => "what is still installed is noted in it",
        _ if name == JOURNAL || is(GROUP_FILE) => "the plugin keeps it; it can go with the last of its programs",
        _ if is_database => "it is the datastore of this node: pools, addresses, endpoints",
        _ => "the installer did not put it there",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_already_is_not_named_again() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let run = layout.path(RUN_DIR);
        fs::create_dir_all(layout.state_dir()).unwrap();
        fs::create_dir_all(&run).unwrap();
        for name in ["calico.db", "calico.db-wal", "mtu", "nodename", "theirs", state::NAME] {
            fs::write(layout.state_dir().join(name), "").unwrap();
        }
        fs::write(run.join("ipam.lock"), "").unwrap();
        let mut report = UninstallReport::default();
        report.add_success("remove", layout.state_dir().join("mtu").display());
        report_unowned(&layout, false, &mut report);
        let name_of = |target: &str| target.rsplit('/').next().unwrap().to_owned();
        let left: Vec<_> = report.remaining.iter().map(|left| (name_of(&left.target), left.reason.as_str())).collect();
        let database = "it is the datastore of this node: pools, addresses, endpoints";
        let expected = [
            ("calico.db", database),
            ("calico.db-wal", database),
            ("nodename", "calico-node goes by it, too; another name would be another node to IPAM"),
            ("theirs", "the installer did not put it there"),
            ("ipam.lock", "plugins and calico-node share it; it is gone after a reboot"),
        ];
        assert_eq!(left, expected.map(|(name, reason)| (name.to_owned(), reason)));
        fs::write(run.join("10-calico.conflist.unreadable"), "").unwrap();
        report_backups(&run, &mut report);
        assert!(report.remaining.last().unwrap().target.ends_with("10-calico.conflist.unreadable"));
        report_unowned(&layout, true, &mut report);
        assert!(report.mentions(&layout.state_dir().join(state::NAME).display().to_string()));
    }
}
