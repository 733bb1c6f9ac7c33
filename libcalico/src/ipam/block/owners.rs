//! The two owners of a VMI's address: the pod in which the VMI runs, and the pod to which it is
//! migrated.

use std::collections::BTreeMap;
use std::net::IpAddr;

use time::OffsetDateTime;

use super::{Attribute, Block};
use crate::ipam::HandleId;
use crate::ipam::audit::owner_time;

/// The position of an owner in an attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerSlot {
    /// The owner that uses the address now.
    Active,
    /// The owner that will use the address after a live migration.
    Alternate,
}

impl Attribute {
    /// Returns the attributes of an owner; empty if there is none.
    pub fn owner(&self, slot: OwnerSlot) -> &BTreeMap<String, String> {
        if slot == OwnerSlot::Active {
            &self.active_owner
        } else {
            &self.alternate_owner
        }
    }

    fn owner_mut(&mut self, slot: OwnerSlot) -> &mut BTreeMap<String, String> {
        if slot == OwnerSlot::Active {
            &mut self.active_owner
        } else {
            &mut self.alternate_owner
        }
    }

    /// Returns true if the pod is one of the two owners.
    pub fn names_pod(&self, namespace: &str, pod: &str) -> bool {
        self.slot_of(namespace, pod).is_some()
    }

    /// Returns true if the attribute names no owner and has no unknown field, as Calico before v3
    /// wrote it.
    pub fn has_no_attributes(&self) -> bool {
        self.active_owner.is_empty() && self.alternate_owner.is_empty() && self.unknown.is_empty()
    }

    /// Returns the slot of a pod, the active one first.
    fn slot_of(&self, namespace: &str, pod: &str) -> Option<OwnerSlot> {
        [OwnerSlot::Active, OwnerSlot::Alternate]
            .into_iter()
            .find(|&slot| names(self.owner(slot), namespace, pod))
    }
}

fn names(owner: &BTreeMap<String, String>, namespace: &str, pod: &str) -> bool {
    owner.get("pod").is_some_and(|name| name == pod)
        && owner.get("namespace").is_some_and(|ns| ns == namespace)
}

impl Block {
    /// Stores `owner` in `slot` for every address of `handle`, and returns these addresses.
    pub fn set_owner(
        &mut self,
        handle: &HandleId,
        slot: OwnerSlot,
        owner: &BTreeMap<String, String>,
    ) -> Vec<IpAddr> {
        for index in self.attributes_of(handle) {
            self.attributes[index].owner_mut(slot).clone_from(owner);
        }
        self.addresses_of(handle)
    }

    /// Returns the owner in `slot` of the first attribute of `handle`; `None` if the handle has no
    /// address here.
    pub fn owner_of(
        &self,
        handle: &HandleId,
        slot: OwnerSlot,
    ) -> Option<&BTreeMap<String, String>> {
        let first = *self.attributes_of(handle).first()?;
        Some(self.attributes[first].owner(slot))
    }

    /// Replaces a pod by `before`, which may be empty, wherever the pod is the owner in `slot` of
    /// an address of `handle`. Returns true if it was an owner.
    pub fn restore_owner(
        &mut self,
        handle: &HandleId,
        slot: OwnerSlot,
        [namespace, pod]: [&str; 2],
        before: &BTreeMap<String, String>,
    ) -> bool {
        let mut restored = false;
        for index in self.attributes_of(handle) {
            let owner = self.attributes[index].owner_mut(slot);
            if names(owner, namespace, pod) {
                owner.clone_from(before);
                restored = true;
            }
        }
        restored
    }

    /// Clears, for each address of `handle`, the first slot in which the pod is the owner. Returns
    /// true if a slot was cleared. With `before`, keeps an owner that was set at that time or
    /// later, by the ADD of a later sandbox.
    pub fn clear_owner(
        &mut self,
        handle: &HandleId,
        namespace: &str,
        pod: &str,
        before: Option<OffsetDateTime>,
    ) -> bool {
        let is_newer = |owner: &BTreeMap<String, String>| {
            before.is_some_and(|limit| owner_time(owner).is_some_and(|since| since >= limit))
        };
        let mut cleared = false;
        for index in self.attributes_of(handle) {
            let attribute = &mut self.attributes[index];
            if let Some(slot) = attribute
                .slot_of(namespace, pod)
                .filter(|slot| !is_newer(attribute.owner(*slot)))
            {
                attribute.owner_mut(slot).clear();
                cleared = true;
            }
        }
        cleared
    }

    /// Returns true if any address of `handle` has an owner.
    pub fn has_owner(&self, handle: &HandleId) -> bool {
        let has_owner =
            |held: &Attribute| !held.active_owner.is_empty() || !held.alternate_owner.is_empty();
        self.attributes_of(handle)
            .into_iter()
            .any(|index| has_owner(&self.attributes[index]))
    }

