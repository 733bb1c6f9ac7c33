//! Decides whether an allocated address is in use. `calico-ipam check` and garbage collection share
//! this decision, but do not look up the same owners.
//!
//! An address whose owner was not looked up, or could not be, counts as in use.

mod owner;

pub use self::owner::{AllocationOwner, OwnerKind};

/// The result of looking up an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The object does not exist.
    Absent,
    /// The object exists.
    Present(T),
    /// The object was not looked up, or could not be.
    #[default]
    Unknown,
}

impl<T> Lookup<T> {
    /// Applies `view` to the object if it exists.
    pub fn map<'s, U>(&'s self, view: impl FnOnce(&'s T) -> U) -> Lookup<U> {
        match self {
            Lookup::Absent => Lookup::Absent,
            Lookup::Present(object) => Lookup::Present(view(object)),
            Lookup::Unknown => Lookup::Unknown,
        }
    }
}

/// The state of a pod with respect to one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressInPod<'a> {
    /// The pod's Kubernetes node; empty if it is not scheduled.
    pub node: &'a str,
    /// True if the pod has the address, false if it has only other addresses. `None` if the pod's
    /// addresses are incomplete, so that it may have the address.
    pub has: Option<bool>,
    /// The way in which the pod's containers ended for good, if they did.
    pub ended: Option<EndedPod>,
}

/// The result of looking up a VMI (a KubeVirt VirtualMachineInstance) and the VirtualMachine of the
/// same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VmiLookup {
    /// The VirtualMachine or the VMI exists. A VMI counts without its VirtualMachine, because its
    /// launcher pod may run (KC-436).
    Present,
    /// Neither object exists.
    Absent,
    /// Neither kind is defined: KubeVirt is not installed.
    Undefined,
    /// The objects were not looked up, or could not be.
    #[default]
    Unknown,
}

/// The result of looking up several pods. If their results differ, the variant that is declared
/// last counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnerPodsLookup {
    /// No pod exists.
    Absent,
    /// A pod exists, and has ended or has only other addresses.
    Present,
    /// A pod was not looked up, or could not be.
    #[default]
    Unknown,
    /// A pod that has not ended has the address or may have it.
    HasAddress,
}

impl OwnerPodsLookup {
    /// Returns the result for several pods.
    pub fn of<'a>(pods: impl Iterator<Item = Lookup<AddressInPod<'a>>>) -> Self {
        let results = pods.map(|pod| match pod {
            Lookup::Absent => OwnerPodsLookup::Absent,
            Lookup::Unknown => OwnerPodsLookup::Unknown,
            Lookup::Present(pod) if pod.ended.is_none() && pod.has != Some(false) => {
                OwnerPodsLookup::HasAddress
            }
            Lookup::Present(_) => OwnerPodsLookup::Present,
        });
        results.max().unwrap_or(OwnerPodsLookup::Absent)
    }
}

/// The way in which a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndedPod {
    /// The containers ended.
    Finished,
    /// The node evicted the pod.
    Evicted,
}

/// Facts about the owner that an allocation names.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnerFacts<'a> {
    /// The pod.
    pub pod: Lookup<AddressInPod<'a>>,
    /// The VMI and its VirtualMachine.
    pub vmi: VmiLookup,
    /// The pods that an allocation for a VMI names as its owners.
    pub owner: OwnerPodsLookup,
    /// The Service.
    pub service: Lookup<()>,
    /// The Calico node of the tunnel.
    pub tunnel_node: Lookup<()>,
    /// The endpoint that has the address, for an allocation that names no owner. Garbage collection
    /// does not look it up.
    pub unnamed: Lookup<()>,
    /// The Kubernetes node that the allocation names, if known.
    pub node: Option<&'a str>,
}

/// The decision about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The address is in use, or may be.
    InUse(InUseReason),
    /// The facts show no owner that uses the address.
    Leaked(LeakReason),
}

/// The reason why an address counts as in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum InUseReason {
    /// A Windows host reserves the address.
    #[error("the host reserves the address")]
    Host,
    /// The tunnel's node exists.
    #[error("the node of its tunnel exists")]
    Tunnel,
    /// The Service exists.
    #[error("its service exists")]
    Service,
    /// The VMI or its VirtualMachine exists.
    #[error("its virtual machine exists")]
    Vmi,
    /// A pod has the address, or must be assumed to have it.
    #[error("its pod has the address")]
    Pod,
    /// The pod's addresses are incomplete. The text names the most frequent case.
    #[error("its pod has reported no address yet")]
    PodWithoutAddress,
    /// An endpoint has the address, although the allocation names no owner.
    #[error("an endpoint has the address")]
    Endpoint,
    /// The allocation names an owner of an unknown type, or no owner.
    #[error("its owner is unknown")]
    UnknownOwner,
    /// The node of the allocation is not a Kubernetes node.
    #[error("its node is not a Kubernetes node")]
    NotKubernetesNode,
    /// The node exists, although its deletion was the reason to confirm the leak.
    #[error("its node exists")]
    Node,
    /// The known facts do not suffice for a decision.
    #[error("its owner cannot be looked up")]
    NotLookedUp,
}

