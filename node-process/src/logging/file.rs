//! The log file: many short-lived processes append to it concurrently, and any process that finds
//! it full rotates it.
//!
//! Each line is one `write` on an `O_APPEND` descriptor, so that lines of different processes do
//! not mix. The directory is locked for a rotation. A process that has the renamed file open
//! continues to append to it, so the rename loses no line. Unlike `tracing-rolling-file`,
//! file-rotate panics when a file vanishes, and logroller starts a thread.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use chrono::{DateTime, Local};
use tracing_rolling_file::{RollingCondition, RollingFileAppender};

use super::rotated::{Retention, directory, rotated_path};

/// Mode of the log file and of its rotated files, whatever the umask is (CNI-229).
pub const FILE_MODE: u32 = 0o644;

/// A log file open for appending.
pub(super) struct LogFile {
    path: PathBuf,
    retention: Retention,
    current: Mutex<File>,
}

impl LogFile {
    /// Opens the file. Creates it (0644) and its directories (0755) if they are missing.
    pub(super) fn open(path: &Path, retention: Retention) -> io::Result<Self> {
        if path.to_str().is_none() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path is not UTF-8",
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            retention,
            current: Mutex::new(open_append(path)?),
        })
    }

    /// Appends one line, and rotates the file first if it would become too large.
    pub(super) fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_full(&current, line.len())? {
            // If the rotation fails, the file exceeds its maximum size, but the line is not lost.
            if let Ok(fresh) = self.rotate(&current, line.len()) {
                *current = fresh;
            }
        }
        current.write_all(line)
    }

    fn is_full(&self, file: &File, more: usize) -> io::Result<bool> {
        let len = file.metadata()?.len();
        Ok(len > 0 && len.saturating_add(more as u64) > self.retention.max_bytes)
    }

    /// Rotates the file, unless another process does or did so. Returns the file to append to.
    fn rotate(&self, current: &File, more: usize) -> io::Result<File> {
        let lock = File::open(directory(&self.path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return current.try_clone(),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let by_path = open_append(&self.path)?;
        if !is_same(&by_path, current)? && !self.is_full(&by_path, more)? {
            return Ok(by_path);
        }
        RollingFileAppender::new(&self.path, NeverByItself, self.retention.max_count)?
            .rollover()?;
        self.remove_aged();
        let fresh = open_append(&self.path)?;
        fresh.set_permissions(Permissions::from_mode(FILE_MODE))?;
        Ok(fresh)
    }

    /// Removes aged files. Numbers may be missing, because the agent compresses files.
    fn remove_aged(&self) {
        let Some(limit) = SystemTime::now().checked_sub(self.retention.max_age) else {
            return;
        };
        for number in 1..=self.retention.max_count {
            let rotated = rotated_path(&self.path, number);
            let Ok(modified) = fs::metadata(&rotated).and_then(|meta| meta.modified()) else {
                continue;
            };
            if modified < limit {
                let _ = fs::remove_file(rotated);
            }
        }
    }
}

/// A condition that never triggers, because the library counts only this process's writes.
#[derive(Debug)]
struct NeverByItself;

impl RollingCondition for NeverByItself {
    fn should_rollover(&mut self, _now: &DateTime<Local>, _size: u64) -> bool {
        false
    }
}

fn open_append(path: &Path) -> io::Result<File> {
    match OpenOptions::new().append(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => create(path),
        opened => opened,
    }
}

fn create(path: &Path) -> io::Result<File> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(directory(path))?;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(FILE_MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    Ok(file)
}

fn is_same(a: &File, b: &File) -> io::Result<bool> {
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;
    use crate::FORKS;

    const DAY: Duration = Duration::from_secs(86_400);

    fn retention(max_bytes: u64, max_count: usize) -> Retention {
        Retention {
            max_bytes,
            max_age: DAY,
            max_count,
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("metadata").mode() & 0o777
    }

    #[test]
    fn full_log_file_is_rotated_and_only_the_newest_files_retained() {
        let _no_forks = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("logs/cni.log");
        let log = LogFile::open(&path, retention(10, 2)).expect("open");
        for line in ["one....\n", "two....\n", "three..\n", "four...\n"] {
            log.append(line.as_bytes()).expect("append");
        }
        let text = |path: PathBuf| fs::read_to_string(path).expect("text");
        assert_eq!(text(path.clone()), "four...\n");
        assert_eq!(text(rotated_path(&path, 1)), "three..\n");
        assert_eq!(text(rotated_path(&path, 2)), "two....\n");
        assert!(!rotated_path(&path, 3).exists());
        assert_eq!(
            (
                mode(&path),
                mode(&rotated_path(&path, 1)),
                mode(directory(&path))
            ),
            (0o644, 0o644, 0o755)
        );
    }

    #[test]
    fn line_longer_than_the_size_limit_is_written_completely() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cni.log");
        let log = LogFile::open(&path, retention(4, 2)).expect("open");
        log.append(b"longer than four\n").expect("append");
        assert_eq!(
            fs::read_to_string(&path).expect("text"),
            "longer than four\n"
        );
    }

    #[test]
    fn rotated_log_files_past_their_age_are_removed_at_the_next_rotation() {
        let _no_forks = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cni.log");
        let old = File::create(rotated_path(&path, 1)).expect("create");
        old.set_modified(SystemTime::now() - 2 * DAY)
            .expect("set time");
        let log = LogFile::open(&path, retention(4, 5)).expect("open");
        log.append(b"aaaa").expect("append");
        assert!(rotated_path(&path, 1).exists(), "no rotation yet");
        log.append(b"bbbb").expect("append");
        assert_eq!(
            fs::read_to_string(rotated_path(&path, 1)).expect("text"),
            "aaaa"
        );
        assert!(!rotated_path(&path, 2).exists(), "the aged file is gone");
    }

    #[test]
    fn aged_log_file_after_a_missing_number_is_removed() {
        let _no_forks = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cni.log");
        let old = File::create(rotated_path(&path, 3)).expect("create");
        old.set_modified(SystemTime::now() - 2 * DAY)
            .expect("set time");
        let log = LogFile::open(&path, retention(4, 5)).expect("open");
        log.append(b"aaaa").expect("append");
        log.append(b"bbbb").expect("append");
        assert!(rotated_path(&path, 1).exists() && !rotated_path(&path, 2).exists());
        assert!(!rotated_path(&path, 4).exists(), "the aged file is gone");
    }

    #[test]
    fn log_file_renamed_by_another_program_is_recreated() {
        let _no_forks = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cni.log");
        let log = LogFile::open(&path, retention(4, 5)).expect("open");
        log.append(b"aaaa").expect("append");
        fs::rename(&path, dir.path().join("moved")).expect("rename");
        log.append(b"bbbb").expect("append");
        assert_eq!(fs::read_to_string(&path).expect("text"), "bbbb");
        assert!(!rotated_path(&path, 1).exists());
    }

    const LINES: usize = 2000;
    const WRITER: &str = "TEST_LOG_WRITER";

    /// The test starts itself in child processes that write lines.
    #[test]
    fn concurrent_rotation_by_processes_loses_no_line() {
        if let Ok(spec) = std::env::var(WRITER) {
            let (name, path) = spec.split_once('=').expect("name=path");
            return write_lines(name, Path::new(path));
        }
        let _forks = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("cni.log");
        let writers: Vec<Child> = ["a", "b", "c"].map(|name| spawn_writer(name, &path)).into();
        for mut writer in writers {
            assert!(writer.wait().expect("wait").success());
        }

        let mut lines: Vec<String> = fs::read_dir(dir.path())
            .expect("list")
            .map(|entry| fs::read_to_string(entry.expect("entry").path()).expect("text"))
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        assert!(rotated_path(&path, 5).exists(), "the test must rotate");
        assert!(
            !rotated_path(&path, 40).exists(),
            "nothing may have been dropped for its count"
        );
        lines.sort();
        lines.dedup();
        assert_eq!(lines.len(), 3 * 4 * LINES);
        assert!(
            lines.iter().all(|line| line.split(' ').count() == 3),
            "lines do not mix"
        );
    }

    fn write_lines(name: &str, path: &Path) {
        for number in 0..LINES {
            // As short-lived processes do.
            let log = LogFile::open(path, retention(16 * 1024, 40)).expect("open");
            for part in 0..4 {
                log.append(format!("{name} {number} {part}\n").as_bytes())
                    .expect("append");
            }
        }
    }

    fn spawn_writer(name: &str, path: &Path) -> Child {
        Command::new(std::env::current_exe().expect("own path"))
            .args([
                "--exact",
                "logging::file::tests::concurrent_rotation_by_processes_loses_no_line",
                "--quiet",
            ])
            .env(WRITER, format!("{name}={}", path.display()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("spawn")
    }
}
