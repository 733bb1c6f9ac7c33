//! The phases for addresses whose cooldown has ended, for empty blocks, and for deleted nodes.

use std::time::Duration;

use allocation::affinity::{release_empty_block, release_host_affinities};
use allocation::error::IpamError;
use allocation::release::release_batch;
use futures::{StreamExt, stream};
use libcalico::ipam::gc::{DeletedNode, ExcessBlock, GcSettings};
use libcalico::ipam::{AffinityOwner, Block, IpamConfig, IpamConfigKey};
use libcalico::store::{Store, StoreError};
use os::clock::Clock;

use super::GcPass;
use crate::gc::world::{PassGate, World};

/// Time for which the allocator's settings are cached while addresses are in cooldown.
const CONFIG_IS_FRESH: Duration = Duration::from_secs(30);

impl<W: World> GcPass<W> {
    /// Puts addresses whose cooldown has ended back into the free lists of their blocks (KC-450).
    pub(super) async fn release_cooled_addresses(&mut self) {
        if self
            .inputs
            .cache
            .index()
            .next_cooldown_end(self.inputs.clock.now())
            .is_none()
        {
            return;
        }
        self.read_config(CONFIG_IS_FRESH).await;
        let blocks = self
            .inputs
            .cache
            .index()
            .cooled_blocks(self.inputs.clock.now(), self.now());
        for block in &blocks {
            tracing::info!(
                %block, reason = "the cooldown is over", "releasing addresses after their cooldown",
            );
        }
        let clock = self.inputs.clock.restarted();
        let none = |_: &Block| Vec::new();
        match release_batch(
            &*self.inputs.calico,
            &clock,
            &*self.inputs.gate,
            &blocks,
            none,
            self.parallel(),
        )
        .await
        {
            Ok(outcome) => {
                for (block, error) in outcome.failed {
                    self.inputs.metrics.count_failure("rested");
                    tracing::warn!(
                        %block, %error,
                        "cannot release addresses after their cooldown; trying again later",
                    );
                }
            }
            Err(error) => {
                self.inputs.metrics.count_failure("rested");
                tracing::warn!(
                    %error, "cannot release addresses after their cooldown; trying again later",
                );
            }
        }
    }

    /// Reads the allocator's settings if they are older than `fresh_for`.
    pub(super) async fn read_config(&mut self, fresh_for: Duration) {
        let now = self.now();
        if self
            .config_read_at
            .is_some_and(|read| now < read + fresh_for)
        {
            return;
        }
        let config = match self.inputs.calico.get::<IpamConfig>(&IpamConfigKey).await {
            Ok(entry) => entry.value,
            Err(StoreError::NotFound { .. }) => IpamConfig::absent(),
            Err(error) => {
                return tracing::warn!(
                    %error, "cannot read the settings of IPAM, so those in use stay",
                );
            }
        };
        self.config_read_at = Some(now);
        let mut index = self.inputs.cache.index();
        let settings = GcSettings {
            cooldown: config.ip_cooldown_seconds,
            ..*index.settings()
        };
        index.set_settings(settings);
        self.rooms.config = Some(config);
    }

    /// Releases blocks that have been empty for the grace period, and whose nodes have another
    /// block of the same family (KC-455) or whose pools have another block size.
    pub(super) async fn release_excess_blocks(&self) {
        let excess = self.inputs.cache.index().excess_blocks(self.now());
        let releases = excess
            .into_iter()
            .map(|block| self.release_excess_block(block));
        stream::iter(releases)
            .buffer_unordered(self.parallel())
            .collect::<()>()
            .await;
    }

