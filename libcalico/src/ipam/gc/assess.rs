//! [`Index::assess`]: decides whether an address is in use, based on the index.

use std::net::IpAddr;

use super::index::{Index, VmiAvailability};
use super::rows::{AddressRow, CalicoNode, CompactHandle, OwnerState};
use super::table::RowId;
use crate::ipam::{
    AddressInPod, InUseReason, Lookup, OwnerFacts, OwnerKind, OwnerPodsLookup, Verdict, VmiLookup,
};

impl Index {
    pub(super) fn assess(&self, row: RowId) -> Verdict {
        let Some(tracked) = self.addresses.get(row) else {
            return Verdict::InUse(InUseReason::NotLookedUp);
        };
        if self
            .nodes
            .get(tracked.node)
            .is_some_and(|node| node.calico == CalicoNode::Foreign)
        {
            return Verdict::InUse(InUseReason::NotKubernetesNode);
        }
        let Some(address) = self.address_of(tracked) else {
            return Verdict::InUse(InUseReason::NotLookedUp);
        };
        let verdict = crate::ipam::assess(tracked.kind, &self.facts(row, tracked, address));
        let may_be_second =
            matches!(verdict, Verdict::Leaked(reason) if reason.may_be_second_interface());
        if may_be_second && self.is_second_interface(tracked) {
            Verdict::InUse(InUseReason::Pod)
        } else {
            verdict
        }
    }

    fn facts<'a>(&'a self, row: RowId, tracked: &'a AddressRow, address: IpAddr) -> OwnerFacts<'a> {
        let state = self.owners.get(tracked.owner).map(|owner| &owner.state);
        let look_up = |pod: &'a OwnerState| match pod {
            OwnerState::Absent => Lookup::Absent,
            OwnerState::Pod {
                node,
                addresses,
                ended,
                ..
            } => Lookup::Present(AddressInPod {
                node: self.node_name(*node),
                has: addresses.contain(address),
                ended: *ended,
            }),
            OwnerState::Vmi { .. } | OwnerState::Service => Lookup::Unknown,
        };
        let owner = |(namespace, name): &(Box<str>, Box<str>)| {
            let pod = self.find_owner(OwnerKind::Pod, namespace, name);
            pod.and_then(|pod| self.owners.get(pod))
                .map_or(Lookup::Absent, |pod| look_up(&pod.state))
        };
        OwnerFacts {
            pod: state.map_or(Lookup::Unknown, look_up),
            vmi: match (self.settings.vmis, state) {
                // Entries from an earlier watch are out of date.
                (VmiAvailability::Undefined, _) => VmiLookup::Undefined,
                (_, Some(OwnerState::Vmi { .. })) => VmiLookup::Present,
                (VmiAvailability::Watched, Some(OwnerState::Absent)) => VmiLookup::Absent,
                _ => VmiLookup::Unknown,
            },
            owner: OwnerPodsLookup::of(self.owner_pods.get(&row).into_iter().flatten().map(owner)),
            service: match state {
                Some(OwnerState::Absent) if self.settings.services => Lookup::Absent,
                Some(OwnerState::Service) => Lookup::Present(()),
                _ => Lookup::Unknown,
            },
            tunnel_node: match self.nodes.get(tracked.named_node()).map(|node| node.calico) {
                Some(CalicoNode::Absent) => Lookup::Absent,
                Some(CalicoNode::Foreign | CalicoNode::Kubernetes(_)) => Lookup::Present(()),
                None => Lookup::Unknown,
            },
            unnamed: Lookup::Unknown,
            node: self.kubernetes_name(tracked.named_node()),
        }
    }

    /// Returns true if the status of the pod has an address of the container on another network.
    /// Addresses of other interfaces may appear only in annotations, which a tenant can remove.
    fn is_second_interface(&self, tracked: &AddressRow) -> bool {
        let Some(owner) = self.owners.get(tracked.owner) else {
            return false;
        };
        let OwnerState::Pod { addresses, .. } = &owner.state else {
            return false;
        };
        let Some(container) = self.container_of(tracked) else {
            return false;
        };
        let mut at = owner.first_address;
        while let Some(other) = self.addresses.get(at) {
            let is_other_network =
                other.handle != tracked.handle && self.container_of(other) == Some(container);
            let address = self.address_of(other).filter(|_| is_other_network);
            if address
                .is_some_and(|address| addresses.in_status().any(|reported| reported == address))
            {
                return true;
            }
            at = other.next_of_owner;
        }
        false
    }

    fn container_of(&self, tracked: &AddressRow) -> Option<&[u8; 32]> {
        match &self.handles.get(tracked.handle)?.id {
            CompactHandle::Container { id, .. } => Some(id),
            CompactHandle::Other(_) => None,
        }
    }
}
