//! [`BlockSummary`]: the fields of a block that a search for room reads.
//!
//! A search may read every block of the cluster, so it skips the owners' attributes and keeps a few
//! bytes per block. A block to be changed is read again completely.

use serde::Deserialize;
use time::{Duration, OffsetDateTime};

use super::block::null_as_empty;
use super::{AffinityOwner, Attribute, Block, Reservations};
use crate::api::{Unknown, parse_time};
use crate::net::Cidr;

/// The time for which a newly claimed block cannot be reclaimed, even if it is empty (IPAM-116).
pub const RECLAIM_AFTER: Duration = Duration::seconds(60);

/// A block in a listing of all blocks. If a block occurs twice, the last occurrence counts: an
/// interrupted response is requested again.
#[derive(Debug)]
pub enum ListedBlock {
    /// The range of a block whose fields are unreadable or were not requested.
    Range(Cidr),
    /// A block with the fields that a search for room reads.
    Block(BlockSummary),
}

impl ListedBlock {
    /// Returns the block's range.
    pub fn cidr(&self) -> Cidr {
        match self {
            ListedBlock::Range(cidr) => *cidr,
            ListedBlock::Block(summary) => summary.cidr(),
        }
    }
}

/// A block without the attributes of its allocations' owners.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Fields")]
pub struct BlockSummary(Block);

/// The facts about a block that a search for room keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The number of addresses that are not in the block's free list.
    pub in_use: u32,
    /// True if an address is free and not reserved.
    pub has_free: bool,
    /// True if the block belongs to the searching owner.
    pub is_own: bool,
    /// True if the block is empty, and the searching owner may take it from another owner.
    pub may_be_reclaimed: bool,
}

impl Room {
    /// Returns the facts for a block that gives no address.
    pub fn none(in_use: u32) -> Self {
        Room {
            in_use,
            has_free: false,
            is_own: false,
            may_be_reclaimed: false,
        }
    }

    /// Returns the room in `block` for `owner` at `now`. Addresses whose cooldown has elapsed must
    /// already be in the free list.
    pub fn of(
        block: &Block,
        reservations: &Reservations,
        owner: &AffinityOwner,
        now: OffsetDateTime,
    ) -> Self {
        let in_use = block
            .capacity()
            .saturating_sub(block.unallocated.len() as u128);
        let block_owner = block.owner();
        let is_own = block_owner.as_ref() == Some(owner);
        Room {
            in_use: u32::try_from(in_use).unwrap_or(u32::MAX),
            has_free: block.free(reservations) > 0,
            is_own,
            may_be_reclaimed: block_owner.is_some()
                && !is_own
                && block.is_empty()
                && may_be_reclaimed(block, now),
        }
    }
}

impl BlockSummary {
    /// Returns the block's range.
    pub fn cidr(&self) -> Cidr {
        self.0.cidr
    }

    /// Returns true for an empty block that is marked for deletion: its deleter was interrupted, or
    /// is about to delete the block.
    pub fn awaits_deletion(&self) -> bool {
        self.0.awaits_deletion()
    }

    /// Returns the room for `owner` at `now`, after freeing the addresses whose cooldown has
    /// elapsed; `None` for a block that must not be used.
    pub fn room(
        self,
        cooldown_seconds: i64,
        reservations: &Reservations,
        owner: &AffinityOwner,
        now: OffsetDateTime,
    ) -> Option<Room> {
        let BlockSummary(mut block) = self;
        if block.deleted || block.collect_garbage(cooldown_seconds, now).is_err() {
            return None;
        }
        Some(Room::of(&block, reservations, owner, now))
    }
}

/// Returns true if the block was claimed long enough ago, or has no claim time. A claim time a
/// minute or more in the future comes from a wrong clock and does not protect the block; in
/// upstream it does (IPAM-116).
pub(super) fn may_be_reclaimed(block: &Block, now: OffsetDateTime) -> bool {
    let Some(claimed) = &block.affinity_claim_time else {
        return true;
    };
    parse_time(claimed).is_some_and(|claimed| (now - claimed).abs() >= RECLAIM_AFTER)
}

/// The fields, with the names of the stored value or of the custom resource's `spec`.
#[derive(Deserialize)]
struct Fields {
    cidr: Cidr,
    #[serde(default)]
    affinity: Option<String>,
    #[serde(default, alias = "affinityClaimTime")]
    affinity_claim_time: Option<String>,
    #[serde(default, deserialize_with = "null_as_empty")]
    allocations: Vec<Option<usize>>,
    #[serde(default, deserialize_with = "null_as_empty")]
    unallocated: Vec<usize>,
    #[serde(default, deserialize_with = "null_as_empty")]
    attributes: Vec<AttributeFields>,
    #[serde(default)]
    deleted: bool,
}

/// The handle identifies addresses that Windows reserves, the release time those that are cooling
/// down.
#[derive(Deserialize)]
struct AttributeFields {
    #[serde(default)]
    handle_id: Option<String>,
    #[serde(default, rename = "releasedAt")]
    released_at: Option<String>,
}