/// The reason why an address counts as leaked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum LeakReason {
    /// The pod does not exist.
    #[error("its pod is gone")]
    PodGone,
    /// The pod is on another node than the allocation, and is not known to use the address.
    #[error("its pod is on another node")]
    PodElsewhere,
    /// The pod has only other addresses.
    #[error("its pod has other addresses")]
    OtherAddresses,
    /// The pod's containers ended for good.
    #[error("its pod has finished")]
    PodFinished,
    /// The pod was evicted.
    #[error("its pod was evicted")]
    PodEvicted,
    /// Neither the VirtualMachine nor the VMI exists, and no pod is known to use the address.
    #[error("its virtual machine is gone")]
    VmiGone,
    /// KubeVirt is not installed, and no pod that the VMI's allocation names exists.
    #[error("KubeVirt is not installed")]
    NoKubeVirt,
    /// The Service does not exist, or is not of type LoadBalancer any more.
    #[error("its service is gone or is not of type LoadBalancer")]
    ServiceGone,
    /// The tunnel's node does not exist.
    #[error("its node is gone")]
    NodeGone,
    /// The allocation names no owner, and no endpoint has the address.
    #[error("no endpoint has the address")]
    NoEndpoint,
}

impl LeakReason {
    /// Returns true if the address may still belong to a second interface of the pod, which
    /// [`OwnerFacts`] does not show.
    pub fn may_be_second_interface(self) -> bool {
        match self {
            LeakReason::OtherAddresses => true,
            LeakReason::PodGone
            | LeakReason::PodElsewhere
            | LeakReason::PodFinished
            | LeakReason::PodEvicted => false,
            LeakReason::VmiGone | LeakReason::NoKubeVirt | LeakReason::ServiceGone => false,
            LeakReason::NodeGone | LeakReason::NoEndpoint => false,
        }
    }

    /// Returns true if the reason must hold without a break for the whole grace period.
    pub fn needs_full_grace(self) -> bool {
        match self {
            LeakReason::NoKubeVirt => true,
            LeakReason::PodGone
            | LeakReason::PodElsewhere
            | LeakReason::PodFinished
            | LeakReason::PodEvicted => false,
            LeakReason::OtherAddresses | LeakReason::VmiGone | LeakReason::ServiceGone => false,
            LeakReason::NodeGone | LeakReason::NoEndpoint => false,
        }
    }
}

/// Decides whether an address that was allocated for an owner of a `kind` is in use.
pub fn assess(kind: OwnerKind, facts: &OwnerFacts<'_>) -> Verdict {
    let by_existence = |lookup: Lookup<()>, in_use, leaked| match lookup {
        Lookup::Present(()) => Verdict::InUse(in_use),
        Lookup::Absent => Verdict::Leaked(leaked),
        Lookup::Unknown => Verdict::InUse(InUseReason::NotLookedUp),
    };
    match kind {
        OwnerKind::HostReserved => Verdict::InUse(InUseReason::Host),
        OwnerKind::Foreign => Verdict::InUse(InUseReason::UnknownOwner),
        OwnerKind::Tunnel => {
            by_existence(facts.tunnel_node, InUseReason::Tunnel, LeakReason::NodeGone)
        }
        OwnerKind::Service => {
            by_existence(facts.service, InUseReason::Service, LeakReason::ServiceGone)
        }
        OwnerKind::Vmi => assess_vmi(facts.vmi, facts.owner),
        OwnerKind::Pod => match facts.pod {
            Lookup::Present(pod) => assess_pod(&pod, facts.node),
            Lookup::Absent => Verdict::Leaked(LeakReason::PodGone),
            Lookup::Unknown => Verdict::InUse(InUseReason::NotLookedUp),
        },
        OwnerKind::Unnamed => match facts.unnamed {
            Lookup::Present(()) => Verdict::InUse(InUseReason::Endpoint),
            Lookup::Absent => Verdict::Leaked(LeakReason::NoEndpoint),
            Lookup::Unknown => Verdict::InUse(InUseReason::UnknownOwner),
        },
    }
}

/// Decides about a VMI's address. A launcher pod that may use the address keeps it even without the
/// VMI. Without KubeVirt, its controller does not delete launcher pods, so any owner pod that
/// exists keeps the address.
fn assess_vmi(vmi: VmiLookup, owner: OwnerPodsLookup) -> Verdict {
    match (vmi, owner) {
        (VmiLookup::Present, _) => Verdict::InUse(InUseReason::Vmi),
        (_, OwnerPodsLookup::HasAddress) => Verdict::InUse(InUseReason::Pod),
        (VmiLookup::Undefined, OwnerPodsLookup::Present) => Verdict::InUse(InUseReason::Pod),
        (VmiLookup::Unknown, _) | (_, OwnerPodsLookup::Unknown) => {
            Verdict::InUse(InUseReason::NotLookedUp)
        }
        (VmiLookup::Absent, OwnerPodsLookup::Present | OwnerPodsLookup::Absent) => {
            Verdict::Leaked(LeakReason::VmiGone)
        }
        (VmiLookup::Undefined, OwnerPodsLookup::Absent) => Verdict::Leaked(LeakReason::NoKubeVirt),
    }
}

/// Decides about a pod's address. A pod that has the address and has not ended keeps it on any
/// node, because the node in the allocation can be wrong. Upstream compares the nodes first
/// (KC-434).
fn assess_pod(pod: &AddressInPod<'_>, node: Option<&str>) -> Verdict {
    if pod.has == Some(true) && pod.ended.is_none() {
        return Verdict::InUse(InUseReason::Pod);
    }
    if node.is_some_and(|node| !pod.node.is_empty() && node != pod.node) {
        return Verdict::Leaked(LeakReason::PodElsewhere);
    }
    match (pod.has, pod.ended) {
        (None, _) => Verdict::InUse(InUseReason::PodWithoutAddress),
        (_, Some(EndedPod::Evicted)) => Verdict::Leaked(LeakReason::PodEvicted),
        (_, Some(EndedPod::Finished)) => Verdict::Leaked(LeakReason::PodFinished),
        (_, None) => Verdict::Leaked(LeakReason::OtherAddresses),
    }
}

#[cfg(test)]
mod tests;
