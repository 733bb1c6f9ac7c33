//! [`Suspect`]: a confirmed leak, which is checked again on fresh reads before its release.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::ipam::{
    Allocation, AllocationOwner, Block, HandleId, InUseReason, LeakReason, Lookup, OwnerFacts,
    OwnerKind, OwnerPodsLookup, PodState, ReleaseRequest, Verdict, VmiLookup, assess,
};
use crate::net::Cidr;

/// A confirmed leak, with the facts that a release must give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// The block.
    pub block: Cidr,
    /// The address.
    pub address: IpAddr,
    /// The address's handle.
    pub handle: HandleId,
    /// The allocation's sequence number.
    pub sequence: Option<u64>,
    /// The [`AllocationOwner::fingerprint`] of the allocation.
    pub fingerprint: u32,
    /// The owner for which the address was allocated.
    pub owner: SuspectOwner,
    /// The pods that a VMI's allocation names as owners, as namespace and name; empty for other
    /// owners.
    pub owners: Vec<(String, String)>,
    /// The Calico node that the allocation names.
    pub node: Option<String>,
    /// The name in Kubernetes of the node that the allocation names; `None` if it is not known.
    pub kubernetes_node: Option<String>,
    /// The pool of the block, for metrics.
    pub pool: Option<String>,
    /// The reason why the address counts as leaked.
    pub reason: LeakReason,
    /// True if the leak was confirmed without a grace period, because its node is deleted (KC-433).
    pub by_node: bool,
}

/// The kind and names of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectOwner {
    /// The kind of owner.
    pub kind: OwnerKind,
    /// Namespace and name, if the owner has both.
    pub names: Option<(String, String)>,
}

impl SuspectOwner {
    /// Returns the pod as `namespace/name`, if the owner is a pod.
    pub fn pod(&self) -> Option<String> {
        let (namespace, name) = self
            .names
            .as_ref()
            .filter(|_| self.kind == OwnerKind::Pod)?;
        Some(format!("{namespace}/{name}"))
    }
}

/// The objects to read before [`Suspect::recheck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequiredLookups<'a> {
    /// Namespace and name of a pod.
    pub pod: Option<(&'a str, &'a str)>,
    /// Namespace and name of a VMI and of its VirtualMachine.
    pub vmi: Option<(&'a str, &'a str)>,
    /// Namespaces and names of the pods that the allocation names as owners.
    pub owners: &'a [(String, String)],
    /// Namespace and name of a Service.
    pub service: Option<(&'a str, &'a str)>,
    /// The name of a Kubernetes node.
    pub kubernetes_node: Option<&'a str>,
    /// The name of a Calico node.
    pub calico_node: Option<&'a str>,
}

/// The results of fresh reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CurrentFacts<'a> {
    /// The pod.
    pub pod: Lookup<PodState<'a>>,
    /// The VMI and its VirtualMachine.
    pub vmi: VmiLookup,
    /// The pods that the allocation names as owners.
    pub owners: Vec<Lookup<PodState<'a>>>,
    /// The Service.
    pub service: Lookup<()>,
    /// The Kubernetes node.
    pub kubernetes_node: Lookup<()>,
    /// The Calico node.
    pub calico_node: Lookup<()>,
}

/// The final decision about a suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Release the address.
    Release(LeakReason),
    /// Keep the address.
    Keep(InUseReason),
}

