//! What becomes of each file that the state notes: a function of what was found.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::layout::Place;
use crate::runtime_choice;

/// A file that the state notes, as it is on the disk now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Where it was installed.
    pub place: Place,
    /// Under which name.
    pub name: String,
    /// Its path, as this process sees it.
    pub path: PathBuf,
    /// How it is.
    pub state: FoundState,
    /// Whether another file was there before the installation.
    pub replaced: bool,
}

impl Found {
    /// Whether it is what a container runtime reads.
    pub fn is_configuration(&self) -> bool {
        is_configuration(self.place, &self.name)
    }
}

/// How a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    /// Not there.
    Gone,
    /// As it was installed.
    Same,
    /// It changes by itself, and nothing says that another one wrote it.
    Renewed,
    /// Somebody else wrote it since; who or how.
    Changed(String),
    /// It cannot be looked at.
    Unreadable(String),
}

/// What becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is removed.
    Remove,
    /// It stays, for a reason.
    Leave(String),
    /// There is nothing to do.
    Gone,
}

/// A file and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Where it was installed.
    pub place: Place,
    /// Under which name.
    pub name: String,
    /// Its path, as this process sees it.
    pub path: PathBuf,
    /// What becomes of it.
    pub verdict: Verdict,
    /// Whether another file was there before the installation.
    pub replaced: bool,
}

impl Task {
    /// Whether it is what a container runtime reads: the first file to go.
    pub fn is_configuration(&self) -> bool {
        is_configuration(self.place, &self.name)
    }
}

fn is_configuration(place: Place, name: &str) -> bool {
    place == Place::Net && runtime_choice::is_read(name)
}

/// Decides. `named` are the programs that configurations name which stay on the node, with the configuration of each.
pub fn plan(found: &[Found], named: &BTreeMap<String, String>) -> Vec<Task> {
    let task = |found: &Found| Task {
        place: found.place,
        name: found.name.clone(),
        path: found.path.clone(),
        verdict: verdict(found, named),
        replaced: found.replaced,
    };
    found.iter().map(task).collect()
}

fn verdict(found: &Found, named: &BTreeMap<String, String>) -> Verdict {
    let is_program = matches!(found.place, Place::Bin | Place::SecondaryBin);
    match &found.state {
        FoundState::Gone => Verdict::Gone,
        FoundState::Changed(how) => Verdict::Leave(how.clone()),
        FoundState::Unreadable(reason) => Verdict::Leave(format!("it cannot be looked at: {reason}")),
        FoundState::Same | FoundState::Renewed => match named.get(&found.name).filter(|_| is_program) {
            Some(configuration) => Verdict::Leave(format!("{configuration}, which stays, runs it")),
            None => Verdict::Remove,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(place: Place, name: &str, state: FoundState) -> Found {
        Found { place, name: name.into(), path: PathBuf::from("/x").join(name), state, replaced: false }
    }

    #[test]
    fn only_what_is_still_ours_goes() {
        let found = [
            found(Place::Net, "10-calico.conflist", FoundState::Same),
            found(Place::Net, "calico-kubeconfig", FoundState::Renewed),
            found(Place::Bin, "calico", FoundState::Same),
            found(Place::Bin, "portmap", FoundState::Changed("it was changed since".into())),
            found(Place::Bin, "bandwidth", FoundState::Gone),
            found(Place::State, "nodename", FoundState::Unreadable("permission denied".into())),
        ];
        let verdicts: Vec<Verdict> = plan(&found, &BTreeMap::new()).into_iter().map(|task| task.verdict).collect();
        let leave = |reason: &str| Verdict::Leave(reason.into());
        assert_eq!(
            verdicts,
            [
                Verdict::Remove,
                Verdict::Remove,
                Verdict::Remove,
                leave("it was changed since"),
                Verdict::Gone,
                leave("it cannot be looked at: permission denied"),
            ]
        );
    }

    #[test]
    fn a_program_that_a_remaining_configuration_runs_stays() {
        let named = BTreeMap::from([("loopback".to_owned(), "05-other.conflist".to_owned())]);
        let found = [found(Place::Bin, "loopback", FoundState::Same), found(Place::Net, "loopback", FoundState::Same)];
        let tasks = plan(&found, &named);
        assert_eq!(tasks[0].verdict, Verdict::Leave("05-other.conflist, which stays, runs it".into()));
        assert_eq!(tasks[1].verdict, Verdict::Remove);
    }

    #[test]
    fn what_runtimes_read_is_told_from_the_rest() {
        let is = |place, name| plan(&[found(place, name, FoundState::Same)], &BTreeMap::new())[0].is_configuration();
        assert!(is(Place::Net, "10-calico.conflist"));
        assert!(!is(Place::Net, "calico-kubeconfig") && !is(Place::State, "cni.json"));
    }
}
