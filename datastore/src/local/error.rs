//! Retries transactions that other processes block, and converts errors of SQLite into errors of
//! the store.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libcalico::store::StoreError;
use nix::sys::statvfs::statvfs;
use rusqlite::{ErrorCode, ffi};

use super::schema::{SchemaError, VERSION};
use crate::backoff::Backoff;

/// The pauses suit transactions that take a third of a millisecond.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(4);

#[derive(Debug, Clone, Copy)]
pub(super) struct BusyRetry {
    limit: Duration,
    until: Instant,
}

impl BusyRetry {
    pub(super) fn new(limit: Duration) -> Self {
        BusyRetry {
            limit,
            until: Instant::now() + limit,
        }
    }

    /// Runs a transaction, again while other processes block it and the time limit has not passed.
    /// Returns the last result.
    pub(super) fn retry<T>(
        &self,
        mut transaction: impl FnMut() -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match transaction() {
                Err(e) if is_busy(&e) && Instant::now() < self.until => sleep(backoff.next()),
                other => return other,
            }
        }
    }
}

fn is_busy(e: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
    matches!(
        e.sqlite_error_code(),
        Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed)
    )
}

pub(super) fn to_store_error(path: &Path, error: &rusqlite::Error, wait: &BusyRetry) -> StoreError {
    let file = path.display();
    let failure = match error {
        rusqlite::Error::SqliteFailure(failure, _) => failure,
        rusqlite::Error::NulError(_) | rusqlite::Error::InvalidPath(_) => {
            return StoreError::Other(format!(
                "datastore {file}: {error}; name another file in datastore_path"
            ));
        }
        // All statements fit the schema and all rows are readable, so any other error means that
        // the file is damaged.
        _ => return damaged(path, error),
    };
    match failure.code {
        _ if [ffi::SQLITE_ERROR, ffi::SQLITE_IOERR_SHORT_READ].contains(&failure.extended_code) => {
            damaged(path, error)
        }
        ErrorCode::DiskFull => StoreError::DiskFull {
            path: file.to_string(),
        },
        ErrorCode::SystemIoFailure if is_no_file(path) => {
            unavailable(path, "it is no regular file; name a file in datastore_path")
        }
        ErrorCode::SystemIoFailure if no_space_left(path) => StoreError::DiskFull {
            path: file.to_string(),
        },
        ErrorCode::SystemIoFailure => StoreError::Unavailable {
            datastore: file.to_string(),
            reason: format!("input/output error ({error}); check the disk and the kernel log"),
            // The log may have reached the disk although the sync of the commit failed.
            outcome_unknown: failure.extended_code == ffi::SQLITE_IOERR_FSYNC,
        },
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed => {
            let owner = find_lock_owner(path).unwrap_or_else(|| "another process".into());
            let seconds = wait.limit.as_secs_f64();
            unavailable(
                path,
                format!(
                    "{owner} has kept the file locked for {seconds:.1} s; end that process or retry"
                ),
            )
        }
        ErrorCode::ReadOnly => unavailable(
            path,
            "the file or its directory is read-only; make both writable (SQLite keeps its log in \
             the directory)",
        ),
        ErrorCode::PermissionDenied => StoreError::Unauthorized {
            reason: format!("permission denied on {file}; run as its owner"),
        },
        ErrorCode::CannotOpen => open_error(path),
        ErrorCode::DatabaseCorrupt => damaged(path, error),
        ErrorCode::NotADatabase => StoreError::Other(format!(
            "datastore {file} is not a SQLite database ({error}); move the file away or name \
             another file in datastore_path"
        )),
        _ => StoreError::Other(format!("datastore {file}: {error}")),
    }
}

fn damaged(path: &Path, error: &rusqlite::Error) -> StoreError {
    let file = path.display();
    StoreError::Other(format!(
        "datastore {file} is damaged ({error}); move the file away together with {file}-wal and \
         {file}-shm and load an export with `calico-ipam import`, or rescue the content with \
         `sqlite3 {file} .recover`"
    ))
}

pub(super) fn schema_to_store_error(
    path: &Path,
    error: SchemaError,
    wait: &BusyRetry,
) -> StoreError {
    let file = path.display();
    match error {
        SchemaError::Sqlite(error) => to_store_error(path, &error, wait),
        SchemaError::WalUnavailable(mode) => StoreError::Other(format!(
            "datastore {file} cannot be shared between processes: its file system has no shared \
             memory (journal mode stays `{mode}`); name a file on a local disk in datastore_path"
        )),
        SchemaError::InitialObjects(error) => error,
    }
}

