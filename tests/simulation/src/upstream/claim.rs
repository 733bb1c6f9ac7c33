//! Claims blocks: the affinity is written as pending, the block is created, and the affinity is
//! confirmed.

use libcalico::ipam::{AffinityKey, AffinityState, Block, BlockAffinity, BlockTooLarge};
use libcalico::store::{Entry, Store, StoreError};

use super::UpstreamError;
use super::client::Client;

impl<S: Store> Client<'_, S> {
    /// Creates a pending affinity, or makes an unconfirmed one pending.
    pub(super) async fn pending_affinity(
        &self,
        key: &AffinityKey,
    ) -> Result<Entry<BlockAffinity>, StoreError> {
        let value = BlockAffinity {
            state: AffinityState::Pending,
            ..BlockAffinity::default()
        };
        match self.store.create::<BlockAffinity>(key, &value).await {
            Ok(revision) => Ok(Entry {
                key: key.clone(),
                value,
                revision,
            }),
            Err(StoreError::AlreadyExists { .. }) => {
                let found = self.get::<BlockAffinity>(key).await?;
                // An affinity without state does not count as confirmed here.
                if found.value.state == AffinityState::Confirmed {
                    return Ok(found);
                }
                self.with_state(&found, AffinityState::Pending).await
            }
            Err(error) => Err(error),
        }
    }

    pub(super) async fn with_state(
        &self,
        read: &Entry<BlockAffinity>,
        state: AffinityState,
    ) -> Result<Entry<BlockAffinity>, StoreError> {
        let value = BlockAffinity {
            state,
            ..read.value.clone()
        };
        self.update(read, value).await
    }

    /// Returns the block of an affinity. Creates a missing block, and repairs the pair if a program
    /// was interrupted before (IPAM-123).
    pub(super) async fn block_of_affinity(
        &self,
        affinity: Entry<BlockAffinity>,
    ) -> Result<Entry<Block>, UpstreamError> {
        let cidr = affinity.key.cidr;
        let block = match self.get::<Block>(&cidr).await {
            Ok(block) => block,
            Err(StoreError::NotFound { .. }) => {
                let pending = self.with_state(&affinity, AffinityState::Pending).await?;
                self.config().await?;
                return self.claim(pending).await;
            }
            Err(error) => return Err(error.into()),
        };
        if block.value.owner().as_ref() != Some(&affinity.key.owner) {
            self.delete(affinity).await?;
            return Err(UpstreamError::StaleAffinity(cidr));
        }
        if !affinity.value.state.is_unfinished() {
            return Ok(block);
        }
        let pending = self.with_state(&affinity, AffinityState::Pending).await?;
        // The new revision makes the write of a program fail that is about to release the block.
        let block = self.update_block(&block, block.value.clone()).await?;
        self.with_state(&pending, AffinityState::Confirmed).await?;
        Ok(block)
    }

    /// Creates the block of a pending affinity and confirms the affinity.
    pub(super) async fn claim(
        &self,
        affinity: Entry<BlockAffinity>,
    ) -> Result<Entry<Block>, UpstreamError> {
        let AffinityKey { owner, cidr } = affinity.key.clone();
        let value = Block::new(cidr, &owner, (self.now)())
            .map_err(|BlockTooLarge(cidr)| StoreError::Other(format!("{cidr} is too large")))?;
        let block = match self.store.create::<Block>(&cidr, &value).await {
            Ok(revision) => Entry {
                key: cidr,
                value,
                revision,
            },
            Err(StoreError::AlreadyExists { .. }) => {
                let found = self.get::<Block>(&cidr).await?;
                if found.value.owner() != Some(owner) {
                    _ = self.delete(affinity).await;
                    return Err(UpstreamError::ClaimConflict(cidr));
                }
                found
            }
            Err(error) => return Err(error.into()),
        };
        self.confirm(&affinity).await?;
        Ok(block)
    }

    /// Confirms an affinity, unless another process of the owner has confirmed the affinity.
    async fn confirm(&self, affinity: &Entry<BlockAffinity>) -> Result<(), UpstreamError> {
        let confirmed = self.with_state(affinity, AffinityState::Confirmed).await;
        let Err(error) = confirmed else {
            return Ok(());
        };
        match self.get::<BlockAffinity>(&affinity.key).await {
            Ok(found) if found.value.state == AffinityState::Confirmed => Ok(()),
            _ => Err(error.into()),
        }
    }
}
