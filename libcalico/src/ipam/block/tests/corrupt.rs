//! Tests of blocks whose parts contradict each other.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 8;

/// Damage to one part of a block.
#[derive(Debug, Clone)]
enum Damage {
    /// The ordinal is in the free list once more.
    Listed(usize),
    /// The ordinal is removed from the free list.
    Unlisted(usize),
    /// The allocation of the ordinal is lost.
    Forgotten(usize),
    /// The allocation of the ordinal refers to a missing attribute.
    Dangling(usize, usize),
    /// The list of slots has this length.
    Slots(usize),
    /// The attribute has an unreadable release time.
    ReleaseTime(usize),
    /// A sequence number is stored under this key.
    Sequence(String),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let ordinal = 0..CAPACITY + 2;
    let damage = prop_oneof![
        4 => ordinal.clone().prop_map(Damage::Listed),
        1 => ordinal.clone().prop_map(Damage::Unlisted),
        1 => ordinal.clone().prop_map(Damage::Forgotten),
        1 => (ordinal.clone(), 0..12usize)
            .prop_map(|(ordinal, index)| Damage::Dangling(ordinal, index)),
        1 => ordinal.clone().prop_map(Damage::Slots),
        1 => ordinal.prop_map(Damage::ReleaseTime),
        1 => "[0-9x]{1,2}".prop_map(Damage::Sequence),
    ];
    prop::collection::vec(damage, 0..5)
}

/// `holders` has the number of the handle of each allocated address. The handle `resting` is
/// cooling down.
fn block(holders: &[usize], resting: Option<usize>, damages: &[Damage]) -> Block {
    let mut block = Block::new(cidr("10.0.0.0/29"), &host("node1"), NOW).unwrap();
    for holder in holders {
        assign(&mut block, 1, &format!("h{holder}"));
    }
    if let Some(holder) = resting {
        block
            .release_by_handle(&HandleId::new(format!("h{holder}")), None, 30, NOW)
            .unwrap();
    }
    for damage in damages {
        match damage.clone() {
            Damage::Listed(ordinal) => block.unallocated.push(ordinal),
            Damage::Unlisted(ordinal) => block.unallocated.retain(|listed| *listed != ordinal),
            Damage::Forgotten(ordinal) => block
                .allocations
                .iter_mut()
                .skip(ordinal)
                .take(1)
                .for_each(|slot| *slot = None),
            Damage::Dangling(ordinal, index) => {
                block
                    .allocations
                    .iter_mut()
                    .skip(ordinal)
                    .take(1)
                    .for_each(|slot| *slot = Some(index));
            }
            Damage::Slots(length) => block.allocations.resize(length, None),
            Damage::ReleaseTime(index) => {
                let damaged = block.attributes.iter_mut().skip(index).take(1);
                damaged.for_each(|attribute| attribute.released_at = Some("soon".into()));
            }
            Damage::Sequence(ordinal) => {
                _ = block.sequence_number_for_allocation.insert(ordinal, 7)
            }
        }
    }
    block
}

fn slot_attributes(block: &Block) -> Vec<Option<Option<&Attribute>>> {
    block
        .allocations
        .iter()
        .map(|slot| slot.map(|index| block.attributes.get(index)))
        .collect()
}

fn without(list: &[usize], ordinals: &[usize]) -> Vec<usize> {
    let mut listed = BTreeSet::new();
    list.iter()
        .copied()
        .filter(|ordinal| !ordinals.contains(ordinal) && listed.insert(*ordinal))
        .collect()
}