/// Returns the error for a file with a schema version that this build does not support.
pub(super) fn version_error(path: &Path, found: i64) -> StoreError {
    let file = path.display();
    StoreError::Other(match found {
        0 => format!(
            "{file} is not a Calico datastore (the file is empty or belongs to another program); \
             move the file away or name another file in datastore_path"
        ),
        _ => format!(
            "datastore {file} has schema version {found} and this build supports version \
             {VERSION}; upgrade this program, or export with the version that wrote the file and \
             import here"
        ),
    })
}

/// Returns the error for `object_path`, a file or directory for the database `path` that cannot be
/// created or synced.
pub(super) fn creation_error(
    path: &Path,
    object: &str,
    object_path: &Path,
    error: &io::Error,
) -> StoreError {
    let place = object_path.display();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::DiskFull {
            path: path.display().to_string(),
        },
        ErrorKind::PermissionDenied => StoreError::Unauthorized {
            reason: format!("cannot create {object} {place}: {error}; run as root"),
        },
        _ => unavailable(
            path,
            format!("cannot create {object} {place}: {error}; name another file in datastore_path"),
        ),
    }
}

/// SQLite does not report why it could not open the file, so this function opens the file again.
fn open_error(path: &Path) -> StoreError {
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied => StoreError::Unauthorized {
            reason: format!("cannot open {}: {e}; run as root", path.display()),
        },
        Err(e) => unavailable(
            path,
            format!("cannot open the file: {e}; name another file in datastore_path"),
        ),
        Ok(_) if no_space_left(path) => StoreError::DiskFull {
            path: path.display().to_string(),
        },
        Ok(_) => unavailable(
            path,
            "cannot open the log beside the file; make the directory writable",
        ),
    }
}

/// SQLite reports a named pipe as an input/output error.
fn is_no_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// SQLite reports some failures on a full file system as input/output errors.
fn no_space_left(path: &Path) -> bool {
    statvfs(directory_of(path)).is_ok_and(|fs| {
        fs.blocks() > 0
            && (fs.blocks_available() == 0 || fs.files() > 0 && fs.files_available() == 0)
    })
}

pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn unavailable(path: &Path, reason: impl Into<String>) -> StoreError {
    StoreError::Unavailable {
        datastore: path.display().to_string(),
        reason: reason.into(),
        outcome_unknown: false,
    }
}

/// Finds a process that has a write lock on the database. Returns for example
/// `process 4711 (calico)`.
fn find_lock_owner(path: &Path) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let shared = with_suffix(path, "-shm");
    let inodes: Vec<u64> = [path, shared.as_path()]
        .iter()
        .filter_map(|p| Some(p.metadata().ok()?.ino()))
        .collect();
    let pid = find_writer(&locks, &inodes)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("process {pid} ({})", name.trim_end()))
}

/// Returns the ID of the process that has a write lock on one of the inodes, from the text of
/// `/proc/locks`. A line is like `1: POSIX ADVISORY WRITE 4711 08:01:123456 120 120`, and has `->`
/// for a waiting process.
fn find_writer(locks: &str, inodes: &[u64]) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (kind, _, mode) = (fields.next()?, fields.next()?, fields.next()?);
        let (pid, file) = (fields.next()?, fields.next()?);
        let inode: u64 = file.rsplit(':').next()?.parse().ok()?;
        (kind == "POSIX" && mode == "WRITE" && inodes.contains(&inode)).then(|| pid.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_read_is_reported_as_damage_and_a_failed_read_as_a_disk_error() {
        let error_of = |path: &str, code| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            to_store_error(Path::new(path), &error, &BusyRetry::new(Duration::ZERO)).to_string()
        };
        let error_text = |code| error_of("/tmp/calico.db", code);
        let cut = error_text(ffi::SQLITE_IOERR_SHORT_READ);
        assert!(
            cut.starts_with("datastore /tmp/calico.db is damaged (")
                && cut.contains("calico-ipam import"),
            "{cut}"
        );
        let failed = error_text(ffi::SQLITE_IOERR_READ);
        assert!(
            failed.contains("input/output error") && failed.contains("check the disk"),
            "{failed}"
        );
        let device = error_of("/dev/null", ffi::SQLITE_IOERR_SHMSIZE);
        assert!(
            device.contains("it is no regular file; name a file in datastore_path"),
            "{device}"
        );
    }

    #[test]
    fn lock_table_yields_the_writer_and_no_readers_or_waiters() {
        let locks = "1: POSIX  ADVISORY  READ 11 08:01:77 128 128\n\
                     2: POSIX  ADVISORY  WRITE 12 08:01:78 120 120\n\
                     3: POSIX  ADVISORY  WRITE 13 08:01:77 120 120\n\
                     3: -> POSIX  ADVISORY  WRITE 14 08:01:77 120 120\n";
        assert_eq!(find_writer(locks, &[77]), Some(13));
        assert_eq!(find_writer(locks, &[79]), None);
        assert_eq!(find_writer("", &[77]), None);
    }
}