impl Suspect {
    /// Returns the objects to read before [`Suspect::recheck`].
    pub fn required_lookups(&self) -> RequiredLookups<'_> {
        let names_of = |kind| {
            let names = self
                .owner
                .names
                .as_ref()
                .filter(|_| self.owner.kind == kind);
            names.map(|(namespace, name)| (namespace.as_str(), name.as_str()))
        };
        let is_tunnel = self.owner.kind == OwnerKind::Tunnel;
        let kubernetes_node = self.kubernetes_node.as_deref();
        RequiredLookups {
            pod: names_of(OwnerKind::Pod),
            vmi: names_of(OwnerKind::Vmi),
            owners: &self.owners,
            service: names_of(OwnerKind::Service),
            kubernetes_node: kubernetes_node.filter(|_| self.by_node),
            // A node whose Kubernetes name is not known is looked up by its Calico name (KC-431).
            calico_node: self
                .node
                .as_deref()
                .filter(|_| is_tunnel || (self.by_node && kubernetes_node.is_none())),
        }
    }

    /// Makes the final decision from the fresh facts.
    pub fn recheck(&self, facts: &CurrentFacts<'_>) -> Decision {
        let reason = match assess(self.owner.kind, &self.owner_facts(facts)) {
            Verdict::InUse(in_use_reason) => return Decision::Keep(in_use_reason),
            // Only the index can determine whether the address belongs to a second interface of the
            // pod, and the index had another reason.
            Verdict::Leaked(reason)
                if reason.may_be_second_interface() && !self.reason.may_be_second_interface() =>
            {
                return Decision::Keep(InUseReason::NotLookedUp);
            }
            Verdict::Leaked(reason) => reason,
        };
        let RequiredLookups {
            kubernetes_node,
            calico_node,
            ..
        } = self.required_lookups();
        let nodes = [
            kubernetes_node.map(|_| facts.kubernetes_node),
            calico_node.map(|_| facts.calico_node),
        ];
        for lookup in nodes.into_iter().flatten() {
            match lookup {
                Lookup::Absent => {}
                Lookup::Present(()) => return Decision::Keep(InUseReason::Node),
                Lookup::Unknown => return Decision::Keep(InUseReason::NotLookedUp),
            }
        }
        Decision::Release(reason)
    }

    fn owner_facts<'a>(&'a self, facts: &CurrentFacts<'a>) -> OwnerFacts<'a> {
        let look_up = |pod: &Lookup<PodState<'a>>| pod.map(|pod| pod.address_state(self.address));
        let are_complete = facts.owners.len() >= self.owners.len();
        OwnerFacts {
            pod: look_up(&facts.pod),
            vmi: facts.vmi,
            owner: match are_complete {
                true => OwnerPodsLookup::of(facts.owners.iter().map(look_up)),
                false => OwnerPodsLookup::Unknown,
            },
            service: facts.service,
            tunnel_node: facts.calico_node,
            unnamed: Lookup::Unknown,
            node: self.kubernetes_node.as_deref(),
        }
    }

    /// Returns the request to release the allocation with this handle and sequence number.
    pub fn request(&self) -> ReleaseRequest {
        ReleaseRequest {
            ip: self.address,
            handle: Some(self.handle.clone()),
            sequence: self.sequence,
        }
    }

    /// Returns true if `allocation` is still the suspect's allocation. A restarted VMI keeps its
    /// handle and sequence number; only the fingerprint shows the change (KC-422).
    fn is(&self, allocation: &Allocation<'_>) -> bool {
        let Some(attribute) = allocation.attribute.filter(|_| !allocation.is_cooling()) else {
            return false;
        };
        allocation.handle().as_ref() == Some(&self.handle)
            && allocation.sequence == self.sequence
            && AllocationOwner::fingerprint(attribute) == self.fingerprint
    }
}

/// The decisions of a garbage collection pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// The addresses to release, by block.
    pub blocks: BTreeMap<Cidr, Vec<Suspect>>,
    /// The addresses to keep, each with the reason.
    pub kept: Vec<(Suspect, InUseReason)>,
    /// The leaked addresses that stay because another address of the same handle stays (KC-445).
    pub spared: Vec<Suspect>,
}

/// Groups the addresses to release by block. Those of a handle are planned for release all together
/// or not at all.
pub fn plan(decided: impl IntoIterator<Item = (Suspect, Decision)>) -> Plan {
    let mut plan = Plan::default();
    let mut by_handle: BTreeMap<HandleId, Vec<(Suspect, Decision)>> = BTreeMap::new();
    for (suspect, decision) in decided {
        by_handle
            .entry(suspect.handle.clone())
            .or_default()
            .push((suspect, decision));
    }
    for suspects in by_handle.into_values() {
        let all_released = suspects
            .iter()
            .all(|(_, decision)| matches!(decision, Decision::Release(_)));
        for (suspect, decision) in suspects {
            match decision {
                Decision::Keep(in_use_reason) => plan.kept.push((suspect, in_use_reason)),
                Decision::Release(_) if !all_released => plan.spared.push(suspect),
                Decision::Release(reason) => {
                    plan.blocks
                        .entry(suspect.block)
                        .or_default()
                        .push(Suspect { reason, ..suspect });
                }
            }
        }
    }
    plan
}

/// Splits the suspects in `block` into release requests for unchanged allocations and suspects that
/// changed. In [`Block::release`], a single request that does not match would refuse all others
/// (IPAM-144).
pub fn still_leaked<'s>(
    block: &Block,
    suspects: &'s [Suspect],
) -> (Vec<ReleaseRequest>, Vec<&'s Suspect>) {
    let same = |suspect: &Suspect| {
        block
            .allocation(suspect.address)
            .is_some_and(|held| suspect.is(&held))
    };
    let (same, changed): (Vec<_>, Vec<_>) = suspects.iter().partition(|suspect| same(suspect));
    (same.into_iter().map(Suspect::request).collect(), changed)
}
