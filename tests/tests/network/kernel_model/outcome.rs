//! The results of calls in a form that is equal on the kernel and on the model.

use std::fmt::Debug;

use dataplane::{
    CheckedItem, ConflictReason, ConflictingInterface, DataplaneError, Difference, EndpointPlan,
    ExistingInterface, InterfacePair, NetnsError, PriorInterface, Removed, RunningContainer,
    SuspectInterface, TeardownTarget,
};

/// A result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The kinds of the result, several for several differences.
    pub(super) kinds: Vec<String>,
    pub(super) details: String,
    /// The index of a host interface.
    pub(super) index: Option<u32>,
}

impl Outcome {
    pub(super) fn new(kind: &str) -> Self {
        Outcome {
            kinds: vec![kind.to_owned()],
            details: String::new(),
            index: None,
        }
    }

    pub(super) fn with(self, details: impl Debug) -> Self {
        Outcome {
            details: format!("{details:?}"),
            ..self
        }
    }

    fn on(self, index: u32) -> Self {
        Outcome {
            index: Some(index),
            ..self
        }
    }
}

pub(super) fn of_error(error: DataplaneError) -> Outcome {
    match error {
        DataplaneError::HostInterfaceConflict(found) => {
            let kind = format!("conflict {}", reason(&found.reason));
            of_conflict(&kind, *found)
        }
        DataplaneError::BusyRoute(busy) => Outcome::new("address is busy").with((
            busy.address,
            busy.interface,
            busy.is_withheld,
            busy.ifname,
        )),
        DataplaneError::ContainerInterfaceExists { ifname, netns } => {
            Outcome::new("pod's interface exists").with((ifname, netns))
        }
        DataplaneError::Netlink(error) => Outcome::new(&match error.errno() {
            Some(errno) => format!("refused {errno:?}"),
            None => error.to_string(),
        }),
        DataplaneError::Netns(NetnsError::NotFound { path }) => {
            Outcome::new("namespace is missing").with(path)
        }
        other => Outcome::new(&other.to_string()),
    }
}

pub(super) fn of_pair(plan: &EndpointPlan, pair: InterfacePair) -> Outcome {
    let mac = plan.container_mac.map(|_| pair.container_mac);
    let details = (pair.host_ifname, pair.host_mac, mac, pair.mtu, pair.device);
    Outcome::new("created a pair")
        .with(details)
        .on(pair.host_index)
}

pub(super) fn of_verify(differences: Vec<Difference>) -> Outcome {
    let items = differences.iter().filter_map(item);
    let kinds: Vec<_> = items.map(|item| format!("difference of {item}")).collect();
    let compared = differences
        .into_iter()
        .filter(|found| item(found).is_some());
    let details: Vec<_> = compared
        .map(
            |Difference {
                 item,
                 expected,
                 found,
             }| match item {
                // The model has other indexes and MAC addresses.
                CheckedItem::Peer(_) | CheckedItem::Mac(_) => (item, expected, String::new()),
                item => (item, expected, found),
            },
        )
        .collect();
    if kinds.is_empty() {
        return Outcome::new("no differences");
    }
    Outcome {
        kinds,
        ..Outcome::new("")
    }
    .with(details)
}

/// Returns the kind of the item if the model has it.
fn item(difference: &Difference) -> Option<String> {
    match &difference.item {
        CheckedItem::Sysctl(_) | CheckedItem::Neighbour(_) => None,
        item => format!("{item:?}").split('(').next().map(str::to_owned),
    }
}

pub(super) fn of_existing(found: ExistingInterface) -> Outcome {
    match found {
        ExistingInterface::Conflicting(found) => {
            let kind = format!("conflict {}", reason(&found.reason));
            of_conflict(&kind, found)
        }
        ExistingInterface::Replaceable(PriorInterface::Present { index, is_proven }) => {
            Outcome::new("prior Present").with(is_proven).on(index)
        }
        ExistingInterface::Replaceable(prior) => Outcome::new(&format!("prior {prior:?}")),
    }
}

pub(super) fn of_conflict(kind: &str, mut found: ConflictingInterface) -> Outcome {
    found.addresses.sort();
    let details = (
        found.ifname,
        found.container,
        found.alias,
        found.peer_mac.is_some(),
        found.addresses,
        found.reason,
    );
    Outcome::new(kind).with(details).on(found.index)
}

fn reason(reason: &ConflictReason) -> &'static str {
    match reason {
        ConflictReason::OtherPod => "OtherPod",
        ConflictReason::NotAPair => "NotAPair",
        ConflictReason::OtherInterface(_) => "OtherInterface",
        ConflictReason::Unproven => "Unproven",
        ConflictReason::OtherAdd => "OtherAdd",
    }
}

pub(super) fn of_removed(target: &TeardownTarget, removed: Removed) -> Outcome {
    let kind = match &removed.interface {
        None => "deleted no interface",
        Some(name) if *name == target.host_ifname => "deleted the host end",
        Some(_) => "deleted the pod's end",
    };
    Outcome::new(kind).with(removed)
}

pub(super) fn of_suspects(found: &[SuspectInterface]) -> Outcome {
    let names = found
        .iter()
        .map(|found| (&found.container_id, &found.ifname));
    let mut names: Vec<_> = names.collect();
    names.sort();
    let kind = match names.is_empty() {
        true => "found no suspects",
        false => "found suspects",
    };
    Outcome::new(kind).with(names)
}

pub(super) fn of_running(found: Vec<RunningContainer>) -> Outcome {
    let names = found
        .iter()
        .map(|found| (&found.container_id, &found.ifname));
    let mut names: Vec<_> = names.collect();
    names.sort();
    let kind = match names.is_empty() {
        true => "no containers run",
        false => "containers run",
    };
    Outcome::new(kind).with(names)
}
