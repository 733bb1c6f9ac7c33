//! The files that the installer did not write: the plugins' cached API group, the journal, and
//! others.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use allocation::journal::{Entry, Journal, PendingDel};
use datastore::kubernetes::API_GROUP_FILE;
use netconf::conf::DatastoreConf;
use os::lock::{HostLock, LockError};

use super::plan::{RemovalTask, Verdict};
use super::report::UninstallReport;
use installation::conflist::{CILIUM_BACKUP, has_calico, is_backup};
use installation::layout::{DirectoryRole, JOURNAL, Layout};
use installation::state::{self, State};
use os::atomic_file::{self, regular_file};

use crate::nodename;

/// Removes the cached API group of the cluster, and the journal if it is empty. Both stay unless
/// the program `calico` was removed. `state` contains the records that remain after that.
pub(super) fn remove(
    tasks: &[RemovalTask],
    state: &State,
    layout: &Layout,
    acts: bool,
    report: &mut UninstallReport,
) {
    if !is_plugin_removed(tasks, state, acts) {
        return;
    }
    let group = layout
        .state_dir()
        .join(Path::new(API_GROUP_FILE).file_name().unwrap_or_default());
    if group.exists() {
        match if acts {
            ignore_missing(fs::remove_file(&group))
        } else {
            Ok(())
        } {
            Ok(()) => report.add_success("remove", group.display()),
            Err(error) => report.add_failure("remove", group.display(), error),
        }
    }
    if layout.journal_dir().exists() {
        remove_journal(layout, acts, report);
    }
}

/// Returns true if a recorded program `calico` was removed, or in a dry run would be, and no other
/// recorded one stays.
fn is_plugin_removed(tasks: &[RemovalTask], state: &State, acts: bool) -> bool {
    let is_plugin = |task: &&RemovalTask| {
        matches!(
            task.file.place,
            DirectoryRole::Bin | DirectoryRole::SecondaryBin
        ) && task.file.name == "calico"
    };
    let is_removed = |task: &RemovalTask| {
        let failed = acts && state.get(task.file.place, &task.file.name).is_some();
        task.verdict == Verdict::Remove && !failed
    };
    let (removed, others): (Vec<&RemovalTask>, Vec<&RemovalTask>) = tasks
        .iter()
        .filter(is_plugin)
        .partition(|task| is_removed(task));
    !removed.is_empty() && others.iter().all(|task| task.verdict == Verdict::Missing)
}

/// Removes the journal, or reports it if it is in use or contains deferred DELs or other files.
fn remove_journal(layout: &Layout, acts: bool, report: &mut UninstallReport) {
    let (directory, lock) = (layout.journal_dir(), layout.journal_lock());
    // A dry run does not even create the lock file.
    let held = acts
        .then(|| HostLock::acquire_within(&lock, Duration::ZERO))
        .transpose();
    let _held = match held {
        Ok(held) => held,
        Err(LockError::Busy { .. }) => {
            let reason = "another process holds the journal's lock, for example to replay deferred \
                          DELs; run this command again when that process has ended";
            return report.add_remaining(directory.display(), reason);
        }
        Err(error) => return report.add_remaining(directory.display(), error),
    };
    let journal = Journal::new(&directory);
    match journal.entries() {
        Err(error) => {
            report.add_remaining(directory.display(), format!("it cannot be read: {error}"))
        }
        Ok(entries) if !entries.is_empty() => {
            report.add_remaining(directory.display(), describe_deferred_dels(&entries));
        }
        Ok(_) => match if acts {
            remove_empty(&journal, &directory, &lock)
        } else {
            Ok(())
        } {
            Ok(()) => report.add_success("remove", directory.display()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                let reason = "it contains other files, or a DEL was deferred at this moment";
                report.add_remaining(directory.display(), reason);
            }
            Err(error) => report.add_failure("remove", directory.display(), error),
        },
    }
}

/// Returns the reason why a journal with entries stays, and the remedy. kube-controllers cannot
/// reach the embedded datastore.
fn describe_deferred_dels(entries: &[Entry]) -> String {
    let is_in_a_file = |entry: &Entry| {
        entry
            .pending_del
            .as_ref()
            .is_ok_and(PendingDel::is_in_a_file)
    };
    let remedy = if entries.iter().all(is_in_a_file) {
        "install the plugin again, which completes the DELs, or delete this directory with the \
         datastore's file"
    } else {
        "kube-controllers releases those of pods on an API server or etcd; for the others run \
         `calico-ipam check` on another node; then delete this directory"
    };
    format!(
        "{} deferred DELs have not released their addresses: {remedy}",
        entries.len()
    )
}

/// Removes an empty journal. Fails if a DEL writes an entry at this moment, which takes no lock.
fn remove_empty(journal: &Journal, directory: &Path, lock: &Path) -> io::Result<()> {
    atomic_file::sweep(directory);
    journal.remove_identities()?;
    journal.remove_all_interfaces().map_err(io::Error::other)?;
    ignore_missing(fs::remove_file(lock))?;
    ignore_missing(fs::remove_dir(directory))
}

/// Treats a missing file as removed.
pub(super) fn ignore_missing(removal: io::Result<()>) -> io::Result<()> {
    match removal {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reports the files in `/var/lib/calico` that the report does not name yet, and all files in
/// `/var/run/calico`. `is_recorded` is false if the state file is not to be reported.
pub(super) fn report_unowned(layout: &Layout, is_recorded: bool, report: &mut UninstallReport) {
    for path in entries(&layout.state_dir()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !report.mentions(&path.display().to_string()) && (is_recorded || name != state::NAME) {
            report.add_remaining(path.display(), reason(&name));
        }
    }
    for path in entries(&layout.run_dir()) {
        report.add_remaining(
            path.display(),
            "plugins and calico-node share it; a reboot removes it",
        );
    }
}

/// Reports the copies in `directory` that the installer made of invalid configurations, and the
/// configurations with Calico's plugin that Cilium renamed.
pub(super) fn report_backups(directory: &Path, report: &mut UninstallReport) {
    let is_renamed = |path: &Path| {
        path.extension()
            .is_some_and(|extension| extension == CILIUM_BACKUP)
            && regular_file::contents(path).is_ok_and(has_calico)
    };
    for path in entries(directory)
        .into_iter()
        .filter(|path| is_renamed(path))
    {
        report.add_remaining(
            path.display(),
            "Cilium renamed the configuration, and no runtime reads it; delete it by hand",
        );
    }
    let reason = "the copy of a configuration that was not a JSON object and was replaced; it may \
                  contain a token: remove it when its plugins are added again";
    for path in entries(directory)
        .into_iter()
        .filter(|path| is_backup(path))
    {
        report.add_remaining(path.display(), reason);
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn reason(name: &str) -> &'static str {
    let is = |path: &str| {
        Path::new(path)
            .file_name()
            .is_some_and(|known| known == name)
    };
    let is_database = ["", "-wal", "-shm"]
        .iter()
        .any(|end| is(&format!("{}{end}", DatastoreConf::DEFAULT_PATH)));
    match name {
        nodename::NAME => "calico-node uses it, too; IPAM would treat another name as another node",
        state::NAME => "it records the files that are still installed",
        _ if name == JOURNAL || is(API_GROUP_FILE) => {
            "the plugin uses it; it can be removed with the last program of the plugin"
        }
        _ if is_database => "it is the datastore of this node: pools, addresses, endpoints",
        _ => "the installer did not write it",
    }
}

#[cfg(test)]
mod tests;
