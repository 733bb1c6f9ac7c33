//! Moves plugins that other programs added to a removed configuration into the configuration that
//! runtimes use next, if that one is Calico's.

use std::path::{Path, PathBuf};

use super::files;
use super::plan::{RemovalTask, Verdict};
use super::report::UninstallReport;
use installation::conflist;
use installation::plugin_chain::{self, Entry, EntryRelation, read_chain};
use installation::state::{InstalledFile, State};
use os::atomic_file::{self, regular_file};

/// The configurations to remove, and the configuration that runtimes use next.
#[derive(Debug)]
pub(super) struct ChainedPlugins<'a> {
    removed: Vec<(&'a RemovalTask, InstalledFile)>,
    /// The next configuration that runtimes use, if it contains Calico's plugin and is a list.
    successor: Option<PathBuf>,
}

impl<'a> ChainedPlugins<'a> {
    /// Examines the configuration directory.
    pub(super) fn new(
        configurations: &[&'a RemovalTask],
        state: &State,
        directory: &Path,
    ) -> ChainedPlugins<'a> {
        let goes = |task: &&&RemovalTask| task.verdict == Verdict::Remove;
        let recorded = |task: &RemovalTask| {
            state
                .get(task.file.place, &task.file.name)
                .cloned()
                .unwrap_or_default()
        };
        let removed: Vec<_> = configurations
            .iter()
            .filter(goes)
            .map(|task| (*task, recorded(task)))
            .collect();
        let names = conflist::candidates(directory).unwrap_or_default();
        let is_removed = |name: &String| {
            removed
                .iter()
                .any(|(task, _)| task.file.path == directory.join(name))
        };
        let successor = names
            .into_iter()
            .find(|name| !is_removed(name))
            .map(|name| directory.join(name));
        ChainedPlugins {
            removed,
            successor: successor.filter(|path| accepts_entries(path)),
        }
    }

    /// Moves the foreign plugins to the successor, or reports the plan. Without a successor, or if
    /// the successor has a plugin of the type already, they are removed with their configuration.
    /// Returns false if a move fails.
    pub(super) fn move_foreign(&self, acts: bool, report: &mut UninstallReport) -> bool {
        let mut succeeded = true;
        for (task, recorded) in &self.removed {
            let path = if task.file.path.exists() {
                task.file.path.clone()
            } else {
                files::retired(&task.file.path)
            };
            let mut foreign = conflist::foreign_entries(
                &regular_file::contents(&path).unwrap_or_default(),
                recorded,
            );
            let file = task.file.path.display();
            let present = self
                .successor
                .as_ref()
                .and_then(|path| read_chain(&regular_file::contents(path).ok()?));
            if let Some(present) = present {
                for other in foreign
                    .iter()
                    .filter(|entry| present.relation_of(entry) == EntryRelation::Other)
                {
                    let kind = plugin_chain::kind(other);
                    let reason =
                        "it is not moved: the next configuration has a plugin of this type already";
                    report.add_remaining(
                        format!("the plugin {kind} that another program chained into {file}"),
                        reason,
                    );
                }
                foreign.retain(|entry| present.relation_of(entry) == EntryRelation::More);
            }
            let kinds: Vec<&str> = foreign.iter().map(plugin_chain::kind).collect();
            if kinds.is_empty() {
                continue;
            }
            let target = format!(
                "the plugins {} that other programs chained into {file}",
                kinds.join(", ")
            );
            let Some(successor) = &self.successor else {
                let target = format!(
                    "{target}: there is no other configuration of Calico's to chain them into"
                );
                report.add_success("remove", target);
                continue;
            };
            let target = format!("{target} to {}", successor.display());
            match if acts {
                add(successor, &foreign)
            } else {
                Ok(())
            } {
                Ok(()) => report.add_success("move", target),
                Err(error) => {
                    report.add_failure("move", target, error);
                    succeeded = false;
                }
            }
        }
        succeeded
    }
}

/// Returns true if a file is a list that contains Calico's plugin.
fn accepts_entries(path: &Path) -> bool {
    let text = regular_file::contents(path).unwrap_or_default();
    conflist::has_calico(&text) && read_chain(&text).is_some_and(|chain| chain.is_list)
}