proptest! {
    #[test]
    fn release_from_a_corrupt_block_frees_only_the_handles_ordinals(
        holders in prop::collection::vec(0..4usize, 0..CAPACITY),
        resting in prop::option::of(0..4usize),
        damages in damages(),
        cooldown in prop_oneof![Just(0i64), Just(30)],
    ) {
        let before = block(&holders, resting, &damages);
        let handle = HandleId::new("h1");
        let own: Vec<usize> = before.ordinals_of(&handle).collect();
        let mut after = before.clone();
        prop_assert_eq!(
            after.release_from_corrupt(&handle, cooldown, NOW),
            own.len()
        );
        prop_assert_eq!(after.addresses_of(&handle), Vec::<IpAddr>::new());
        for (ordinal, (was, is)) in slot_attributes(&before)
            .into_iter()
            .zip(slot_attributes(&after))
            .enumerate()
        {
            match (own.contains(&ordinal), cooldown) {
                (false, _) => prop_assert_eq!(is, was, "ordinal {} is another's", ordinal),
                (true, 0) => prop_assert_eq!(is, None),
                (true, _) => prop_assert!(
                    is.flatten()
                        .is_some_and(|attribute| attribute.released_at.is_some())
                ),
            }
        }
        let others = without(&before.unallocated, &own);
        let freed: Vec<usize> = own
            .iter()
            .copied()
            .filter(|o| cooldown == 0 && *o < CAPACITY)
            .collect();
        prop_assert_eq!(&after.unallocated, &[others, freed].concat());
        let kept = |block: &Block| {
            let mut numbers = block.sequence_number_for_allocation.clone();
            numbers.retain(|text, _| !own.iter().any(|ordinal| ordinal.to_string() == *text));
            numbers
        };
        prop_assert_eq!(kept(&after), kept(&before));
        prop_assert!(
            before.verify().is_err() || after.verify().is_ok(),
            "a consistent block stays consistent",
        );
    }

    /// Shows SEC-62.
    #[test]
    fn repaired_block_is_consistent_and_retains_owned_or_reported_addresses(
        holders in prop::collection::vec(0..4usize, 0..CAPACITY),
        resting in prop::option::of(0..4usize),
        damages in damages(),
        reported in prop::collection::btree_set(0..CAPACITY, 0..4),
    ) {
        let before = block(&holders, resting, &damages);
        let reporter = |ip: IpAddr| {
            let ordinal = before.ordinal_of(ip).unwrap();
            let attributes = || attributes(&format!("reporter{ordinal}"));
            reported.contains(&ordinal).then(|| RecordedOwner {
                handle: None,
                attributes: attributes(),
            })
        };
        let Some(Repaired {
            block: after,
            freed,
            kept,
        }) = before.repaired(NOW, reporter)
        else {
            prop_assert!(before.verify().is_ok() && before.lost_ordinal().is_none());
            return Ok(());
        };
        prop_assert_eq!(after.verify(), Ok(()));
        prop_assert_eq!(after.lost_ordinal(), None);
        prop_assert_eq!(after.repaired(NOW, reporter), None);
        for ordinal in 0..CAPACITY {
            let was = slot_attributes(&before)
                .get(ordinal)
                .copied()
                .flatten()
                .flatten();
            let is = slot_attributes(&after)[ordinal].flatten();
            let ip = after.address_at(ordinal).unwrap();
            match (was, is) {
                (Some(was), Some(is)) if was.released_at.as_deref() != Some("soon") => {
                    prop_assert_eq!(was, is)
                }
                (Some(_), Some(is)) => {
                    prop_assert!(reported.contains(&ordinal) || is.released_at.is_some())
                }
                (None, Some(is)) => {
                    prop_assert_eq!(&is.active_owner, &attributes(&format!("reporter{ordinal}")));
                    prop_assert!(kept.contains(&ip));
                }
                (None, None) => prop_assert!(!reported.contains(&ordinal)),
                (Some(_), None) => prop_assert!(false, "ordinal {} was held", ordinal),
            }
            prop_assert!(!(freed.contains(&ip) && (reported.contains(&ordinal) || is.is_some())));
        }
        let free: Vec<usize> = without(&before.unallocated, &[]);
        let remaining: Vec<usize> = free
            .into_iter()
            .filter(|ordinal| after.unallocated.contains(ordinal))
            .collect();
        prop_assert!(after.unallocated.starts_with(&remaining));
    }

    /// Shows SEC-62 and SEC-92.
    #[test]
    fn inconsistent_block_assigns_no_address(
        holders in prop::collection::vec(0..4usize, 0..CAPACITY),
        damages in damages(),
    ) {
        let damaged = block(&holders, None, &damages);
        prop_assume!(damaged.verify().is_err());
        let mut block = damaged.clone();
        let handle = HandleId::new("new");
        let (requester, attributes) = (host("node1"), attributes("new"));
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes,
            requester: &requester,
            check_affinity: false,
        };
        prop_assert!(block.assign(1, &request, &Reservations::none()).is_err());
        for ip in (0..CAPACITY).filter_map(|ordinal| damaged.address_at(ordinal)) {
            prop_assert!(block.assign_address(ip, &request).is_err());
        }
        prop_assert!(!block.is_empty());
        prop_assert_eq!(block, damaged);
    }
}
