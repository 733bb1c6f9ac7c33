//! Plans the removal of recorded files. Planning is pure.

use std::collections::BTreeMap;
use std::path::PathBuf;

use installation::conflist;
use installation::found::FoundState;
use installation::layout::DirectoryRole;

/// The options of the command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Whether to act. Otherwise the run only reports its plan.
    #[arg(long)]
    pub yes: bool,
    /// Whether to delete the remaining interfaces of pods, and with them their routes.
    #[arg(long)]
    pub tear_down_pods: bool,
    /// Whether to release the addresses and blocks of this node.
    #[arg(long)]
    pub release_addresses: bool,
    /// Whether to treat missing files as removed, even if all files of a directory are missing.
    #[arg(long)]
    pub missing_as_removed: bool,
}

/// The present state of a recorded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundFile {
    pub place: DirectoryRole,
    pub name: String,
    pub path: PathBuf,
    pub state: FoundState,
    /// True if the installation replaced another file.
    pub replaced: bool,
}

impl FoundFile {
    /// Returns true if container runtimes read files of this name. Such files are renamed first.
    pub(super) fn is_configuration(&self) -> bool {
        self.place == DirectoryRole::Net && conflist::is_read_by_runtimes(&self.name)
    }
}

/// The decision about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Remove,
    /// The file stays, for this reason.
    Keep(String),
    Missing,
}

/// A file and the decision about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemovalTask {
    pub file: FoundFile,
    pub verdict: Verdict,
}

/// Decides about each file. `named` contains the programs that remaining configurations name, each
/// with the name of such a configuration.
pub(super) fn plan(found: &[FoundFile], named: &BTreeMap<String, String>) -> Vec<RemovalTask> {
    found
        .iter()
        .map(|file| RemovalTask {
            file: file.clone(),
            verdict: verdict(file, named),
        })
        .collect()
}

fn verdict(found: &FoundFile, named: &BTreeMap<String, String>) -> Verdict {
    let is_program = matches!(
        found.place,
        DirectoryRole::Bin | DirectoryRole::SecondaryBin
    );
    match &found.state {
        FoundState::Missing => Verdict::Missing,
        FoundState::Changed(how) => Verdict::Keep(how.clone()),
        FoundState::Unreadable(reason) => Verdict::Keep(format!("it cannot be read: {reason}")),
        FoundState::Same | FoundState::Renewed => {
            match named.get(&found.name).filter(|_| is_program) {
                Some(configuration) => {
                    Verdict::Keep(format!("{configuration}, which is kept, runs it"))
                }
                None => Verdict::Remove,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: DirectoryRole, name: &str, state: FoundState) -> FoundFile {
        FoundFile {
            place,
            name: name.into(),
            path: PathBuf::from("/x").join(name),
            state,
            replaced: false,
        }
    }

    #[test]
    fn only_unmodified_installed_files_are_removed() {
        let found = [
            found(DirectoryRole::Net, "10-calico.conflist", FoundState::Same),
            found(DirectoryRole::Net, "calico-kubeconfig", FoundState::Renewed),
            found(DirectoryRole::Bin, "calico", FoundState::Same),
            found(
                DirectoryRole::Bin,
                "portmap",
                FoundState::Changed("it was changed since".into()),
            ),
            found(DirectoryRole::Bin, "bandwidth", FoundState::Missing),
            found(
                DirectoryRole::State,
                "nodename",
                FoundState::Unreadable("permission denied".into()),
            ),
        ];
        let verdicts: Vec<Verdict> = plan(&found, &BTreeMap::new())
            .into_iter()
            .map(|task| task.verdict)
            .collect();
        let leave = |reason: &str| Verdict::Keep(reason.into());
        assert_eq!(
            verdicts,
            [
                Verdict::Remove,
                Verdict::Remove,
                Verdict::Remove,
                leave("it was changed since"),
                Verdict::Missing,
                leave("it cannot be read: permission denied"),
            ]
        );
    }

    #[test]
    fn program_used_by_a_remaining_configuration_is_not_removed() {
        let named = BTreeMap::from([("loopback".to_owned(), "05-other.conflist".to_owned())]);
        let found = [
            found(DirectoryRole::Bin, "loopback", FoundState::Same),
            found(DirectoryRole::Net, "loopback", FoundState::Same),
        ];
        let tasks = plan(&found, &named);
        assert_eq!(
            tasks[0].verdict,
            Verdict::Keep("05-other.conflist, which is kept, runs it".into())
        );
        assert_eq!(tasks[1].verdict, Verdict::Remove);
    }

    #[test]
    fn configurations_are_distinguished_from_other_installed_files() {
        let is = |place, name| {
            plan(&[found(place, name, FoundState::Same)], &BTreeMap::new())[0]
                .file
                .is_configuration()
        };
        assert!(is(DirectoryRole::Net, "10-calico.conflist"));
        assert!(
            !is(DirectoryRole::Net, "calico-kubeconfig") && !is(DirectoryRole::State, "cni.json")
        );
    }
}
