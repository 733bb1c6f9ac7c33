//! The tables, and their version in `PRAGMA user_version`.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::pairs;
use crate::first_use;
use libcalico::store::StoreError;

/// The version that this build reads and writes.
pub(super) const VERSION: i64 = 1;

/// `counter` is the revision of the latest transaction; a row's `revision` is that of its latest write. The table has row
/// ids, because a tree keyed by path would read whole values on its way down: blocks do not fit into its cells.
const TABLES: &str = "
    CREATE TABLE kv (path TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL, revision INTEGER NOT NULL);
    CREATE TABLE counter (revision INTEGER NOT NULL);
    INSERT INTO counter (revision) VALUES (0);
    PRAGMA user_version = 1;
";

/// Why a new file did not become a datastore.
#[derive(Debug)]
pub(super) enum SchemaError {
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// The file cannot be shared between processes; the journal mode that was left instead.
    NoWal(String),
    /// The initial objects could not be made.
    Initial(StoreError),
}

impl From<rusqlite::Error> for SchemaError {
    fn from(error: rusqlite::Error) -> Self {
        SchemaError::Sqlite(error)
    }
}

/// The version of the file: 0 for one without tables.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Makes an empty file a datastore: tables and initial objects, in one transaction.
pub(super) fn create(connection: &mut Connection) -> Result<(), SchemaError> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(SchemaError::NoWal(mode));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLES)?;
    fill(&transaction)?;
    Ok(transaction.commit()?)
}

/// A new file needs no `init`: it begins with what [`first_use`] would add.
fn fill(transaction: &Transaction<'_>) -> Result<(), SchemaError> {
    let writes = first_use::initial_objects().map_err(SchemaError::Initial)?;
    let prepared = pairs::prepare(&writes).map_err(|e| SchemaError::Initial(e.cause))?;
    pairs::apply(transaction, &prepared)?.map(|_| ()).map_err(|(index, refusal)| {
        // Unreachable in an empty table, but no reason to lose the words.
        SchemaError::Initial(refusal.explain(&writes[index].key))
    })
}
