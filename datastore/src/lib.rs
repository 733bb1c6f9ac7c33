//! Calico's datastores: the I/O behind [`libcalico::store::Store`].
//!
//! [`Datastore`] is either an etcd cluster or one SQLite file. Both hold the same pairs, the paths and JSON of
//! upstream's etcd layout (DS-24..DS-34), so a file can be loaded into etcd and back ([`transfer`]). Which one a process
//! uses comes from a [`DatastoreConfig`]. Nothing is opened before the first request, and each process has one
//! connection.

pub mod config;
pub mod etcd;
pub mod first_use;
pub mod kubernetes;
pub mod local;
pub mod transfer;

use libcalico::store::{Answers, RawEntry, ReadBatch, Revision, Store, StoreError, Write, WriteError};

pub use config::{ConfigError, DatastoreConfig, Settings};
pub use etcd::Etcd;
pub use local::Local;

/// The datastore of this process.
#[derive(Debug)]
pub enum Datastore {
    /// An etcd cluster.
    Etcd(Box<Etcd>),
    /// A SQLite file on this node.
    Local(Local),
}

impl Datastore {
    /// Prepares the datastore that `config` describes. Reads certificates and keys, sends nothing and opens no
    /// database: what is out of reach shows with the first request.
    pub fn open(config: &DatastoreConfig) -> Result<Self, ConfigError> {
        Ok(match config {
            DatastoreConfig::Etcd(config) => Datastore::Etcd(Box::new(Etcd::new(config)?)),
            DatastoreConfig::Local(config) => Datastore::Local(Local::new(config)),
        })
    }

    /// How many requests have been sent so far: remote procedure calls to etcd, transactions on the file.
    pub fn requests(&self) -> u64 {
        match self {
            Datastore::Etcd(etcd) => etcd.requests(),
            Datastore::Local(local) => local.requests(),
        }
    }

    /// All pairs whose path begins with `prefix`, in path order, as one snapshot.
    pub async fn scan(&self, prefix: &str) -> Result<Vec<RawEntry>, StoreError> {
        match self {
            Datastore::Etcd(etcd) => etcd.scan(prefix).await,
            Datastore::Local(local) => local.scan(prefix),
        }
    }

    /// Makes the datastore usable: adds ClusterInformation and the built-in tiers where they are missing (DS-51).
    /// A new file does so by itself.
    pub async fn ensure_initialized(&self) -> Result<(), StoreError> {
        first_use::ensure_initialized(self).await
    }
}

/// The futures of a remote call are large, and each operation above would hold several of them: they are boxed.
impl Store for Datastore {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        match self {
            Datastore::Etcd(etcd) => Box::pin(etcd.read(batch)).await,
            Datastore::Local(local) => local.read(batch).await,
        }
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        match self {
            Datastore::Etcd(etcd) => Box::pin(etcd.write(writes)).await,
            Datastore::Local(local) => local.write(writes).await,
        }
    }
}

/// Refuses a list that writes one path twice: in a transaction the two have no order (etcd rejects them).
fn check_distinct(writes: &[Write]) -> Result<(), WriteError> {
    for (index, write) in writes.iter().enumerate() {
        if writes[..index].iter().any(|earlier| earlier.path == write.path) {
            let cause = StoreError::Other(format!("two writes to {} in one transaction; send them apart", write.key));
            return Err(WriteError { index, applied: 0, cause });
        }
    }
    Ok(())
}
