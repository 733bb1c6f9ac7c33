//! The values of the address metrics, updated with each change of the index: a scrape must not read
//! the whole index.

use std::collections::{BTreeMap, HashMap};

use super::suspect::Suspect;
use super::table::RowId;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AddressCounts {
    pub(super) in_use: i64,
    pub(super) borrowed: i64,
    pub(super) candidates: i64,
    pub(super) unknown_owner: i64,
    pub(super) blocks: i64,
}

/// The counts by pool and node, either of which may be `NONE`.
pub(super) type CountsByPoolAndNode = HashMap<(RowId, RowId), AddressCounts>;

#[derive(Debug, Default)]
pub(super) struct Gauges {
    pub(super) counts: CountsByPoolAndNode,
    pub(super) reclaimed: BTreeMap<(Option<String>, Option<String>), u64>,
}

/// The gauges for a pool on a node, unless all are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// The pool; `None` for blocks in no pool, which upstream labels `no_ippool`.
    pub pool: Option<&'a str>,
    /// The node; `None` for addresses that name no node and for blocks of no node.
    pub node: Option<&'a str>,
    /// `ipam_allocations_in_use`: addresses with a handle, without those that are cooling down.
    pub in_use: i64,
    /// `ipam_allocations_borrowed`: addresses in use in a block that does not belong to the node
    /// that they name.
    pub borrowed: i64,
    /// `ipam_allocations_gc_candidates`: candidates and confirmed leaks.
    pub candidates: i64,
    /// Addresses without a known type of owner, which are never collected.
    pub unknown_owner: i64,
    /// `ipam_blocks`.
    pub blocks: i64,
}

/// `ipam_allocations_gc_reclamations` for a pool on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimed<'a> {
    /// The pool, as in [`Sample`].
    pub pool: Option<&'a str>,
    /// The node, as in [`Sample`].
    pub node: Option<&'a str>,
    /// The number of released addresses.
    pub addresses: u64,
}

impl Gauges {
    pub(super) fn change(
        &mut self,
        pool: RowId,
        node: RowId,
        change: impl FnOnce(&mut AddressCounts),
    ) {
        let counts = self.counts.entry((pool, node)).or_default();
        change(counts);
        if *counts == AddressCounts::default() {
            self.counts.remove(&(pool, node));
        }
    }

    /// Removes the counters of a deleted pool (KC-154).
    pub(super) fn remove_pool(&mut self, pool: &str) {
        self.reclaimed
            .retain(|(name, _), _| name.as_deref() != Some(pool));
    }

    /// Removes the counts of a node whose affinities were released (KC-155).
    pub(super) fn remove_node(&mut self, node: &str) {
        self.reclaimed
            .retain(|(_, name), _| name.as_deref() != Some(node));
    }

    pub(super) fn reclaimed(&mut self, suspect: &Suspect) {
        *self
            .reclaimed
            .entry((suspect.pool.clone(), suspect.node.clone()))
            .or_default() += 1;
    }
}
