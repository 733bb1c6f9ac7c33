//! Removes the files that the plugins themselves write on a node.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use ipam_plugin::journal::Journal;
use ipam_plugin::lock::{HostLock, LockError};

use super::report::UninstallReport;
use crate::atomic_file;
use crate::layout::{Layout, Place};
use crate::state::State;
use crate::uninstall::{RemovalTask, Verdict};

/// Removes the cached API group of the cluster, and the journal if it is empty. Both stay if a program of the plugin
/// stays. `state` contains the records that remain after the programs were removed.
pub(super) fn remove(tasks: &[RemovalTask], state: &State, layout: &Layout, acts: bool, report: &mut UninstallReport) {
    if !goes(tasks, state, acts) {
        return;
    }
    let group = Path::new(datastore::kubernetes::GROUP_FILE).file_name().unwrap_or_default();
    let group = layout.state_dir().join(group);
    if group.exists() {
        match if acts { gone(fs::remove_file(&group)) } else { Ok(()) } {
            Ok(()) => report.add_success("remove", group.display()),
            Err(error) => report.add_failure("remove", group.display(), error),
        }
    }
    if layout.journal_dir().exists() {
        remove_journal(layout, acts, report);
    }
}

/// Returns true if a program of the plugin was removed, or would be, and none remains.
fn goes(tasks: &[RemovalTask], state: &State, acts: bool) -> bool {
    let is_plugin =
        |task: &&RemovalTask| matches!(task.place, Place::Bin | Place::SecondaryBin) && task.name == "calico";
    let is_removed = |task: &RemovalTask| {
        let failed = acts && state.get(task.place, &task.name).is_some();
        task.verdict == Verdict::Remove && !failed
    };
    let (removed, others): (Vec<&RemovalTask>, Vec<&RemovalTask>) =
        tasks.iter().filter(is_plugin).partition(|task| is_removed(task));
    !removed.is_empty() && others.iter().all(|task| task.verdict == Verdict::Gone)
}

/// Removes the journal. A process that replays deferred DELs holds the journal's lock; the journal then stays.
fn remove_journal(layout: &Layout, acts: bool, report: &mut UninstallReport) {
    let (directory, lock) = (layout.journal_dir(), layout.journal_lock());
    // A dry run does not even create the lock file.
    let held = acts.then(|| HostLock::acquire_within(&lock, Duration::ZERO)).transpose();
    let _held = match held {
        Ok(held) => held,
        Err(LockError::Busy { .. }) => {
            let reason =
                "somebody holds its lock, as a DEL does that pays debts; when that ended and it is empty, it can go";
            return report.add_remaining(directory.display(), reason);
        }
        Err(error) => return report.add_remaining(directory.display(), error),
    };
    let journal = Journal::new(&directory);
    match journal.entries().map(|entries| entries.len()) {
        Err(error) => report.add_remaining(directory.display(), format!("it cannot be looked at: {error}")),
        Ok(n) if n > 0 => report.add_remaining(
            directory.display(),
            format!(
                "{n} DELs could not give their addresses back yet: kube-controllers collects those of pods; for the \
                 others run `calico-ipam check` on another node; then delete this directory"
            ),
        ),
        Ok(_) => match if acts { remove_empty(&journal, &directory, &lock) } else { Ok(()) } {
            Ok(()) => report.add_success("remove", directory.display()),
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                report.add_remaining(
                    directory.display(),
                    "something else is in it, or a DEL noted a debt in this moment",
                );
            }
            Err(error) => report.add_failure("remove", directory.display(), error),
        },
    }
}

/// Removes an empty journal. A DEL takes no lock to write an entry; an entry written at this moment makes the removal
/// fail.
fn remove_empty(journal: &Journal, directory: &Path, lock: &Path) -> io::Result<()> {
    atomic_file::sweep(directory);
    journal.remove_identities()?;
    gone(fs::remove_file(lock))?;
    gone(fs::remove_dir(directory))
}

