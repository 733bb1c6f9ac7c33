//! Compresses the rotated files of the plugins' log, and removes compressed files past their age or
//! number. The plugins compress nothing, because a pod would wait for them.
//!
//! A plugin that has a renamed file open continues to append to it. So a file is compressed only
//! after a time without a write, and the original is removed only if it has not changed since.

use std::fs::{self, File, Metadata, TryLockError};
use std::future::pending;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use libcalico::failure::Failure;
use netconf::conf::LogConf;
use node_process::logging::compressed::{LogText, frame};
use node_process::logging::{
    FILE_MODE, Retention, RotatedName, compressed_path, directory, expired, list_rotated,
};
use os::atomic_file::{self, AtomicFileError, Draft, regular_file};
use tokio::time::sleep;

use super::deferred_dels::installed_conf_path;
use installation::layout::Layout;
use installation::node_conf;
use installation::settings::Settings;

/// The interval between two passes unless `CNI_LOG_COMPRESSION_INTERVAL` sets another. One pass
/// compresses one file.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);

/// Time since the last write after which no plugin is expected to write to a renamed file. Runtimes
/// end calls earlier.
const QUIET: Duration = Duration::from_secs(15 * 60);

/// The size of a part, which is compressed without a pause.
const PART_BYTES: u64 = 512 * 1024;

/// The pause between two parts, in which the agent does its other work.
const PART_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of attempts to lock the directory of the log. A rotation locks it for a moment.
const LOCK_ATTEMPTS: u32 = 20;

/// The pause after a failed attempt.
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// The outcome of a pass.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pass {
    /// The compressed file that the pass wrote.
    written: Option<PathBuf>,
    /// The number of compressed files that the pass removed.
    removed: usize,
}

/// Reasons why no file is compressed.
#[derive(Debug, thiserror::Error)]
enum CompressionError {
    #[error(
        "the directory of the plugins' log file {} is not mounted in this container; mount the \
         node's directory at the same path", .0.display()
    )]
    NotMounted(PathBuf),
    #[error("{0}")]
    Failure(Failure),
}

impl From<AtomicFileError> for CompressionError {
    fn from(error: AtomicFileError) -> Self {
        CompressionError::Failure(error.into())
    }
}

/// Runs a pass over the rotated files after each `interval`; `None` to run none. Never returns.
///
/// The first pass comes after an interval: an agent that the compressor ends has renewed the
/// plugins' token before.
pub async fn compress_repeatedly(interval: Option<Duration>, settings: &Settings, layout: &Layout) {
    let Some(interval) = interval else {
        return pending().await;
    };
    let mut reported = None;
    loop {
        sleep(interval).await;
        let Some(conf) = log_conf(settings, layout) else {
            continue;
        };
        reported = match run_pass(&conf, layout, SystemTime::now()).await {
            Ok(Pass { written, removed }) => {
                if let Some(written) = written {
                    tracing::info!("compressed a rotated log file into {}", written.display());
                }
                if removed > 0 {
                    tracing::info!("removed {removed} rotated log files past their age or number");
                }
                None
            }
            Err(error) => {
                let reason = error.to_string();
                match error {
                    _ if reported.as_ref() == Some(&reason) => {}
                    CompressionError::NotMounted(_) => {
                        tracing::info!("rotated log files are not compressed: {reason}");
                    }
                    CompressionError::Failure(_) => {
                        tracing::warn!("rotated log files are not compressed: {reason}");
                    }
                }
                Some(reason)
            }
        };
    }
}

/// Returns the path of the plugins' log file for this process; `None` if they write no file.
/// `planned` is the configuration that the agent installs if there is none.
pub fn log_path(
    settings: &Settings,
    layout: &Layout,
    planned: Option<&LogConf>,
) -> Option<PathBuf> {
    let planned = planned
        .filter(|conf| !conf.log_file_path.is_empty())
        .cloned();
    log_conf(settings, layout)
        .or(planned)
        .map(|conf| layout.path(conf.log_file_path))
}

fn log_conf(settings: &Settings, layout: &Layout) -> Option<LogConf> {
    let text = regular_file::text(&installed_conf_path(settings, layout)).ok()?;
    let conf = node_conf::parse(&text, layout, &settings.net_dir).ok()?.log;
    (!conf.log_file_path.is_empty()).then_some(conf)
}

