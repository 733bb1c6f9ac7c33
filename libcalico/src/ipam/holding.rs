//! Whether an address is held: the one decision that `calico-ipam check` and garbage collection share.
//!
//! An allocation names somebody ([`Claim`]); what is known of that one comes from a [`HolderFacts`]: endpoints that were
//! just read, a cache, or the live API. On any doubt an address is held.

mod claim;

use std::fmt;

pub use self::claim::{Claim, ClaimKind};

/// What is known of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight<T> {
    /// It is not there.
    Absent,
    /// It is there.
    Present(T),
    /// Nobody could look.
    Unknown,
}

/// What a pod says about one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodSight<'a> {
    /// The Kubernetes node it is on; empty when on none.
    pub node: &'a str,
    /// Whether it has the address; `None` while it has reported none, or what it reports cannot be read.
    pub has: Option<bool>,
    /// Whether its containers are gone for good.
    pub ended: Option<Ended>,
}

/// What is known of a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineSight {
    /// The machine or an instance of its name is there, whoever owns the instance: its launcher may run.
    Present,
    /// Neither is there.
    Absent,
    /// KubeVirt is not installed: neither kind is defined.
    Undefined,
    /// Nobody could look.
    Unknown,
}

/// What is known of the pods that an allocation names as its owners ([`Claim::owners`]). Of several, the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerSight {
    /// None is there.
    Absent,
    /// One is there, and has ended or has other addresses.
    Present,
    /// Nobody could look.
    Unknown,
    /// One that has not ended has the address, or has not told its addresses yet.
    HasIt,
}

impl OwnerSight {
    /// Reads what was seen of each.
    pub fn of<'a>(pods: impl Iterator<Item = Sight<PodSight<'a>>>) -> Self {
        let sights = pods.map(|pod| match pod {
            Sight::Absent => OwnerSight::Absent,
            Sight::Unknown => OwnerSight::Unknown,
            Sight::Present(pod) if pod.ended.is_none() && pod.has != Some(false) => OwnerSight::HasIt,
            Sight::Present(_) => OwnerSight::Present,
        });
        sights.max().unwrap_or(OwnerSight::Absent)
    }
}

/// How a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ended {
    /// By itself.
    Finished,
    /// The node threw it out (B-05).
    Evicted,
}

/// What is known of the one that an allocation names.
pub trait HolderFacts {
    /// The pod.
    fn pod(&self) -> Sight<PodSight<'_>>;
    /// The virtual machine.
    fn machine(&self) -> MachineSight;
    /// The pods that an allocation for a virtual machine names as its owners.
    fn owner(&self) -> OwnerSight;
    /// The Service.
    fn service(&self) -> Sight<()>;
    /// The Calico node whose tunnel it is.
    fn tunnel_node(&self) -> Sight<()>;
    /// Somebody that has the address although the allocation names nobody. [`Sight::Unknown`] where nobody can tell.
    fn unnamed(&self) -> Sight<()>;
    /// The Kubernetes node that the allocation was made on, if it is known.
    fn node(&self) -> Option<&str>;
}

/// The decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// Somebody has the address, or may have it.
    Held(Keeper),
    /// Nobody has it, as far as was seen.
    Leaked(Evidence),
}

/// Why an address is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Keeper {
    /// The host keeps it for itself.
    Host,
    /// Its tunnel's node is there.
    Tunnel,
    /// Its Service is there.
    Service,
    /// Its virtual machine is there.
    Machine,
    /// Its pod has it.
    Pod,
    /// Its pod has told no address yet, or none that can be read.
    SilentPod,
    /// An endpoint has it although the allocation does not say whose it is.
    Endpoint,
    /// Nothing known here can tell whether somebody has it (B-08).
    UnknownOwner,
    /// Its node is none of Kubernetes.
    ForeignNode,
    /// Its node came back.
    Node,
    /// It could not be looked at.
    Unseen,
}

/// Why nobody has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Evidence {
    /// The pod is gone.
    PodGone,
    /// The pod is on another node now.
    PodElsewhere,
    /// The pod has other addresses.
    OtherAddresses,
    /// The pod's containers ended.
    PodFinished,
    /// The pod was evicted.
    PodEvicted,
    /// Neither the virtual machine nor an instance is there.
    MachineGone,
    /// KubeVirt is not installed any more.
    NoKubeVirt,
    /// The Service is gone.
    ServiceGone,
    /// The tunnel's node is gone.
    NodeGone,
    /// No endpoint has it.
    NoEndpoint,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Evidence::PodGone => "its pod is gone",
            Evidence::PodElsewhere => "its pod is on another node",
            Evidence::OtherAddresses => "its pod has other addresses",
            Evidence::PodFinished => "its pod has finished",
            Evidence::PodEvicted => "its pod was evicted",
            Evidence::MachineGone => "its virtual machine is gone",
            Evidence::NoKubeVirt => "KubeVirt is not installed",
            Evidence::ServiceGone => "its service is gone",
            Evidence::NodeGone => "its node is gone",
            Evidence::NoEndpoint => "no endpoint has it",
        })
    }
}