/// Adds the entries to the configuration at `path`, as far as `Chain::add_entries` accepts them.
fn add(path: &Path, entries: &[Entry]) -> Result<(), atomic_file::AtomicFileError> {
    let is_whole =
        |present: Option<&[u8]>| present.is_some_and(|present| read_chain(present).is_some());
    let change = |present: Option<&[u8]>| {
        let present = read_chain(present?)?;
        let mut chain = present.clone();
        chain.add_entries(entries.to_vec());
        (!chain.is_equivalent_to(&present)).then(|| chain.to_text())
    };
    atomic_file::amend(path, 0, is_whole, change).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::uninstall::plan::FoundFile;
    use installation::found::FoundState;
    use installation::layout::DirectoryRole;

    const GOING: &str = r#"{"name": "n", "plugins": [{"type": "calico"}]}"#;
    const FOLLOWING: &str =
        r#"{"name": "n", "plugins": [{"type": "calico"}, {"type": "istio-cni", "a": 1}]}"#;

    struct Node {
        directory: tempfile::TempDir,
        task: RemovalTask,
        state: State,
    }

    impl Node {
        fn new(others: &str) -> Node {
            let directory = tempfile::tempdir().unwrap();
            let name = "10-calico.conflist".to_owned();
            let path = directory.path().join(&name);
            fs::write(&path, GOING.replace("]}", &format!(", {others}]}}"))).unwrap();
            fs::write(directory.path().join("20-calico.conflist"), FOLLOWING).unwrap();
            let mut state = State::default();
            state.record(DirectoryRole::Net, &name, Some("aa".to_owned()), false);
            let rendering = plugin_chain::Rendering::new(&read_chain(GOING.as_bytes()).unwrap());
            state.get_mut(DirectoryRole::Net, &name).unwrap().renderings = vec![rendering];
            let file = FoundFile {
                place: DirectoryRole::Net,
                name,
                path,
                state: FoundState::Same,
                replaced: false,
            };
            let task = RemovalTask {
                file,
                verdict: Verdict::Remove,
            };
            Node {
                directory,
                task,
                state,
            }
        }

        fn successor(&self) -> PathBuf {
            self.directory.path().join("20-calico.conflist")
        }
    }

    #[test]
    fn moved_entry_duplicated_in_the_next_configuration_is_skipped_and_reported() {
        let node = Node::new(r#"{"type": "istio-cni", "a": 2}, {"type": "mesh", "n": 1e400}"#);
        for acts in [false, true] {
            let mut report = UninstallReport {
                acted: acts,
                ..UninstallReport::default()
            };
            let chained = ChainedPlugins::new(&[&node.task], &node.state, node.directory.path());
            assert!(chained.move_foreign(acts, &mut report));
            let left = format!(
                "the plugin istio-cni that another program chained into {}: it is not moved: the \
                 next configuration has a plugin of this type already\n",
                node.task.file.path.display()
            );
            let (output, verb) = (
                report.to_string(),
                if acts { "moved" } else { "would move" },
            );
            assert!(
                output.contains(&left)
                    && output.contains(&format!("{verb} the plugins mesh that other programs")),
                "{output}"
            );
        }
        let text = fs::read_to_string(node.successor()).unwrap();
        assert!(
            text.contains(r#"{"type": "mesh", "n": 1e400}"#) && !text.contains(r#""a": 2"#),
            "{text}"
        );
    }

    #[test]
    fn unwritable_target_of_foreign_entries_fails_the_uninstall_with_a_report() {
        let node = Node::new(r#"{"type": "mesh"}"#);
        let chained = ChainedPlugins::new(&[&node.task], &node.state, node.directory.path());
        fs::remove_file(node.successor()).unwrap();
        fs::create_dir(node.successor()).unwrap();
        let mut report = UninstallReport {
            acted: true,
            ..UninstallReport::default()
        };
        assert!(!chained.move_foreign(true, &mut report));
        let output = report.to_string();
        assert!(
            output.starts_with("FAILED to move the plugins mesh that other programs chained into"),
            "{output}"
        );
        assert!(!report.succeeded() && node.task.file.path.exists());
    }
}