/// Removes the expired files, and compresses the oldest file with a number if it is due. A younger
/// file waits for its turn, because the order of the names is that of the lines.
async fn run_pass(
    conf: &LogConf,
    layout: &Layout,
    now: SystemTime,
) -> Result<Pass, CompressionError> {
    let log = &layout.path(&conf.log_file_path);
    if !layout.is_on_node(directory(log)) {
        return Err(CompressionError::NotMounted(log.clone()));
    }
    let rotated = match list_rotated(log) {
        // No plugin has written to the log yet.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Pass::default()),
        listed => listed.map_err(at(directory(log)))?,
    };
    atomic_file::sweep(directory(log));
    let mut pass = Pass::default();
    for file in expired(&rotated, Retention::from_conf(conf), now) {
        fs::remove_file(&file.path).map_err(at(&file.path))?;
        pass.removed += 1;
    }
    let oldest = rotated
        .iter()
        .find(|file| matches!(file.name, RotatedName::Numbered(_)));
    let Some((oldest, found)) =
        oldest.and_then(|file| Some((&file.path, fs::symlink_metadata(&file.path).ok()?)))
    else {
        return Ok(pass);
    };
    let is_quiet = |modified: SystemTime| {
        now.duration_since(modified)
            .is_ok_and(|quiet| quiet >= QUIET)
    };
    if found.is_file() && found.modified().is_ok_and(is_quiet) {
        pass.written = compress(log, oldest, &found).await?;
    }
    Ok(pass)
}

/// Compresses a file with a number and removes it. Returns the path of the compressed file, or
/// `None` if the file has changed or is gone. The directory is locked only for the replacement, so
/// that the plugins' rotations go on.
async fn compress(
    log: &Path,
    path: &Path,
    found: &Metadata,
) -> Result<Option<PathBuf>, CompressionError> {
    let source = regular_file::open(path).map_err(at(path))?;
    if has_changed(&source, found).map_err(at(path))? {
        return Ok(None);
    }
    let target = free_target(log, path, found.modified().map_err(at(path))?);
    let mut draft = Draft::beside(&target)?;
    loop {
        let mut part = Vec::new();
        (&source)
            .take(PART_BYTES)
            .read_to_end(&mut part)
            .map_err(at(path))?;
        if part.is_empty() {
            break;
        }
        draft.write(&frame(&part))?;
        sleep(PART_PAUSE).await;
    }
    let draft = draft.finish(FILE_MODE)?;

    let _lock = lock_directory(directory(log)).await?;
    if has_changed(&source, found).map_err(at(path))? {
        return Ok(None);
    }
    // A rotation may have renamed the file since.
    let rotated = list_rotated(log).map_err(at(directory(log)))?;
    let is_source =
        |path: &Path| fs::symlink_metadata(path).is_ok_and(|other| is_same_file(&other, found));
    let Some(present) = rotated
        .into_iter()
        .map(|file| file.path)
        .find(|path| is_source(path))
    else {
        return Ok(None);
    };
    draft.put_in_place()?;
    fs::remove_file(&present).map_err(at(&present))?;
    Ok(Some(target))
}

/// Locks the directory of the log as a rotation does. The agent renews the token in the same
/// thread, and any user who may list the directory can lock it. So this waits for a limited time,
/// and without blocking.
async fn lock_directory(directory: &Path) -> Result<File, CompressionError> {
    let lock = File::open(directory).map_err(at(directory))?;
    for _ in 0..LOCK_ATTEMPTS {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => sleep(LOCK_PAUSE).await,
            Err(TryLockError::Error(error)) => return Err(at(directory)(error)),
        }
    }
    let locked = format!(
        "another process keeps the directory {} locked",
        directory.display()
    );
    Err(CompressionError::Failure(Failure::new(locked).way_out(
        "`fuser -v` with this path names the processes that have it open",
    )))
}

/// Returns the path for the compressed file: that of the time of the last write, or with a later
/// time if a file with other text has that name. A file with the same text is there if the agent
/// ended before it removed the original.
fn free_target(log: &Path, path: &Path, modified: SystemTime) -> PathBuf {
    // Names have no earlier times.
    let mut time = modified.max(SystemTime::UNIX_EPOCH);
    loop {
        let target = compressed_path(log, time);
        if !target.exists() || has_text_of(&target, path).unwrap_or(false) {
            return target;
        }
        time += Duration::from_millis(1);
    }
}

fn has_text_of(compressed: &Path, path: &Path) -> io::Result<bool> {
    let mut decoded = LogText::new(BufReader::new(regular_file::open(compressed)?));
    let mut plain = regular_file::open(path)?;
    loop {
        let (mut part, mut other) = (Vec::new(), Vec::new());
        decoded.by_ref().take(PART_BYTES).read_to_end(&mut part)?;
        plain.by_ref().take(PART_BYTES).read_to_end(&mut other)?;
        if part != other || part.is_empty() {
            return Ok(part == other);
        }
    }
}

fn has_changed(file: &File, found: &Metadata) -> io::Result<bool> {
    let now = file.metadata()?;
    let version = |metadata: &Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    Ok(!is_same_file(&now, found) || version(&now) != version(found))
}

fn is_same_file(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

fn at(path: &Path) -> impl Fn(io::Error) -> CompressionError {
    move |source| CompressionError::Failure(Failure::new(path.display()).because(source))
}

#[cfg(test)]
mod tests;
