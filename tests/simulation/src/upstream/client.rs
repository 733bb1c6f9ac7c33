//! [`Client`]: the single requests of upstream's programs.

use std::fmt;

use libcalico::ipam::{Block, BlockAffinity, Handle, IpamConfig, IpamConfigKey};
use libcalico::store::{Entry, Kind, Store, StoreError, WriteModel, identifier};

use super::{Now, UpstreamError};

/// A program with a connection to the datastore.
pub(super) struct Client<'a, S> {
    pub(super) store: &'a S,
    pub(super) now: Now<'a>,
}

impl<S> fmt::Debug for Client<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// A kind of object that upstream marks before a deletion on an API server (IPAM-214).
pub(super) trait Marked: Kind {
    /// Returns the mark.
    fn deleted(&mut self) -> &mut bool;
}

impl Marked for Block {
    fn deleted(&mut self) -> &mut bool {
        &mut self.deleted
    }
}

impl Marked for BlockAffinity {
    fn deleted(&mut self) -> &mut bool {
        &mut self.deleted
    }
}

impl Marked for Handle {
    fn deleted(&mut self) -> &mut bool {
        &mut self.deleted
    }
}

impl<S: Store> Client<'_, S> {
    /// Returns true if a deletion takes three requests, as on an API server.
    pub(super) fn marks_deletions(&self) -> bool {
        self.store.write_model() == WriteModel::PerObject
    }

    /// Reads an object. Completes the deletion of a marked object, which is then missing
    /// (IPAM-91).
    pub(super) async fn get<K: Marked>(&self, key: &K::Key) -> Result<Entry<K>, StoreError> {
        let mut entry = self.store.get::<K>(key).await?;
        if self.marks_deletions() && *entry.value.deleted() {
            self.delete(entry).await?;
            return Err(StoreError::NotFound {
                key: identifier::<K>(key),
            });
        }
        Ok(entry)
    }

    /// Replaces an object. Returns the object with its new revision.
    pub(super) async fn update<K: Kind>(
        &self,
        read: &Entry<K>,
        value: K,
    ) -> Result<Entry<K>, StoreError> {
        let revision = self.store.update::<K>(&read.key, &value, &read.revision);
        Ok(Entry {
            revision: revision.await?,
            key: read.key.clone(),
            value,
        })
    }

    /// Writes a block with the next sequence number.
    pub(super) async fn update_block(
        &self,
        read: &Entry<Block>,
        mut block: Block,
    ) -> Result<Entry<Block>, StoreError> {
        block.count_write();
        self.update(read, block).await
    }

    /// Deletes an object that was read.
    ///
    /// The deletion of a marked object has the UID as its only precondition, which a store cannot
    /// express. The revision of the mark is a stricter one: nobody writes a marked object except to
    /// delete it.
    pub(super) async fn delete<K: Marked>(&self, read: Entry<K>) -> Result<(), StoreError> {
        if !self.marks_deletions() {
            return self
                .store
                .delete::<K>(&read.key, Some(&read.revision))
                .await;
        }
        let mut marked = read.value.clone();
        *marked.deleted() = true;
        let marked = self.update(&read, marked).await?;
        self.store.get::<K>(&read.key).await?;
        let deleted = self.store.delete::<K>(&read.key, Some(&marked.revision));
        match deleted.await {
            // The object is a new one of the same name.
            Err(StoreError::Conflict { key }) => Err(StoreError::NotFound { key }),
            outcome => outcome,
        }
    }

    /// Reads the settings of the allocator.
    pub(super) async fn config(&self) -> Result<IpamConfig, UpstreamError> {
        match self.store.get::<IpamConfig>(&IpamConfigKey).await {
            Ok(entry) => Ok(entry.value),
            Err(StoreError::NotFound { .. }) => Ok(IpamConfig::absent()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the block without the addresses whose cooldown has elapsed (IPAM-162).
    pub(super) fn collected(
        &self,
        read: &Entry<Block>,
        config: &IpamConfig,
    ) -> Result<Block, UpstreamError> {
        let mut block = read.value.clone();
        block.collect_garbage(config.ip_cooldown_seconds, (self.now)())?;
        Ok(block)
    }
}
