//! [`Suspect`]: an address that nobody has according to the caches, to be looked at once more before it goes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::ipam::{
    Allocation, Block, Claim, ClaimKind, Evidence, HandleId, HolderFacts, Holding, Keeper, MachineSight, OwnerSight,
    PodFacts, PodSight, ReleaseRequest, Sight, holding,
};
use crate::net::Cidr;

/// A confirmed leak. It names what a release must name: handle and sequence number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// The block.
    pub block: Cidr,
    /// The address.
    pub address: IpAddr,
    /// Its handle.
    pub handle: HandleId,
    /// Its sequence number.
    pub sequence: Option<u64>,
    /// [`Claim::fingerprint`] of what is noted with it.
    pub fingerprint: u32,
    /// For whom it was allocated.
    pub holder: Holder,
    /// Namespaces and names of the pods that are noted as owners of a virtual machine's address.
    pub owners: Vec<(String, String)>,
    /// The Calico node it is filed under.
    pub node: Option<String>,
    /// That node's name in Kubernetes, as far as it is known.
    pub kubernetes_node: Option<String>,
    /// The pool of its block, for metrics.
    pub pool: Option<String>,
    /// Why nobody has it.
    pub evidence: Evidence,
    /// It was confirmed without grace, because its node is gone (KC-433).
    pub by_node: bool,
}

/// A [`Claim`] that owns its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// What it is.
    pub kind: ClaimKind,
    /// Namespace and name, where it has them.
    pub names: Option<(String, String)>,
}

impl Holder {
    /// The pod as `namespace/name`, if it is one.
    pub fn pod(&self) -> Option<String> {
        let (namespace, name) = self.names.as_ref().filter(|_| self.kind == ClaimKind::Pod)?;
        Some(format!("{namespace}/{name}"))
    }
}

/// What to read from the API before a [`Suspect`] is judged for the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Questions<'a> {
    /// Namespace and name of a pod.
    pub pod: Option<(&'a str, &'a str)>,
    /// Namespace and name of a virtual machine, and of its instance.
    pub machine: Option<(&'a str, &'a str)>,
    /// Namespaces and names of the pods that are noted as its owners.
    pub owners: &'a [(String, String)],
    /// Namespace and name of a Service.
    pub service: Option<(&'a str, &'a str)>,
    /// A node of Kubernetes.
    pub kubernetes_node: Option<&'a str>,
    /// A node of Calico.
    pub calico_node: Option<&'a str>,
}

/// The answers, each read fresh. What was not asked for, or could not be read, is [`Sight::Unknown`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveFacts<'a> {
    /// The pod.
    pub pod: Sight<PodFacts<'a>>,
    /// The virtual machine.
    pub machine: MachineSight,
    /// The pods that are noted as its owners.
    pub owners: Vec<Sight<PodFacts<'a>>>,
    /// The Service.
    pub service: Sight<()>,
    /// The node of Kubernetes; NotReady is there.
    pub kubernetes_node: Sight<()>,
    /// The node of Calico.
    pub calico_node: Sight<()>,
}

impl Default for LiveFacts<'_> {
    fn default() -> Self {
        LiveFacts {
            pod: Sight::Unknown,
            machine: MachineSight::Unknown,
            owners: Vec::new(),
            service: Sight::Unknown,
            kubernetes_node: Sight::Unknown,
            calico_node: Sight::Unknown,
        }
    }
}

/// What the last look says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nobody has it.
    Release(Evidence),
    /// It stays; tell the index with [`super::Index::kept`].
    Keep(Keeper),
}

