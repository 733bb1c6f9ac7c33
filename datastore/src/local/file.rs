//! Opens the database file, and creates it if it is missing.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libcalico::store::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use uuid::Uuid;

use super::error::{self, BusyRetry, directory_of, with_suffix};
use super::schema::{self, SchemaError};

const DIRECTORY_MODE: u32 = 0o755;
/// Only the owner may read the file, because it names pods and containers.
const FILE_MODE: u32 = 0o600;
/// Number of pages in the log after which a commit copies the log into the database. Reading a long
/// log and copying it both take time; this number is a compromise.
const CHECKPOINT_PAGES: u32 = 48;

/// Opens the file, and creates it first if it is missing.
pub(super) fn open(path: &Path, wait: &BusyRetry) -> Result<Connection, StoreError> {
    let store_error = |e: rusqlite::Error| error::to_store_error(path, &e, wait);
    // Opening also reads the file, so it can collide with a process that recovers or resets the
    // log.
    let connection = match wait.retry(|| connect(path)) {
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::CannotOpen) => {
            // Another process may have created the file since `connect` failed.
            if is_missing(path) {
                create(path, wait)?;
            }
            wait.retry(|| connect(path))
        }
        other => other,
    }
    .map_err(store_error)?;
    // Otherwise the last process that closes the file would copy and remove the log, which takes
    // four syncs.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(store_error)?;
    match wait
        .retry(|| schema::version(&connection))
        .map_err(store_error)?
    {
        schema::VERSION => {}
        other => return Err(error::version_error(path, other)),
    }
    sync_new_log(path).map_err(|e| error::creation_error(path, "log of", path, &e))?;
    Ok(connection)
}

/// Makes the directory entry of a new, empty log survive a power failure. SQLite is built with
/// `SQLITE_DISABLE_DIRSYNC` (.cargo/config.toml), because it would otherwise sync the directory in
/// each process.
fn sync_new_log(path: &Path) -> io::Result<()> {
    match fs::metadata(with_suffix(path, "-wal")) {
        Ok(log) if log.len() > 0 => Ok(()),
        _ => File::open(directory_of(path))?.sync_all(),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // SQLite's own pauses grow up to 100 ms, while a transaction here takes a third of a
    // millisecond.
    connection.busy_timeout(Duration::ZERO)?;
    // FULL: a commit is on disk before the plugin returns an address.
    connection.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};"
    ))?;
    Ok(connection)
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata()
        .is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Creates the file under another name and links it into place, so that no process sees an
/// incomplete file.
fn create(path: &Path, wait: &BusyRetry) -> Result<(), StoreError> {
    let file_error = |e: io::Error| error::creation_error(path, "file", path, &e);
    let directory = directory_of(path);
    let created = DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory);
    created.map_err(|e| error::creation_error(path, "directory", directory, &e))?;
    let temporary = TemporaryDatabase(with_suffix(
        path,
        &format!(".new-{}", Uuid::new_v4().simple()),
    ));
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(&temporary.0);
    created.map_err(file_error)?;
    initialize(&temporary.0).map_err(|e| error::schema_to_store_error(path, e, wait))?;
    match fs::hard_link(&temporary.0, path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(file_error(e)),
        // The directory entry must survive a power failure, as the commits in the file do.
        _ => File::open(directory)
            .and_then(|d| d.sync_all())
            .map_err(file_error),
    }
}

fn initialize(temporary: &Path) -> Result<(), SchemaError> {
    let mut connection = connect(temporary)?;
    schema::create(&mut connection)?;
    // Closing the connection copies the log into the file, and the file is then complete.
    connection.close().map_err(|(_, e)| SchemaError::Sqlite(e))
}

/// A new database file under a temporary name. Dropping the value removes that name, but not the
/// finished file.
struct TemporaryDatabase(PathBuf);

impl Drop for TemporaryDatabase {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            // Most of these files do not exist. A remaining one only takes space.
            let _ = fs::remove_file(with_suffix(&self.0, suffix));
        }
    }
}
