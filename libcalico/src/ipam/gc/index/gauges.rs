//! Methods of [`Index`] that count addresses and blocks for metrics.

use super::super::gauges::{AddressCounts, Reclaimed, Sample};
use super::super::rows::BlockRow;
use super::super::table::{NONE, RowId};
use super::Index;
use crate::ipam::OwnerKind;

impl Index {
    /// Returns the gauges in no particular order.
    pub fn samples(&self) -> impl Iterator<Item = Sample<'_>> {
        self.gauges.counts.iter().map(|(&(pool, node), counts)| {
            let AddressCounts {
                in_use,
                borrowed,
                candidates,
                unknown_owner,
                blocks,
            } = *counts;
            let node = (node != NONE).then(|| self.node_name(node));
            Sample {
                pool: self.pool_name(pool),
                node,
                in_use,
                borrowed,
                candidates,
                unknown_owner,
                blocks,
            }
        })
    }

    /// Returns the counters of released addresses, by pool and node.
    pub fn reclaimed(&self) -> impl Iterator<Item = Reclaimed<'_>> {
        let counters = self
            .gauges
            .reclaimed
            .iter()
            .map(|((pool, node), n)| (pool.as_deref(), node.as_deref(), *n));
        counters.map(|(pool, node, addresses)| Reclaimed {
            pool,
            node,
            addresses,
        })
    }

    /// Adds `by`, 1 or -1, to the counts for an address. Until the address is subtracted, its node,
    /// and the pool and owner of its block, must not change.
    pub(in crate::ipam::gc) fn count(&mut self, row: RowId, by: i64) {
        let Some(tracked) = self.addresses.get(row) else {
            return;
        };
        let Some(&BlockRow { pool, owner, .. }) = self.blocks.get(tracked.block) else {
            return;
        };
        let node = tracked.named_node();
        let is_borrowed = node != NONE && owner != node;
        let is_unknown = matches!(tracked.kind, OwnerKind::Foreign | OwnerKind::Unnamed);
        self.gauges.change(pool, node, |counts| {
            counts.in_use += by;
            counts.borrowed += by * i64::from(is_borrowed);
            counts.unknown_owner += by * i64::from(is_unknown);
        });
    }

    pub(in crate::ipam::gc) fn count_candidate(&mut self, row: RowId, by: i64) {
        let Some(tracked) = self.addresses.get(row) else {
            return;
        };
        let pool = self
            .blocks
            .get(tracked.block)
            .map_or(NONE, |block| block.pool);
        self.gauges
            .change(pool, tracked.named_node(), |counts| counts.candidates += by);
    }

    pub(in crate::ipam::gc) fn count_block(&mut self, row: RowId, by: i64) {
        let Some(&BlockRow { pool, owner, .. }) = self.blocks.get(row) else {
            return;
        };
        self.gauges
            .change(pool, owner, |counts| counts.blocks += by);
        self.rooms.has_changed = true;
    }
}
