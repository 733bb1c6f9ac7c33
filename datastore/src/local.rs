//! The embedded datastore: one SQLite file that many processes share.
//!
//! A read batch is one read transaction, a list of writes is one write transaction. SQLite answers "busy" while another
//! process writes; the transaction is then tried again, from its start, until the deadline. A transaction that was
//! committed survives loss of power (write-ahead log, synced at each commit).

mod error;
mod file;
mod lock_holder;
mod pairs;
mod schema;
mod wait;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libcalico::ipam::Sighting;
use libcalico::store::{
    Answers, Freshness, Range, RawEntry, ReadBatch, Revision, Store, StoreError, Survey, Write, WriteError, sighting,
};
use rusqlite::{Connection, TransactionBehavior};

use crate::check_distinct;
use crate::config::{ConfigError, LocalConfig};
use wait::Wait;

/// A SQLite file as a datastore. Opened, and created if need be, by the first request.
#[derive(Debug)]
pub struct Local {
    path: PathBuf,
    deadline: Duration,
    requests: AtomicU64,
    connection: Mutex<Option<Connection>>,
}

impl Local {
    /// Describes the file; nothing is opened.
    pub fn new(config: &LocalConfig) -> Self {
        Local {
            path: config.path.clone(),
            deadline: config.deadline,
            requests: AtomicU64::new(0),
            connection: Mutex::new(None),
        }
    }

    pub(crate) fn open(config: &LocalConfig) -> Result<Self, ConfigError> {
        Ok(Local::new(config))
    }

    /// The database file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many transactions have been asked for so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// All pairs whose path begins with `prefix`, in path order.
    pub fn scan(&self, prefix: &str) -> Result<Vec<RawEntry>, StoreError> {
        let range =
            Range { kind: "", path: prefix.into(), prefix: true, keys_only: false, freshness: Freshness::Latest };
        let answers = self.read_ranges(std::slice::from_ref(&range))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns the id that the file got when it was made, or gets now if an earlier release made it.
    pub(crate) fn identity(&self) -> Result<String, StoreError> {
        self.run(schema::identity)
    }

    fn read_ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<RawEntry>>, StoreError> {
        self.run(|connection| {
            if let [range] = ranges {
                // One statement is a snapshot by itself.
                return Ok(vec![pairs::read(connection, range)?]);
            }
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
            let answers = ranges.iter().map(|range| pairs::read(&transaction, range)).collect::<Result<_, _>>()?;
            transaction.commit()?;
            Ok(answers)
        })
    }

    /// Runs one transaction, opening the file first if this is the first, and again while another process is in the
    /// way. The transaction must leave nothing behind when it fails.
    fn run<T>(&self, transaction: impl Fn(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let wait = Wait::new(self.deadline);
        // A panic elsewhere cannot leave a half-done transaction: SQLite rolls it back when it is dropped.
        let mut slot = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = match &mut *slot {
            Some(connection) => connection,
            empty => empty.insert(file::open(&self.path, &wait)?),
        };
        wait.retry(|| transaction(connection)).map_err(|e| error::explain(&self.path, &e, &wait))
    }
}

impl Store for Local {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        if batch.ranges().is_empty() {
            return Ok(Answers::new(Vec::new()));
        }
        self.read_ranges(batch.ranges()).map(Answers::new)
    }

    async fn survey(&self, survey: &Survey, tell: &mut (dyn FnMut(Sighting) + Send)) -> Result<(), StoreError> {
        let tell = RefCell::new(tell);
        self.run(|connection| {
            let mut tell = tell.borrow_mut();
            survey.ranges().iter().try_for_each(|range| {
                pairs::each(connection, &range.path, |path, value| {
                    sighting(path, if survey.ranges_only { &[] } else { value }).into_iter().for_each(&mut *tell);
                })
            })
        })
    }

    fn has_transactions(&self) -> bool {
        true
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        check_distinct(writes)?;
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let prepared = pairs::prepare(writes)?;
        let outcome = self
            .run(|connection| {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                match pairs::apply(&transaction, &prepared)? {
                    Ok(revision) => transaction.commit().map(|()| Ok(revision)),
                    Err(refused) => Ok(Err(refused)),
                }
            })
            .map_err(|cause| WriteError { index: 0, applied: 0, cause })?;
        match outcome {
            Ok(revision) => Ok(vec![Revision(revision.to_string()); writes.len()]),
            Err((index, refusal)) => Err(WriteError { index, applied: 0, cause: refusal.explain(&writes[index].key) }),
        }
    }
}