impl From<Fields> for BlockSummary {
    fn from(fields: Fields) -> Self {
        let attributes = fields.attributes.into_iter().map(
            |AttributeFields {
                 handle_id,
                 released_at,
             }| Attribute {
                handle_id,
                released_at,
                ..Attribute::default()
            },
        );
        BlockSummary(Block {
            cidr: fields.cidr,
            affinity: fields.affinity,
            affinity_claim_time: fields.affinity_claim_time,
            allocations: fields.allocations,
            unallocated: fields.unallocated,
            attributes: attributes.collect(),
            sequence_number: 0,
            sequence_number_for_allocation: Default::default(),
            deleted: fields.deleted,
            unknown: Unknown::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-08-22 01:02:03 UTC);

    fn host(name: &str) -> AffinityOwner {
        AffinityOwner::Host(name.into())
    }

    /// Returns a block of `node2` with four free addresses, with `fields` changed.
    fn stored(fields: Value) -> Value {
        let mut block = json!({
            "cidr": "10.0.0.0/30", "affinity": "host:node2",
            "affinity_claim_time": "2026-08-22T00:00:00Z",
            "allocations": [null, null, null, null], "unallocated": [0, 1, 2, 3], "attributes": [],
            "sequenceNumber": 1_787_380_400_123_456_789_u64, "sequenceNumberForAllocation": {},
            "deleted": false,
        });
        block
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        block
    }

    fn taken(attribute: Value) -> Value {
        stored(json!({"allocations": [0, 0, 0, 0], "unallocated": [], "attributes": [attribute]}))
    }

    fn room(value: &Value, cooldown: i64, reserved: &[&str]) -> Option<Room> {
        let reservations = Reservations::new(reserved.iter().map(|range| range.parse().unwrap()));
        let summary: BlockSummary = serde_json::from_slice(value.to_string().as_bytes()).unwrap();
        assert_eq!(summary.cidr(), "10.0.0.0/30".parse().unwrap());
        summary.room(cooldown, &reservations, &host("node1"), NOW)
    }

    #[test]
    fn room_is_the_same_in_a_stored_value_and_in_a_custom_resource() {
        let held = json!({
            "handle_id": "net.a", "secondary": {"pod": "a", "releasedAt": "no time"}, "future": [1],
        });
        let released = json!({"releasedAt": "2026-08-22T01:02:00Z"});
        let reserved = &["10.0.0.0/30"][..];
        for (value, cooldown, reserved, (in_use, has_free, is_own, may_be_reclaimed)) in [
            (stored(json!({})), 0, &[][..], (0, true, false, true)),
            (stored(json!({})), 0, reserved, (0, false, false, true)),
            (
                stored(json!({"affinity": "host:node1"})),
                0,
                &[],
                (0, true, true, false),
            ),
            (
                stored(json!({"affinity": null})),
                0,
                &[],
                (0, true, false, false),
            ),
            (
                stored(json!({"affinity_claim_time": "2026-08-22T01:02:00Z"})),
                0,
                &[],
                (0, true, false, false),
            ),
            (taken(held), 0, &[], (4, false, false, false)),
            (
                taken(json!({"handle_id": "Windows-reserved-ipam-handle"})),
                0,
                &[],
                (4, false, false, true),
            ),
            (taken(released.clone()), 2, &[], (0, true, false, true)),
            (taken(released), 60, &[], (4, false, false, false)),
        ] {
            let expected = Room {
                in_use,
                has_free,
                is_own,
                may_be_reclaimed,
            };
            assert_eq!(room(&value, cooldown, reserved), Some(expected), "{value}");
            let mut spec = value;
            let fields = spec.as_object_mut().unwrap();
            let time = fields.remove("affinity_claim_time").unwrap();
            fields.insert("affinityClaimTime".into(), time);
            fields.retain(|_, value| !value.is_null());
            assert_eq!(room(&spec, cooldown, reserved), Some(expected), "{spec}");
        }
    }

    #[test]
    fn only_an_empty_marked_block_awaits_deletion() {
        let awaits = |value: Value| {
            serde_json::from_value::<BlockSummary>(value)
                .unwrap()
                .awaits_deletion()
        };
        assert!(awaits(stored(json!({"deleted": true}))) && !awaits(stored(json!({}))));
        let mut used = taken(json!({"handle_id": "net.a"}));
        used["deleted"] = true.into();
        assert!(!awaits(used));
    }

    #[test]
    fn survey_finds_no_room_in_a_deleted_or_inconsistent_block() {
        for fields in [
            json!({"deleted": true}),
            json!({"allocations": [0]}),
            json!({"unallocated": [7]}),
        ] {
            assert_eq!(room(&stored(fields), 0, &[]), None);
        }
        assert!(
            serde_json::from_slice::<BlockSummary>(
                br#"{"cidr": "10.0.0.0/30", "unallocated": "all"}"#
            )
            .is_err()
        );
    }
}