    async fn release_excess_block(
        &self,
        ExcessBlock {
            block,
            node,
            reason,
        }: ExcessBlock,
    ) {
        if !self.inputs.gate.is_open() {
            return;
        }
        let owner = AffinityOwner::Host(node);
        tracing::info!(%block, %owner, %reason, "releasing an empty block");
        match release_empty_block(
            &*self.inputs.calico,
            &self.inputs.clock.restarted(),
            &*self.inputs.gate,
            &owner,
            block,
        )
        .await
        {
            Ok(()) => {
                tracing::info!(%block, %owner, %reason, "released an empty block");
                // Updates the index at once, so that the next pass keeps the last block of the
                // node.
                self.inputs.cache.index().remove_block(&block);
            }
            Err(IpamError::BlockNotEmpty(_)) => {
                tracing::debug!(%block, %owner, "kept a block: the block is in use again")
            }
            Err(IpamError::Stopped) => {
                tracing::info!(
                    %block, %owner,
                    "stopped releasing an empty block: this replica may not write, or stops",
                )
            }
            Err(error) => {
                self.inputs.metrics.count_failure("blocks");
                tracing::warn!(
                    %block, %owner, %error, "cannot release an empty block; trying again later",
                );
            }
        }
    }

    /// Releases the blocks of each deleted node once no allocation names the node.
    pub(super) async fn release_deleted_nodes(&self) {
        let gone = self.inputs.cache.index().nodes_to_release(self.now());
        let released = gone.into_iter().map(|node| self.release_deleted_node(node));
        stream::iter(released)
            .buffer_unordered(self.parallel())
            .collect::<()>()
            .await;
    }

    async fn release_deleted_node(&self, node: DeletedNode) {
        let released = self.release_node(&node).await;
        let now = self.now();
        let mut index = self.inputs.cache.index();
        if released {
            index.remove_released_node(&node.calico);
        } else {
            index.postpone_node(&node.calico, now);
        }
    }

    async fn release_node(&self, node: &DeletedNode) -> bool {
        let name = &node.calico;
        let (calico, kubernetes) = self.reader().node(node).await;
        if !node.is_gone(calico, kubernetes) {
            tracing::info!(
                node = name,
                "keeping the blocks of a node: it exists, or cannot be read"
            );
            return false;
        }
        if !self.inputs.gate.is_open() {
            return false;
        }
        let owner = AffinityOwner::Host(name.clone());
        tracing::info!(
            node = name,
            reason = "the node is deleted",
            "releasing the blocks of a node"
        );
        match release_host_affinities(
            &*self.inputs.calico,
            &self.inputs.clock.restarted(),
            &*self.inputs.gate,
            &owner,
            true,
        )
        .await
        {
            Ok(outcome) => {
                for block in &outcome.released {
                    tracing::info!(%block, node = name, "released a block of a deleted node");
                }
                for (block, reason) in &outcome.kept {
                    tracing::debug!(%block, %reason, node = name, "kept a block of a deleted node");
                }
                // A block with addresses and a lost race are no failures. One line is enough: the
                // other blocks of the node mostly fail by the same error.
                let is_failure = |error: &IpamError| {
                    !matches!(error, IpamError::BlockNotEmpty(_) | IpamError::Contention)
                };
                if let Some((block, error)) =
                    outcome.kept.iter().find(|(_, error)| is_failure(error))
                {
                    self.inputs.metrics.count_failure("nodes");
                    tracing::warn!(
                        %block, node = name, %error, kept = outcome.kept.len(),
                        "cannot release a block of a deleted node; trying again later"
                    );
                }
                outcome.kept.is_empty()
            }
            Err(IpamError::Stopped) => {
                tracing::info!(
                    node = name,
                    reason = "this replica may not write, or stops",
                    "stopped releasing the blocks of a deleted node"
                );
                false
            }
            Err(error) => {
                self.inputs.metrics.count_failure("nodes");
                tracing::warn!(
                    node = name, %error,
                    "cannot release all blocks of a deleted node; trying again later",
                );
                false
            }
        }
    }

    /// Logs the blocks that would be released.
    pub(super) fn report_blocks(&self) {
        let now = self.now();
        let mut index = self.inputs.cache.index();
        for ExcessBlock {
            block,
            node,
            reason,
        } in index.excess_blocks(now)
        {
            tracing::info!(
                %block, node, %reason,
                "would release an empty block; GC_MODE=report keeps the block",
            );
        }
        for node in index.nodes_to_release(now) {
            tracing::info!(
                node = node.calico,
                "would release the blocks of a deleted node; GC_MODE=report keeps them"
            );
            index.postpone_node(&node.calico, now);
        }
    }
}
