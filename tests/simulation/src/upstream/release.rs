//! Releases the addresses of a handle.

use libcalico::api::{Node, ObjectKey};
use libcalico::ipam::{Block, Handle, HandleId, IpamConfig};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Store, StoreError, ignore_missing};

use super::affinity::Conditions;
use super::client::Client;
use super::pools::deselects;
use super::{ATTEMPTS, UpstreamError};

impl<S: Store> Client<'_, S> {
    /// Releases all addresses of a handle. The handle stays if its blocks have none (IPAM-230).
    pub(super) async fn release_by_handle(&self, id: &HandleId) -> Result<(), UpstreamError> {
        let handle = self.get::<Handle>(id).await?;
        let config = self.config().await?;
        for cidr in handle.value.block.keys() {
            self.release_from(*cidr, id, &config).await?;
        }
        Ok(())
    }

    async fn release_from(
        &self,
        cidr: Cidr,
        id: &HandleId,
        config: &IpamConfig,
    ) -> Result<(), UpstreamError> {
        for _ in 0..ATTEMPTS {
            let read = match self.get::<Block>(&cidr).await {
                Ok(read) => read,
                Err(StoreError::NotFound { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let mut block = self.collected(&read, config)?;
            let cooldown = config.ip_cooldown_seconds;
            let released = block.release_by_handle(id, None, cooldown, (self.now)())?;
            if released == 0 {
                return Ok(());
            }
            let written = self.write_released(read, block.clone()).await;
            match written {
                Ok(()) => {
                    self.decrement(id, cidr, released, None).await;
                    _ = self.release_if_deselected(&block).await;
                    return Ok(());
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(UpstreamError::TooManyAttempts)
    }

    /// Writes a block after a release. Deletes an empty block without owner.
    async fn write_released(&self, read: Entry<Block>, block: Block) -> Result<(), StoreError> {
        if block.affinity.is_none() && block.is_empty() {
            return ignore_missing(self.delete(read).await);
        }
        self.update_block(&read, block).await.map(|_| ())
    }

    /// Gives the block up if the block is empty and its pool no longer selects the owner
    /// (IPAM-149). Upstream only logs a failure.
    pub(super) async fn release_if_deselected(&self, block: &Block) -> Result<(), UpstreamError> {
        let owner = block.owner().ok_or(UpstreamError::NoOwner)?;
        let node = ObjectKey::global(owner.name());
        let node = self.store.get::<Node>(&node).await?;
        let Some(pool) = self.enabled_pool_of(block.cidr.network()).await? else {
            return Ok(());
        };
        if !deselects(&pool, &node.value.metadata.labels) {
            return Ok(());
        }
        self.release_affinity(&owner, block.cidr, Conditions::EMPTY)
            .await
    }
}