    /// Returns the indices of the attributes of `handle`, each once.
    pub(super) fn attributes_of(&self, handle: &HandleId) -> Vec<usize> {
        let mut indices: Vec<_> = self
            .ordinals_of(handle)
            .filter_map(|ordinal| self.allocations[ordinal])
            .collect();
        indices.sort_unstable();
        indices.dedup();
        indices
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::ipam::{AffinityOwner, BlockRequest, Reservations};

    const SOURCE: [&str; 2] = ["ns", "virt-launcher-vm1-a"];
    const TARGET: [&str; 2] = ["ns", "virt-launcher-vm1-b"];

    fn owner([namespace, pod]: [&str; 2]) -> BTreeMap<String, String> {
        [("namespace", namespace), ("pod", pod), ("node", "n1")]
            .map(|(k, v)| (k.into(), v.into()))
            .into()
    }

    fn block() -> (Block, HandleId, HandleId) {
        let (vmi, other) = (HandleId::new("net.vmi.ns.vm1"), HandleId::new("net.c1"));
        let requester = AffinityOwner::Host("n1".into());
        let mut block = Block::new(
            "10.0.0.0/30".parse().unwrap(),
            &requester,
            time::OffsetDateTime::UNIX_EPOCH,
        )
        .unwrap();
        for handle in [&vmi, &other] {
            let request = BlockRequest {
                handle: Some(handle),
                attributes: &owner(SOURCE),
                requester: &requester,
                check_affinity: false,
            };
            block.assign(1, &request, &Reservations::default()).unwrap();
        }
        (block, vmi, other)
    }

    fn owners(block: &Block, handle: &HandleId) -> [BTreeMap<String, String>; 2] {
        let attribute = &block.attributes[block.attributes_of(handle)[0]];
        [
            attribute.active_owner.clone(),
            attribute.alternate_owner.clone(),
        ]
    }

    /// Follows upstream's test of a live migration.
    #[test]
    fn block_owners_follow_a_live_migration() {
        let (mut block, vmi, other) = block();
        let untouched = owners(&block, &other);
        let none = BTreeMap::new();
        let addresses = block.set_owner(&vmi, OwnerSlot::Alternate, &owner(TARGET));
        assert_eq!(addresses, ["10.0.0.0".parse::<IpAddr>().unwrap()]);
        assert_eq!(owners(&block, &vmi), [owner(SOURCE), owner(TARGET)]);
        assert!(block.clear_owner(&vmi, SOURCE[0], SOURCE[1], None));
        assert_eq!(owners(&block, &vmi), [none.clone(), owner(TARGET)]);
        assert!(block.has_owner(&vmi));
        assert!(
            !block.clear_owner(&vmi, SOURCE[0], SOURCE[1], None),
            "the owner is already removed"
        );
        assert!(block.clear_owner(&vmi, TARGET[0], TARGET[1], None));
        assert_eq!(owners(&block, &vmi), [none.clone(), none]);
        assert!(!block.has_owner(&vmi));
        assert_eq!(owners(&block, &other), untouched);
        assert!(!block.clear_owner(&vmi, "elsewhere", SOURCE[1], None));
    }

    /// The ADD of a later sandbox of the pod has become the owner while the DEL of the earlier one
    /// was deferred.
    #[test]
    fn owner_that_is_newer_than_the_limit_is_kept() {
        let (mut block, vmi, _) = block();
        let mut later = owner(SOURCE);
        later.insert("timestamp".into(), "2026-11-28 20:00:00.5 +0000 UTC".into());
        block.set_owner(&vmi, OwnerSlot::Active, &later);
        for limit in [
            datetime!(2026-11-28 20:00 UTC),
            datetime!(2026-11-28 20:00:00.5 UTC),
        ] {
            assert!(!block.clear_owner(&vmi, SOURCE[0], SOURCE[1], Some(limit)));
            assert_eq!(owners(&block, &vmi)[0], later);
        }
        assert!(block.clear_owner(
            &vmi,
            SOURCE[0],
            SOURCE[1],
            Some(datetime!(2026-11-28 20:00:01 UTC))
        ));
        block.set_owner(&vmi, OwnerSlot::Active, &owner(SOURCE));
        let limit = Some(datetime!(2026-11-28 20:00 UTC));
        assert!(
            block.clear_owner(&vmi, SOURCE[0], SOURCE[1], limit),
            "an owner without a time"
        );
    }

    #[test]
    fn new_active_owner_replaces_any_previous_owner() {
        let (mut block, vmi, _) = block();
        block.set_owner(&vmi, OwnerSlot::Alternate, &owner(TARGET));
        block.set_owner(
            &vmi,
            OwnerSlot::Active,
            &owner(["ns", "virt-launcher-vm1-c"]),
        );
        assert_eq!(
            owners(&block, &vmi),
            [owner(["ns", "virt-launcher-vm1-c"]), owner(TARGET)]
        );
        assert_eq!(
            block.set_owner(&HandleId::new("nobody"), OwnerSlot::Active, &owner(SOURCE)),
            Vec::<IpAddr>::new()
        );
    }

    #[test]
    fn allocation_with_an_invalid_attribute_index_is_skipped() {
        let (mut block, vmi, _) = block();
        block.allocations[3] = Some(9);
        block.set_owner(&vmi, OwnerSlot::Active, &owner(TARGET));
        assert_eq!(owners(&block, &vmi)[0], owner(TARGET));
    }
}
