//! The tables of the database. Their version is stored in `PRAGMA user_version`.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use uuid::Uuid;

use super::pairs;
use crate::bootstrap;
use libcalico::store::StoreError;

/// The schema version that this build reads and writes.
pub(super) const VERSION: i64 = 1;

/// `counter` contains the highest revision so far, and a row's `revision` is that of its latest
/// write. `kv` has row IDs, because a tree with the path as its key would read whole values on its
/// way down.
const TABLES: &str = "
    CREATE TABLE kv (path TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL, revision INTEGER NOT NULL);
    CREATE TABLE counter (revision INTEGER NOT NULL);
    INSERT INTO counter (revision) VALUES (0);
    PRAGMA user_version = 1;
";

/// The table with the file's ID. Files of earlier releases lack the table until [`identity`] adds
/// it.
const IDENTITY: &str = "CREATE TABLE IF NOT EXISTS identity (id TEXT NOT NULL)";

#[derive(Debug, thiserror::Error)]
pub(super) enum SchemaError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// The file cannot be shared between processes. The value is the journal mode that SQLite uses
    /// instead of WAL.
    #[error("the journal mode stays `{0}`")]
    WalUnavailable(String),
    #[error(transparent)]
    InitialObjects(#[from] StoreError),
}

/// Returns the schema version of the file, or 0 for a file in which no program has set a version.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

pub(super) fn create(connection: &mut Connection) -> Result<(), SchemaError> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(SchemaError::WalUnavailable(mode));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(TABLES)?;
    add_identity(&transaction)?;
    insert_initial_objects(&transaction)?;
    Ok(transaction.commit()?)
}

/// Returns the file's ID. Adds an ID to a file of an earlier release.
pub(super) fn identity(connection: &mut Connection) -> rusqlite::Result<String> {
    // The read needs no write lock.
    if let Some(id) = find_identity(connection)? {
        return Ok(id);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let id = add_identity(&transaction)?;
    transaction.commit()?;
    Ok(id)
}

fn find_identity(connection: &Connection) -> rusqlite::Result<Option<String>> {
    if !connection.table_exists(None, "identity")? {
        return Ok(None);
    }
    connection
        .query_row("SELECT id FROM identity", [], |row| row.get(0))
        .optional()
}

fn add_identity(transaction: &Transaction<'_>) -> rusqlite::Result<String> {
    transaction.execute_batch(IDENTITY)?;
    if let Some(id) = find_identity(transaction)? {
        return Ok(id);
    }
    let id = Uuid::new_v4().to_string();
    transaction.execute("INSERT INTO identity (id) VALUES (?1)", [&id])?;
    Ok(id)
}

/// Adds the ClusterInformation and the built-in tiers.
fn insert_initial_objects(transaction: &Transaction<'_>) -> Result<(), SchemaError> {
    let writes = bootstrap::initial_objects()?;
    let prepared = pairs::prepare(&writes).map_err(|e| e.cause)?;
    // The inner error cannot occur in an empty table.
    pairs::apply(transaction, &prepared)?.map_err(|e| e.cause)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use libcalico::store::RawEntry;
    use rusqlite::Row;

    use crate::config::{DEFAULT_DEADLINE, LocalConfig};
    use crate::local::Local;

    use super::*;

    #[test]
    fn local_datastore_has_a_stable_identity_and_older_files_get_a_new_identity() {
        let directory = tempfile::tempdir().unwrap();
        let local = |name: &str| {
            Local::new(&LocalConfig {
                path: directory.path().join(name),
                deadline: DEFAULT_DEADLINE,
            })
        };
        let first_id = local("a.db").identity().unwrap();
        assert_eq!(local("a.db").identity().unwrap(), first_id);
        assert_ne!(local("b.db").identity().unwrap(), first_id);

        let connection = Connection::open(directory.path().join("a.db")).unwrap();
        connection.execute_batch("DROP TABLE identity").unwrap();
        let new_id = local("a.db").identity().unwrap();
        assert_ne!(new_id, first_id);
        assert_eq!(local("a.db").identity().unwrap(), new_id);
    }

    /// A node keeps its file while the programs are replaced.
    #[test]
    fn file_of_0_1_0_is_read_and_a_new_file_has_its_tables() {
        let stored = include_bytes!("../../../tests/formats/0.1.0/calico.db");
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("stored.db"), stored).unwrap();
        let local = |name: &str| {
            Local::new(&LocalConfig {
                path: path(name),
                deadline: DEFAULT_DEADLINE,
            })
        };
        let pairs = |local: &Local| {
            let mut pairs = Vec::new();
            let on_pair = &mut |pair: &RawEntry| pairs.push(pair.clone());
            local.for_each_pair("/", on_pair).unwrap();
            pairs
        };
        let stored = local("stored.db");
        let id = "b0d0d652-2ed7-4a40-b1c9-6f107f978690";
        assert_eq!(stored.identity().unwrap(), id);
        let (stored, new) = (pairs(&stored), pairs(&local("new.db")));
        let object = stored[0].value.json().unwrap();
        let guid = "f823b49eba5341adb0b5ca75d691b1cf";
        assert_eq!(object["spec"]["clusterGUID"], guid);
        let place = |pair: &RawEntry| (pair.path.clone(), pair.revision.clone());
        assert!(
            new.iter().map(place).eq(stored.iter().map(place)),
            "{new:?}"
        );
        let tables = |name: &str| {
            let connection = Connection::open(path(name)).unwrap();
            let mut statement = connection
                .prepare("SELECT name, sql FROM sqlite_master ORDER BY name")
                .unwrap();
            let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let rows = statement.query_map([], row).unwrap();
            let rows: Vec<(String, Option<String>)> = rows.map(Result::unwrap).collect();
            (version(&connection).unwrap(), rows)
        };
        assert_eq!(tables("new.db"), tables("stored.db"));
    }
}
