//! Opening the database file, and making it when it is not there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libcalico::store::StoreError;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use uuid::Uuid;

use super::error;
use super::schema::{self, SchemaError};
use super::wait::Wait;

const DIRECTORY_MODE: u32 = 0o755;
/// The file holds who talks to whom; its -wal and -shm take over its mode.
const FILE_MODE: u32 = 0o600;
/// How many pages the log may hold before a commit copies them into the database. The process that opens the file
/// while no other has it open reads the whole log (3 µs a page), and the copy takes about two commits' time: this many
/// cost the least in all.
const LOG_PAGES: u32 = 48;

/// Opens the file, and makes it first when it is not there. Writes nothing otherwise.
pub(super) fn open(path: &Path, wait: &Wait) -> Result<Connection, StoreError> {
    let explain = |e: rusqlite::Error| error::explain(path, &e, wait);
    // Opening reads the file too, and so meets the processes that recover or reset its log.
    let connection = match wait.retry(|| connect(path)) {
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::CannotOpen) => {
            // No longer missing: another process made it between our two looks.
            if is_missing(path) {
                create(path, wait)?;
            }
            wait.retry(|| connect(path))
        }
        other => other,
    }
    .map_err(explain)?;
    // The last one out would copy the log and delete it, four syncs that the next process would have to undo.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
    match wait.retry(|| schema::version(&connection)).map_err(explain)? {
        schema::VERSION => {}
        other => return Err(error::unknown_version(path, other)),
    }
    sync_new_log(path).map_err(|e| error::cannot_create(path, "log of", path, &e))?;
    Ok(connection)
}

/// Makes the name of a log that nobody has written to yet survive a loss of power. SQLite would do so in each process,
/// whether the log is new or not (it is built with `SQLITE_DISABLE_DIRSYNC`, .cargo/config.toml). Nobody removes the log
/// while it is open here.
fn sync_new_log(path: &Path) -> io::Result<()> {
    match fs::metadata(with_suffix(path, "-wal")) {
        Ok(log) if log.len() > 0 => Ok(()),
        _ => File::open(directory_of(path))?.sync_all(),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Waiting is done by `Wait`: SQLite's own steps go up to 100 ms, a transaction here takes a third of one.
    connection.busy_timeout(Duration::ZERO)?;
    // FULL: a commit is on disk before an address is handed out.
    connection.execute_batch(&format!("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {LOG_PAGES};"))?;
    Ok(connection)
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Makes the file under another name and links it into place, so that nobody ever sees half of it: of several processes
/// that try, the first wins and the others use its file.
fn create(path: &Path, wait: &Wait) -> Result<(), StoreError> {
    let refuse = |what: &str, of: &Path, e: io::Error| error::cannot_create(path, what, of, &e);
    let directory = directory_of(path);
    DirBuilder::new()
        .recursive(true)
        .mode(DIRECTORY_MODE)
        .create(directory)
        .map_err(|e| refuse("directory", directory, e))?;
    let draft = Draft::beside(path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(&draft.0)
        .map_err(|e| refuse("file", path, e))?;
    fill(&draft.0).map_err(|e| error::explain_schema(path, e, wait))?;
    match fs::hard_link(&draft.0, path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(refuse("file", path, e)),
        // The new name must survive a loss of power as the commits in it do.
        _ => File::open(directory).and_then(|d| d.sync_all()).map_err(|e| refuse("file", path, e)),
    }
}

fn fill(draft: &Path) -> Result<(), SchemaError> {
    let mut connection = connect(draft)?;
    schema::create(&mut connection)?;
    // Closing copies the log into the file, which is what gets linked.
    connection.close().map_err(|(_, e)| SchemaError::Sqlite(e))
}

/// A file under construction. Its own name goes when it is dropped; what was linked elsewhere stays.
struct Draft(PathBuf);

impl Draft {
    fn beside(path: &Path) -> Self {
        Draft(with_suffix(path, &format!(".new-{}", Uuid::new_v4().simple())))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            // Most are not there, and one that cannot be removed harms nobody.
            let _ = fs::remove_file(with_suffix(&self.0, suffix));
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