impl Suspect {
    /// What to read before [`Suspect::revalidate`].
    pub fn questions(&self) -> Questions<'_> {
        let named = |kind| {
            let names = self.holder.names.as_ref().filter(|_| self.holder.kind == kind);
            names.map(|(namespace, name)| (namespace.as_str(), name.as_str()))
        };
        let tunnel = self.holder.kind == ClaimKind::Tunnel;
        let kubernetes_node = self.kubernetes_node.as_deref();
        Questions {
            pod: named(ClaimKind::Pod),
            machine: named(ClaimKind::Machine),
            owners: &self.owners,
            service: named(ClaimKind::Service),
            kubernetes_node: kubernetes_node.filter(|_| self.by_node),
            // A node whose name in Kubernetes is not known is looked up where it would be found (KC-431).
            calico_node: self.node.as_deref().filter(|_| tunnel || (self.by_node && kubernetes_node.is_none())),
        }
    }

    /// Judges for the last time, by the rules of [`holding()`] and on fresh facts alone.
    pub fn revalidate(&self, facts: &LiveFacts<'_>) -> Decision {
        let evidence = match holding(self.holder.kind, &Live { suspect: self, facts }) {
            Holding::Held(keeper) => return Decision::Keep(keeper),
            // The pod came back since. Only the index tells whether the address is that of its second interface.
            Holding::Leaked(Evidence::OtherAddresses) if self.evidence != Evidence::OtherAddresses => {
                return Decision::Keep(Keeper::Unseen);
            }
            Holding::Leaked(evidence) => evidence,
        };
        let asked = self.questions();
        let node = [asked.kubernetes_node.map(|_| facts.kubernetes_node), asked.calico_node.map(|_| facts.calico_node)];
        for sight in node.into_iter().flatten() {
            match sight {
                Sight::Absent => {}
                Sight::Present(()) => return Decision::Keep(Keeper::Node),
                Sight::Unknown => return Decision::Keep(Keeper::Unseen),
            }
        }
        Decision::Release(evidence)
    }

    /// What releases it, and only it.
    pub fn request(&self) -> ReleaseRequest {
        ReleaseRequest { ip: self.address, handle: Some(self.handle.clone()), sequence: self.sequence }
    }

    /// Whether `held` is still the allocation that was judged. Handle and sequence number alone do not tell: a virtual
    /// machine that comes back takes its address over with both (B-07).
    fn is(&self, held: &Allocation<'_>) -> bool {
        let Some(attribute) = held.attribute.filter(|_| !held.is_cooling()) else { return false };
        held.handle().as_ref() == Some(&self.handle)
            && held.sequence == self.sequence
            && Claim::fingerprint(attribute) == self.fingerprint
    }
}

struct Live<'a> {
    suspect: &'a Suspect,
    facts: &'a LiveFacts<'a>,
}

impl<'a> Live<'a> {
    fn sight(&self, pod: &Sight<PodFacts<'a>>) -> Sight<PodSight<'a>> {
        match pod {
            Sight::Present(pod) => Sight::Present(pod.sight(self.suspect.address)),
            Sight::Absent => Sight::Absent,
            Sight::Unknown => Sight::Unknown,
        }
    }
}

impl HolderFacts for Live<'_> {
    fn pod(&self) -> Sight<PodSight<'_>> {
        self.sight(&self.facts.pod)
    }

    fn machine(&self) -> MachineSight {
        self.facts.machine
    }

    fn owner(&self) -> OwnerSight {
        if self.facts.owners.len() < self.suspect.owners.len() {
            return OwnerSight::Unknown;
        }
        OwnerSight::of(self.facts.owners.iter().map(|pod| self.sight(pod)))
    }

    fn service(&self) -> Sight<()> {
        self.facts.service
    }

    fn tunnel_node(&self) -> Sight<()> {
        self.facts.calico_node
    }

    fn unnamed(&self) -> Sight<()> {
        Sight::Unknown
    }

    fn node(&self) -> Option<&str> {
        self.suspect.kubernetes_node.as_deref()
    }
}

/// What one pass does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to release, per block: one write each.
    pub blocks: BTreeMap<Cidr, Vec<Suspect>>,
    /// What stays, and why.
    pub kept: Vec<(Suspect, Keeper)>,
    /// Nobody's, but another address of the same handle stays (KC-445).
    pub spared: Vec<Suspect>,
}

/// Groups what was decided by block. A handle goes as a whole or not at all.
pub fn plan(decided: impl IntoIterator<Item = (Suspect, Decision)>) -> Plan {
    let mut plan = Plan::default();
    let mut by_handle: BTreeMap<HandleId, Vec<(Suspect, Decision)>> = BTreeMap::new();
    for (suspect, decision) in decided {
        by_handle.entry(suspect.handle.clone()).or_default().push((suspect, decision));
    }
    for suspects in by_handle.into_values() {
        let whole = suspects.iter().all(|(_, decision)| matches!(decision, Decision::Release(_)));
        for (suspect, decision) in suspects {
            match decision {
                Decision::Keep(keeper) => plan.kept.push((suspect, keeper)),
                Decision::Release(_) if !whole => plan.spared.push(suspect),
                Decision::Release(evidence) => {
                    plan.blocks.entry(suspect.block).or_default().push(Suspect { evidence, ..suspect });
                }
            }
        }
    }
    plan
}

/// Of what is to be released from `block`, the requests for what is still as it was judged, and what changed since. To
/// be asked again whenever the block was read again: one request that does not match would refuse all others
/// (IPAM-144).
pub fn still_leaked<'s>(block: &Block, suspects: &'s [Suspect]) -> (Vec<ReleaseRequest>, Vec<&'s Suspect>) {
    let same = |suspect: &Suspect| block.allocation(suspect.address).is_some_and(|held| suspect.is(&held));
    let (same, changed): (Vec<_>, Vec<_>) = suspects.iter().partition(|suspect| same(suspect));
    (same.into_iter().map(Suspect::request).collect(), changed)
}
