//! [`Index::judge`]: decides whether an address is in use, based on the pods, VMIs and Services in the index.

use std::net::IpAddr;

use super::index::{Index, Machines};
use super::rows::{CalicoNode, CompactHandle, SubjectState, Tracked};
use super::table::Row;
use crate::ipam::{
    AddressInPod, ClaimKind, Evidence, HolderFacts, Holding, Keeper, MachineSight, OwnerSight, Sight, holding,
};

impl Index {
    /// Returns the decision about the address of a row, with its reason.
    pub(super) fn judge(&self, row: Row) -> Holding {
        let Some(tracked) = self.tracked.get(row) else { return Holding::Held(Keeper::Unseen) };
        if self.nodes.get(tracked.node).is_some_and(|node| node.calico == CalicoNode::Foreign) {
            return Holding::Held(Keeper::ForeignNode);
        }
        let Some(address) = self.address_of(tracked) else { return Holding::Held(Keeper::Unseen) };
        match holding(tracked.kind, &self.facts(row, tracked, address)) {
            Holding::Leaked(Evidence::OtherAddresses) if self.is_second_interface(tracked) => {
                Holding::Held(Keeper::Pod)
            }
            holding => holding,
        }
    }

    /// Returns the facts in the index about the owner of an address.
    fn facts<'a>(&'a self, row: Row, tracked: &'a Tracked, address: IpAddr) -> HolderFacts<'a> {
        let state = self.subjects.get(tracked.subject).map(|subject| &subject.state);
        let sight = |pod: &'a SubjectState| match pod {
            SubjectState::Absent => Sight::Absent,
            SubjectState::Pod { node, addresses, ended, .. } => Sight::Present(AddressInPod {
                node: self.node_name(*node),
                has: addresses.contain(address),
                ended: *ended,
            }),
            SubjectState::Machine { .. } | SubjectState::Service => Sight::Unknown,
        };
        let owner = |(namespace, name): &(Box<str>, Box<str>)| {
            let pod = self.find_subject(ClaimKind::Pod, namespace, name);
            pod.and_then(|pod| self.subjects.get(pod)).map_or(Sight::Absent, |pod| sight(&pod.state))
        };
        HolderFacts {
            pod: state.map_or(Sight::Unknown, sight),
            machine: match (self.settings.machines, state) {
                // While KubeVirt is not defined, the entries from an earlier watch are out of date.
                (Machines::Undefined, _) => MachineSight::Undefined,
                (_, Some(SubjectState::Machine { .. })) => MachineSight::Present,
                (Machines::Watched, Some(SubjectState::Absent)) => MachineSight::Absent,
                _ => MachineSight::Unknown,
            },
            owner: OwnerSight::of(self.owners.get(&row).into_iter().flatten().map(owner)),
            service: match state {
                Some(SubjectState::Absent) if self.settings.services => Sight::Absent,
                Some(SubjectState::Service) => Sight::Present(()),
                _ => Sight::Unknown,
            },
            tunnel_node: match self.nodes.get(tracked.named_node()).map(|node| node.calico) {
                Some(CalicoNode::Absent) => Sight::Absent,
                Some(CalicoNode::Foreign | CalicoNode::Kubernetes(_)) => Sight::Present(()),
                None => Sight::Unknown,
            },
            unnamed: Sight::Unknown,
            node: self.kubernetes_name(tracked.named_node()),
        }
    }

    /// Returns true if the address's container has another address, on another network, that kubelet reports. Kubelet
    /// reports one interface of a pod. The addresses of other interfaces appear only in annotations, which a tenant
    /// can remove at any time.
    fn is_second_interface(&self, tracked: &Tracked) -> bool {
        let Some(subject) = self.subjects.get(tracked.subject) else { return false };
        let SubjectState::Pod { addresses, .. } = &subject.state else { return false };
        let Some(container) = self.container_of(tracked) else { return false };
        let mut at = subject.tracked;
        while let Some(other) = self.tracked.get(at) {
            let is_other_network = other.handle != tracked.handle && self.container_of(other) == Some(container);
            let address = self.address_of(other).filter(|_| is_other_network);
            if address.is_some_and(|address| addresses.of_kubelet().any(|reported| reported == address)) {
                return true;
            }
            at = other.subject_next;
        }
        false
    }

    fn container_of(&self, tracked: &Tracked) -> Option<&[u8; 32]> {
        match &self.handles.get(tracked.handle)?.id {
            CompactHandle::Container { id, .. } => Some(id),
            CompactHandle::Other(_) => None,
        }
    }
}
