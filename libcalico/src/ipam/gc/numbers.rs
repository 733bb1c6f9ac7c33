//! The values of the address metrics. They are updated with each change of the index, because counting them again for
//! every scrape would read the whole index.

use std::collections::{BTreeMap, HashMap};

use super::suspect::Suspect;
use super::table::Row;

/// The counts for a pool on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) in_use: i64,
    pub(super) borrowed: i64,
    pub(super) candidates: i64,
    pub(super) unknown_owner: i64,
    pub(super) blocks: i64,
}

/// The counts by pool and node, with `NONE` for no pool and for no node.
pub(super) type CountsByPlace = HashMap<(Row, Row), Counts>;

#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) counts: CountsByPlace,
    pub(super) reclaimed: BTreeMap<(Option<String>, Option<String>), u64>,
}

/// The gauges for a pool on a node. Samples with only zeros are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// The pool; `None` for blocks in no pool, which upstream labels `no_ippool`.
    pub pool: Option<&'a str>,
    /// The node; `None` for addresses that name no node, labeled `unknown_node`, and for blocks of no node, labeled
    /// `no_affinity`.
    pub node: Option<&'a str>,
    /// `ipam_allocations_in_use`: addresses with a handle, without those that are cooling down.
    pub in_use: i64,
    /// `ipam_allocations_borrowed`: those of the addresses in use that are in another node's block.
    pub borrowed: i64,
    /// `ipam_allocations_gc_candidates`: candidates and confirmed leaks.
    pub candidates: i64,
    /// Addresses whose owner is of a kind that cannot be looked up. They are never collected.
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

impl Numbers {
    pub(super) fn change(&mut self, pool: Row, node: Row, change: impl FnOnce(&mut Counts)) {
        let counts = self.counts.entry((pool, node)).or_default();
        change(counts);
        if *counts == Counts::default() {
            self.counts.remove(&(pool, node));
        }
    }

    /// Removes the counters of a deleted pool (KC-154).
    pub(super) fn forget_pool(&mut self, pool: &str) {
        self.reclaimed.retain(|(name, _), _| name.as_deref() != Some(pool));
    }

    /// Removes the counters of a node whose affinities were released (KC-155).
    pub(super) fn forget_node(&mut self, node: &str) {
        self.reclaimed.retain(|(_, name), _| name.as_deref() != Some(node));
    }

    pub(super) fn reclaimed(&mut self, suspect: &Suspect) {
        *self.reclaimed.entry((suspect.pool.clone(), suspect.node.clone())).or_default() += 1;
    }
}
