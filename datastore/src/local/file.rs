//! Opening the database file, and making it when it is not there.

use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use libcalico::store::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error;
use super::schema::{self, SchemaError};
use super::wait::Wait;

const DIRECTORY_MODE: u32 = 0o755;
/// The file holds who talks to whom; its -wal and -shm take over its mode.
const FILE_MODE: u32 = 0o600;
/// How many pages the log may hold before a commit copies them into the database. The process that opens the file
/// while no other has it open reads the whole log (0.2 ms for this many), and one commit in some thirty does the copy.
const LOG_PAGES: u32 = 200;

/// Opens the file, with tables in it. Writes nothing when both are there already.
pub(super) fn open(path: &Path, wait: &Wait) -> Result<Connection, StoreError> {
    let explain = |e: &rusqlite::Error| error::explain(path, e, wait);
    let mut connection = match connect(path) {
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::CannotOpen) && is_missing(path) => {
            create_empty(path)?;
            connect(path)
        }
        other => other,
    }
    .map_err(|e| explain(&e))?;

    let version = wait.retry(|| schema::version(&connection)).map_err(|e| explain(&e))?;
    match version {
        schema::VERSION => Ok(connection),
        0 => {
            create_tables(&mut connection, wait).map_err(|e| error::explain_schema(path, e, wait))?;
            Ok(connection)
        }
        newer => Err(error::unknown_version(path, newer)),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Waiting is done by `Wait`: SQLite's own steps go up to 100 ms, a transaction here takes a third of one.
    connection.busy_timeout(Duration::ZERO)?;
    // The last one out would copy the log and delete it, four syncs that the next process would have to undo.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // FULL: a commit is on disk before an address is handed out.
    connection.execute_batch(&format!("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {LOG_PAGES};"))?;
    Ok(connection)
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

fn create_empty(path: &Path) -> Result<(), StoreError> {
    let describe = |what: &str, of: &Path, e: std::io::Error| error::cannot_create(path, what, of, &e);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        let mut directory = DirBuilder::new();
        directory.recursive(true).mode(DIRECTORY_MODE);
        directory.create(parent).map_err(|e| describe("directory", parent, e))?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(describe("file", path, e)),
        // Another process may have been faster, and may be filling it.
        _ => Ok(()),
    }
}

fn create_tables(connection: &mut Connection, wait: &Wait) -> Result<(), SchemaError> {
    let mut outcome = Ok(());
    wait.retry(|| match schema::create(connection) {
        Err(SchemaError::Sqlite(e)) => Err(e),
        other => {
            outcome = other;
            Ok(())
        }
    })?;
    outcome
}
