//! [`Local`]: a SQLite file as a [`Store`].

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libcalico::ipam::ListedBlock;
use libcalico::store::{
    Answers, EndpointForm, ProfileOrigin, Range, RawEntry, ReadBatch, Revision, Sharing, Store,
    StoreError, Survey, Write, WriteError, WriteModel, listed_block,
};
use rusqlite::{Connection, TransactionBehavior};

use super::error::BusyRetry;
use super::{error, file, pairs, schema};
use crate::config::{ConfigError, LocalConfig};
use crate::pairs::write_in_transaction;

/// A SQLite file as a datastore. The first request opens the file, or creates it if it is missing.
#[derive(Debug)]
pub struct Local {
    path: PathBuf,
    deadline: Duration,
    requests: AtomicU64,
    connection: Mutex<Option<Connection>>,
}

impl Local {
    /// Creates a client for the file without opening the file.
    pub fn new(config: &LocalConfig) -> Self {
        let LocalConfig { path, deadline } = config.clone();
        Local {
            path,
            deadline,
            requests: AtomicU64::new(0),
            connection: Mutex::new(None),
        }
    }

    pub(crate) fn open(config: &LocalConfig) -> Result<Self, ConfigError> {
        Ok(Local::new(config))
    }

    /// Returns the path of the database file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of transactions requested so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn identity(&self) -> Result<String, StoreError> {
        self.run(schema::identity)
    }

    /// Reads ranges as one snapshot.
    pub(crate) fn read_ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<RawEntry>>, StoreError> {
        self.run(|connection| {
            if let [range] = ranges {
                // A single statement is a snapshot by itself.
                return Ok(vec![pairs::read(connection, range)?]);
            }
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
            let answers = ranges
                .iter()
                .map(|range| pairs::read(&transaction, range))
                .collect::<Result<_, _>>()?;
            transaction.commit()?;
            Ok(answers)
        })
    }

    /// Passes the pairs whose path begins with `prefix` to `on_pair`, one by one, in path order, as
    /// one snapshot.
    pub(crate) fn for_each_pair(
        &self,
        prefix: &str,
        on_pair: &mut (dyn FnMut(&RawEntry) + Send),
    ) -> Result<(), StoreError> {
        let on_pair = RefCell::new(on_pair);
        // As in `survey`, a repeated read passes no pair twice.
        self.run(|connection| {
            let mut on_pair = on_pair.borrow_mut();
            pairs::for_each_pair(connection, prefix, |path, value, revision| {
                let revision = Revision(revision.to_string());
                on_pair(&RawEntry {
                    path: path.into(),
                    value: value.into(),
                    revision,
                });
            })
        })
    }

    /// Runs one transaction, and opens the file first if necessary. Repeats a blocked transaction,
    /// so a failed one must not have effects.
    fn run<T>(
        &self,
        transaction: impl Fn(&mut Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let wait = BusyRetry::new(self.deadline);
        // A poisoned lock is safe to use: SQLite rolls an unfinished transaction back when it is
        // dropped.
        let mut slot = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let connection = match &mut *slot {
            Some(connection) => connection,
            empty => empty.insert(file::open(&self.path, &wait)?),
        };
        wait.retry(|| transaction(connection))
            .map_err(|e| error::to_store_error(&self.path, &e, &wait))
    }
}

impl Store for Local {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        if batch.ranges().is_empty() {
            return Ok(Answers::new(Vec::new()));
        }
        self.read_ranges(batch.ranges()).map(Answers::new)
    }

    async fn survey(
        &self,
        survey: &Survey,
        on_block: &mut (dyn FnMut(ListedBlock) + Send),
    ) -> Result<(), StoreError> {
        let on_block = RefCell::new(on_block);
        // A read can be blocked only before its first row, so a repeated read passes no block
        // twice.
        survey.ranges().iter().try_for_each(|range| {
            self.run(|connection| {
                let mut on_block = on_block.borrow_mut();
                pairs::for_each_pair(connection, &range.path, |path, value, _| {
                    let block = listed_block(path, if survey.ranges_only { &[] } else { value });
                    block.into_iter().for_each(&mut *on_block);
                })
            })
        })
    }

    fn write_model(&self) -> WriteModel {
        WriteModel::Transactional
    }

    fn endpoint_form(&self) -> EndpointForm {
        EndpointForm::Object
    }

    fn profile_origin(&self) -> ProfileOrigin {
        ProfileOrigin::Stored
    }

    fn sharing(&self) -> Sharing {
        Sharing::ThisNode
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let transaction = async {
            let prepared = pairs::prepare(writes)?;
            let outcome = self.run(|connection| {
                let transaction =
                    connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                match pairs::apply(&transaction, &prepared)? {
                    Ok(revision) => transaction.commit().map(|()| Ok(revision)),
                    Err(refused) => Ok(Err(refused)),
                }
            });
            outcome.unwrap_or_else(|cause| {
                Err(WriteError {
                    index: 0,
                    applied: 0,
                    cause,
                })
            })
        };
        write_in_transaction(writes, transaction).await
    }
}
