//! Collects cooldowns, and gives up empty blocks and the blocks of deleted nodes.

use libcalico::ipam::AffinityOwner;
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};
use time::Duration;

use super::Collector;
use crate::upstream::UpstreamError;
use crate::upstream::affinity::Conditions;
use crate::upstream::client::Client;

impl Collector {
    /// Returns addresses whose cooldown has elapsed to the free lists. Writes the block of the
    /// cache, without a read and without a retry (KC-450).
    pub(super) async fn collect_cold_blocks<S: Store>(
        &mut self,
        client: &Client<'_, S>,
    ) -> Result<(), UpstreamError> {
        if self.cold_blocks.is_empty() {
            return Ok(());
        }
        let config = client.config().await?;
        let cooldown = Duration::seconds(config.ip_cooldown_seconds);
        for (cidr, first) in &self.cold_blocks {
            let Some(read) = self.blocks.get(cidr) else {
                continue;
            };
            if *first + cooldown > (client.now)() {
                continue;
            }
            let collected = client.collected(read, &config)?;
            if collected == read.value {
                continue;
            }
            match client.update_block(read, collected).await {
                Ok(_) | Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Gives up blocks that have been empty for the grace period, if their node has another block
    /// of either family (KC-455). Failures are only logged.
    pub(super) async fn release_empty_blocks<S: Store>(&mut self, client: &Client<'_, S>) {
        let Some(grace) = self.positive_grace() else {
            return;
        };
        for (cidr, node) in self.empty_blocks.clone() {
            let owned = self
                .blocks_of_node
                .get(&node)
                .map_or(0, |owned| owned.len());
            if owned <= 1 {
                continue;
            }
            let now = (client.now)();
            let Some(since) = self.releasable_since.get(&cidr) else {
                self.releasable_since.insert(cidr, now);
                continue;
            };
            if now - *since > grace && self.release_cached(client, cidr).await {
                self.forget(&cidr);
            }
        }
    }

    /// Gives up a block for the owner that the cache has. Returns true on success, and if another
    /// owner has the block.
    async fn release_cached<S: Store>(&self, client: &Client<'_, S>, cidr: Cidr) -> bool {
        let owner = self.blocks.get(&cidr).and_then(|read| read.value.owner());
        let Some(owner) = owner else {
            return true;
        };
        let released = client.release_affinity(&owner, cidr, Conditions::EMPTY);
        match released.await {
            Ok(()) | Err(UpstreamError::ClaimConflict(_)) => true,
            Err(error) => error.is_missing(),
        }
    }

    /// Gives up the blocks of deleted nodes. Returns the number of nodes that failed, which stay
    /// dirty (KC-461).
    pub(super) async fn release_nodes<S: Store>(
        &mut self,
        client: &Client<'_, S>,
        nodes: Vec<String>,
    ) -> usize {
        let mut failed = 0;
        for node in nodes {
            let owner = AffinityOwner::Host(node.clone());
            match client.release_owner(&owner).await {
                Ok(()) => _ = self.dirty_nodes.remove(&node),
                Err(_) => {
                    self.dirty_nodes.insert(node);
                    failed += 1;
                }
            }
        }
        failed
    }
}
