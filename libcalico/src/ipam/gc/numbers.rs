//! The numbers behind the metrics (KC-153..KC-156), kept while things change and never counted anew (B-44).

use std::collections::{BTreeMap, HashMap};

use super::index::Index;
use super::rows::BlockRow;
use super::suspect::Suspect;
use super::table::{NONE, Row};
use crate::ipam::ClaimKind;

/// Counts of one pool on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) in_use: i64,
    pub(super) borrowed: i64,
    pub(super) candidates: i64,
    pub(super) unknown_owner: i64,
    pub(super) blocks: i64,
}

/// By pool and node; [`NONE`] for no pool, and for no node.
pub(super) type CountsByPlace = HashMap<(Row, Row), Counts>;

#[derive(Debug, Default)]
pub(super) struct Numbers {
    counts: CountsByPlace,
    reclaimed: BTreeMap<(Option<String>, Option<String>), u64>,
}

/// The gauges of one pool on one node. Those that are all zero are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample<'a> {
    /// The pool; none for blocks that are in no pool, `no_ippool`.
    pub pool: Option<&'a str>,
    /// The node; none for addresses that name none, `unknown_node`, and for blocks of no node, `no_affinity`.
    pub node: Option<&'a str>,
    /// `ipam_allocations_in_use`: addresses with a handle, those that rest excluded.
    pub in_use: i64,
    /// `ipam_allocations_borrowed`: of these, those in a block that is not the node's.
    pub borrowed: i64,
    /// `ipam_allocations_gc_candidates`: candidates and confirmed leaks.
    pub candidates: i64,
    /// Addresses of which nobody can tell whether they are held (B-08).
    pub unknown_owner: i64,
    /// `ipam_blocks`.
    pub blocks: i64,
}

/// `ipam_allocations_gc_reclamations` of one pool on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reclaimed<'a> {
    /// The pool, as in [`Sample`].
    pub pool: Option<&'a str>,
    /// The node, as in [`Sample`].
    pub node: Option<&'a str>,
    /// Addresses released.
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

    /// A pool is gone, and its counters with it (KC-154).
    pub(super) fn forget_pool(&mut self, pool: &str) {
        self.reclaimed.retain(|(name, _), _| name.as_deref() != Some(pool));
    }

    /// A node's affinities are released, and its counters with them (KC-155).
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
    /// The gauges, in no order.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        self.numbers.counts.iter().map(|(&(pool, node), counts)| {
            let Counts { in_use, borrowed, candidates, unknown_owner, blocks } = *counts;
            let node = (node != NONE).then(|| self.node_name(node));
            Sample { pool: self.pool_name(pool), node, in_use, borrowed, candidates, unknown_owner, blocks }
        })
    }

    /// The counters, by pool and node.
    pub fn reclaimed(&self) -> impl Iterator<Item = Reclaimed<'_>> {
        self.numbers.reclaimed.iter().map(|((pool, node), addresses)| Reclaimed {
            pool: pool.as_deref(),
            node: node.as_deref(),
            addresses: *addresses,
        })
    }

    /// Counts an address, or no longer. Neither its block nor its node may change in between.
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

    /// Counts an address as a leak, or no longer.
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