impl fmt::Display for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Keeper::Host => "the host keeps it for itself",
            Keeper::Tunnel => "its tunnel's node is there",
            Keeper::Service => "its service is there",
            Keeper::Machine => "its virtual machine is there",
            Keeper::Pod => "its pod has it",
            Keeper::SilentPod => "its pod has told no address yet",
            Keeper::Endpoint => "an endpoint has it",
            Keeper::UnknownOwner => "nobody knows whose it is",
            Keeper::ForeignNode => "its node is none of Kubernetes",
            Keeper::Node => "its node is there",
            Keeper::Unseen => "its holder could not be looked at",
        })
    }
}

/// Decides whether an address that was allocated for a `kind` of holder is held (KC-433, KC-434).
pub fn holding(kind: ClaimKind, facts: &impl HolderFacts) -> Holding {
    let there = |sight: Sight<()>, keeper, evidence| match sight {
        Sight::Present(()) => Holding::Held(keeper),
        Sight::Absent => Holding::Leaked(evidence),
        Sight::Unknown => Holding::Held(Keeper::Unseen),
    };
    match kind {
        ClaimKind::HostReserved => Holding::Held(Keeper::Host),
        ClaimKind::Foreign => Holding::Held(Keeper::UnknownOwner),
        ClaimKind::Tunnel => there(facts.tunnel_node(), Keeper::Tunnel, Evidence::NodeGone),
        ClaimKind::Service => there(facts.service(), Keeper::Service, Evidence::ServiceGone),
        ClaimKind::Machine => of_machine(facts.machine(), facts.owner()),
        ClaimKind::Pod => match facts.pod() {
            Sight::Present(pod) => of_pod(&pod, facts.node()),
            Sight::Absent => Holding::Leaked(Evidence::PodGone),
            Sight::Unknown => Holding::Held(Keeper::Unseen),
        },
        ClaimKind::Unnamed => match facts.unnamed() {
            Sight::Present(()) => Holding::Held(Keeper::Endpoint),
            Sight::Absent => Holding::Leaked(Evidence::NoEndpoint),
            Sight::Unknown => Holding::Held(Keeper::UnknownOwner),
        },
    }
}

/// A launcher that runs holds the address whatever became of its machine. Without KubeVirt no launcher is ended by a controller,
/// so that any pod keeps the address.
fn of_machine(machine: MachineSight, owner: OwnerSight) -> Holding {
    match (machine, owner) {
        (MachineSight::Present, _) => Holding::Held(Keeper::Machine),
        (_, OwnerSight::HasIt) | (MachineSight::Undefined, OwnerSight::Present) => Holding::Held(Keeper::Pod),
        (MachineSight::Unknown, _) | (_, OwnerSight::Unknown) => Holding::Held(Keeper::Unseen),
        (MachineSight::Absent, OwnerSight::Present | OwnerSight::Absent) => Holding::Leaked(Evidence::MachineGone),
        (MachineSight::Undefined, OwnerSight::Absent) => Holding::Leaked(Evidence::NoKubeVirt),
    }
}

/// A pod that has the address holds it wherever it is: metadata alone never frees what is in use. Upstream looks at the
/// node first (KC-434).
fn of_pod(pod: &PodSight<'_>, node: Option<&str>) -> Holding {
    if pod.has == Some(true) && pod.ended.is_none() {
        return Holding::Held(Keeper::Pod);
    }
    if node.is_some_and(|node| !pod.node.is_empty() && node != pod.node) {
        return Holding::Leaked(Evidence::PodElsewhere);
    }
    match (pod.has, pod.ended) {
        (None, _) => Holding::Held(Keeper::SilentPod),
        (_, Some(Ended::Evicted)) => Holding::Leaked(Evidence::PodEvicted),
        (_, Some(Ended::Finished)) => Holding::Leaked(Evidence::PodFinished),
        (_, None) => Holding::Leaked(Evidence::OtherAddresses),
    }
}

#[cfg(test)]
mod tests;
