//! The values of the address metrics. They are updated with each change of the index, because counting them again for
//! every scrape would read the whole index.

use std::collections::{BTreeMap, HashMap};

use super::index::Index;
use super::rows::BlockRow;
use super::suspect::Suspect;
use super::table::{NONE, Row};
use crate::ipam::ClaimKind;

/// The counts for a pool on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) in_use: i64,
    pub(super) borrowed: i64,
    pub(super) candidates: i64,
    pub(super) unknown_owner: i64,
    pub(super) blocks: i64,
}

/// The counts by pool and node, with [`NONE`] for no pool and for no node.
pub(super) type CountsByPlace = HashMap<(Row, Row), Counts>;

#[derive(Debug, Default)]
pub(super) struct Numbers {
    counts: CountsByPlace,
    reclaimed: BTreeMap<(Option<String>, Option<String>), u64>,
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
    fn change(&mut self, pool: Row, node: Row, change: impl FnOnce(&mut Counts)) {
        let counts = self.counts.entry((pool, node)).or_default();
        change(counts);
        if *counts == Counts::default() {
            self.counts.remove(&(pool, node));
        }
    }

    pub(super) fn counts(&self) -> &CountsByPlace {
        &self.counts
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

    pub(super) fn bytes(&self) -> usize {
        self.counts.capacity() * (size_of::<((Row, Row), Counts)>() + 1) + self.reclaimed.len() * 160
    }
}

impl Index {
    /// Returns the gauges in no particular order.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        self.numbers.counts.iter().map(|(&(pool, node), counts)| {
            let Counts { in_use, borrowed, candidates, unknown_owner, blocks } = *counts;
            let node = (node != NONE).then(|| self.node_name(node));
            Sample { pool: self.pool_name(pool), node, in_use, borrowed, candidates, unknown_owner, blocks }
        })
    }

    /// Returns the counters, by pool and node.
    pub fn reclaimed(&self) -> impl Iterator<Item = Reclaimed<'_>> {
        self.numbers.reclaimed.iter().map(|((pool, node), addresses)| Reclaimed {
            pool: pool.as_deref(),
            node: node.as_deref(),
            addresses: *addresses,
        })
    }

    /// Adds `by` to the counts for an address. Between adding and subtracting an address, its block and node must not
    /// change.
    pub(super) fn count(&mut self, row: Row, by: i64) {
        let Some(tracked) = self.tracked.get(row) else { return };
        let Some(&BlockRow { pool, owner, .. }) = self.blocks.get(tracked.block) else { return };
        let node = tracked.named_node();
        let borrowed = node != NONE && owner.node() != node;
        let unknown = matches!(tracked.kind, ClaimKind::Foreign | ClaimKind::Unnamed);
        self.numbers.change(pool, node, |counts| {
            counts.in_use += by;
            counts.borrowed += by * i64::from(borrowed);
            counts.unknown_owner += by * i64::from(unknown);
        });
    }

    /// Adds `by` to the count of leaks for an address.
    pub(super) fn count_candidate(&mut self, row: Row, by: i64) {
        let Some(tracked) = self.tracked.get(row) else { return };
        let pool = self.blocks.get(tracked.block).map_or(NONE, |block| block.pool);
        self.numbers.change(pool, tracked.named_node(), |counts| counts.candidates += by);
    }

    pub(super) fn count_block(&mut self, row: Row, by: i64) {
        let Some(&BlockRow { pool, owner, .. }) = self.blocks.get(row) else { return };
        self.numbers.change(pool, owner.node(), |counts| counts.blocks += by);
    }
}
