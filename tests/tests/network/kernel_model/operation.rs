//! The operations of a sequence.

use std::net::IpAddr;

use dataplane::{EndpointPlan, SuspectContainer, TeardownTarget};
use libcalico::names::InterfaceAlias;

/// An operation of a sequence.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Call(Call),
    Change(Change),
}

/// A call of the plugin.
#[derive(Debug, Clone)]
pub(super) enum Call {
    SetUp {
        pod: &'static str,
        plan: EndpointPlan,
        prior: Prior,
        /// Whether to remove the path of the namespace between its opening and the call.
        removes_path: bool,
    },
    UndoSetUp {
        index: IndexChoice,
        alias: InterfaceAlias,
    },
    Verify {
        pod: &'static str,
        plan: EndpointPlan,
    },
    IsAbsent {
        pod: &'static str,
        host_ifname: &'static str,
        container_ifname: &'static str,
    },
    ExistingInterface {
        pod: &'static str,
        host_ifname: &'static str,
        container_ifname: &'static str,
        alias: InterfaceAlias,
        prior: Prior,
    },
    Remove {
        target: TeardownTarget,
        /// The index that replaces the proof of the target.
        index: Option<IndexChoice>,
    },
    Suspects {
        suspects: Vec<SuspectContainer>,
        /// Whether to remove the interfaces at once. Otherwise a later operation does.
        removes: bool,
    },
    RemoveEarlierSuspects,
    HasInterface {
        container: String,
        addresses: Vec<IpAddr>,
    },
    InterfaceAliases,
}

/// The prior interface of an ADD.
#[derive(Debug, Clone, Copy)]
pub(super) enum Prior {
    Unknown,
    Missing,
    Present(IndexChoice, bool),
}

/// The index of a host interface.
#[derive(Debug, Clone, Copy)]
pub(super) enum IndexChoice {
    /// The index of the interface that has this name now.
    Of(&'static str),
    /// An index from the list of all indexes so far, counted from its end.
    Earlier(usize),
}

/// A change by another program.
#[derive(Debug, Clone)]
pub(super) enum Change {
    CreatePod(&'static str),
    RemovePod(&'static str),
    StartProcess(&'static str),
    StopProcesses(&'static str),
    RenameInPod {
        pod: &'static str,
        from: &'static str,
        to: &'static str,
    },
    SetUpInPod {
        pod: &'static str,
        ifname: &'static str,
        is_up: bool,
    },
    DeleteInPod {
        pod: &'static str,
        ifname: &'static str,
    },
    AddPair(NewPair),
    AddBridge {
        pod: Option<&'static str>,
        name: &'static str,
    },
    SetAlias {
        ifname: &'static str,
        alias: Option<InterfaceAlias>,
    },
    SetHostLinkUp {
        ifname: &'static str,
        is_up: bool,
    },
    DeleteHostLink(&'static str),
    AddRoute {
        address: IpAddr,
        ifname: &'static str,
    },
    DeleteRoute {
        address: IpAddr,
        ifname: &'static str,
    },
}

/// A pair that another program creates.
#[derive(Debug, Clone)]
pub(super) struct NewPair {
    pub(super) host_ifname: &'static str,
    pub(super) has_mac_of_calico: bool,
    pub(super) alias: Option<InterfaceAlias>,
    /// The pod of the other end; `None` for the host.
    pub(super) pod: Option<&'static str>,
    pub(super) container_ifname: &'static str,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) has_routes: bool,
}

impl Operation {
    /// Returns true if a namespace may end, which the kernel does in the background.
    pub(super) fn may_end_a_namespace(&self) -> bool {
        matches!(
            self,
            Operation::Call(Call::SetUp {
                removes_path: true,
                ..
            }) | Operation::Change(Change::RemovePod(_) | Change::StopProcesses(_))
        )
    }
}