/// Converts the result of a removal: a missing file counts as removed.
fn gone(removal: io::Result<()>) -> io::Result<()> {
    match removal {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::PathBuf;

    use ipam_plugin::journal::DatastoreIdentity;
    use tempfile::TempDir;

    use super::*;

    const GROUP: &str = "api-group.json";

    /// A node with the plugin's own files.
    struct Node {
        _root: TempDir,
        layout: Layout,
    }

    impl Node {
        fn new() -> Node {
            let root = tempfile::tempdir().unwrap();
            let layout = Layout::below(root.path());
            let node = Node { _root: root, layout };
            fs::create_dir_all(node.journal()).unwrap();
            fs::write(node.group(), "{}").unwrap();
            node
        }

        fn journal(&self) -> PathBuf {
            self.layout.journal_dir()
        }

        fn group(&self) -> PathBuf {
            self.layout.state_dir().join(GROUP)
        }

        /// Calls `remove` for programs with these verdicts, of which those in `noted` still exist. Returns the report.
        fn remove(&self, verdicts: &[(Place, Verdict)], noted: &[Place], acts: bool) -> String {
            let task = |(place, verdict): &(Place, Verdict)| RemovalTask {
                place: *place,
                name: "calico".into(),
                path: "/x/calico".into(),
                verdict: verdict.clone(),
                replaced: false,
            };
            let tasks: Vec<RemovalTask> = verdicts.iter().map(task).collect();
            let mut state = State::default();
            noted.iter().for_each(|place| state.record(*place, "calico", None, false));
            let mut report = UninstallReport { acted: acts, ..UninstallReport::default() };
            remove(&tasks, &state, &self.layout, acts, &mut report);
            report.to_string()
        }

        fn removed(&self) -> String {
            self.remove(&[(Place::Bin, Verdict::Remove)], &[], true)
        }
    }

    #[test]
    fn it_goes_with_the_program_and_a_dry_run_only_says_so() {
        let node = Node::new();
        let said = node.remove(&[(Place::Bin, Verdict::Remove)], &[Place::Bin], false);
        assert!(said.contains(&format!("would remove {}\n", node.journal().display())), "{said}");
        assert!(node.group().exists() && fs::read_dir(node.journal()).unwrap().next().is_none());
        let said = node.removed();
        assert!(said.contains(&format!("removed {}\n", node.journal().display())), "{said}");
        assert!(!node.group().exists() && !node.journal().exists());
    }

    #[test]
    fn it_stays_with_a_program_that_stays_or_could_not_be_removed() {
        use Place::{Bin, Net, SecondaryBin};
        let leave = || Verdict::Leave("changed".into());
        for (verdicts, noted) in [
            (vec![(Bin, Verdict::Remove)], vec![Bin]),
            (vec![(Bin, leave())], vec![Bin]),
            (vec![(Bin, Verdict::Remove), (SecondaryBin, leave())], vec![SecondaryBin]),
            (vec![(Bin, Verdict::Remove), (SecondaryBin, Verdict::Remove)], vec![SecondaryBin]),
            (vec![(Bin, Verdict::Gone)], vec![]),
            (vec![(Net, Verdict::Remove)], vec![]),
        ] {
            let node = Node::new();
            assert_eq!(node.remove(&verdicts, &noted, true), "", "{verdicts:?}");
            assert!(node.group().exists() && node.journal().exists(), "{verdicts:?}");
        }
        let node = Node::new();
        node.remove(&[(Bin, Verdict::Remove), (SecondaryBin, Verdict::Gone)], &[], true);
        assert!(!node.group().exists() && !node.journal().exists());
    }

    #[test]
    fn a_journal_that_somebody_works_on_stays_with_its_lock() {
        let node = Node::new();
        let lock = File::create(node.layout.journal_lock()).unwrap();
        lock.lock().unwrap();
        let said = node.removed();
        assert!(said.contains("cni-journal: somebody holds its lock"), "{said}");
        assert!(node.layout.journal_lock().exists());
        drop(lock);
        node.removed();
        assert!(!node.journal().exists());
    }

    #[test]
    fn a_journal_goes_with_what_the_node_has_learned_of_its_datastores() {
        let node = Node::new();
        let journal = Journal::new(node.layout.journal_dir());
        let datastore = DatastoreIdentity { name: "etcd a".into(), identity: "etcd 1".into() };
        journal.lock().unwrap().record_identity(&datastore).unwrap();
        let said = node.removed();
        assert!(!node.journal().exists(), "{said}");
    }

    #[test]
    fn a_journal_with_debts_or_with_something_else_stays() {
        for (name, reason) in [("a.json", "1 DELs could not give"), ("theirs", "something else is in it")] {
            let node = Node::new();
            fs::write(node.journal().join(name), "{}").unwrap();
            let said = node.removed();
            assert!(said.contains(reason), "{said}");
            assert!(node.journal().join(name).exists());
        }
        let node = Node::new();
        fs::remove_dir(node.journal()).unwrap();
        fs::write(node.journal(), "").unwrap();
        let said = node.removed();
        assert!(said.contains("cannot open lock file") && !said.contains("FAILED"), "{said}");
    }
}
