//! [`amend()`]: changes a file that other programs change as well.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use super::draft::{AtomicFileError, Change, Draft, Result};
use super::exchange::Replacement;
use super::regular_file::{MAX_SIZE, ReadFile, too_large};

/// Maximum number of attempts in which another program changes the file between the read and the
/// write.
const MAX_RACES: u32 = 20;

/// Maximum number of writes of one [`amend`], so that two programs do not rewrite the file forever.
const MAX_WRITES: u32 = 3;

/// Number of times that an incomplete or missing file is read again, because a program may be
/// writing it.
const READ_ATTEMPTS: u32 = 10;

const PAUSE: Duration = Duration::from_millis(20);

/// Reads a file, and for a short time reads it again while `is_whole` returns false for its
/// contents, `None` for a missing file. Finally returns the file as last read.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub fn read_complete(
    path: &Path,
    is_whole: impl Fn(Option<&[u8]>) -> bool,
) -> Result<Option<ReadFile>> {
    for _ in 0..READ_ATTEMPTS {
        let current = ReadFile::read(path)?;
        if is_whole(current.as_ref().map(|current| current.contents.as_slice())) {
            return Ok(current);
        }
        sleep(PAUSE);
    }
    ReadFile::read(path)
}

/// Changes a file until no change is needed. `change` gets the contents, `None` for a missing file,
/// and returns the wanted contents, or `None` if no change is needed. The permissions are widened
/// to `mode`, never narrowed. `is_whole` returns false for contents that a program may still be
/// writing.
///
/// # Errors
/// Returns an error if the file cannot be read or written. The error
/// [is contested](AtomicFileError::is_contested) if another program rewrites the file again and
/// again, or undoes each write. That program's file is then in place, or the error contains its new
/// name.
pub fn amend(
    path: &Path,
    mode: u32,
    is_whole: impl Fn(Option<&[u8]>) -> bool,
    change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
) -> Result<Change> {
    amend_by(Replacement::Exchange, path, mode, is_whole, change)
}

/// Does the same as [`amend()`], but replaces the file in the way of `replacement`.
///
/// # Errors
/// Returns the errors of [`amend()`].
pub fn amend_by(
    replacement: Replacement,
    path: &Path,
    mode: u32,
    is_whole: impl Fn(Option<&[u8]>) -> bool,
    mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
) -> Result<Change> {
    let (mut races, mut writes) = (0, 0);
    let busy = |reason: &str| io::Error::new(ErrorKind::ResourceBusy, reason);
    let contested = |reason: &str| AtomicFileError {
        action: "change",
        path: path.into(),
        source: busy(reason),
    };
    loop {
        let so_far = if writes > 0 {
            Change::Written
        } else {
            Change::Unchanged
        };
        let current = read_complete(path, &is_whole)?;
        let contents = change(current.as_ref().map(|current| current.contents.as_slice()));
        let contents = match (&current, contents) {
            (_, Some(contents)) => contents,
            (None, None) => return Ok(so_far),
            (Some(current), None) if current.grants(mode) => return Ok(so_far),
            (Some(current), None) => current.contents.clone(),
        };
        if writes == MAX_WRITES {
            return Err(contested("another program undoes each write of it"));
        }
        if contents.len() > MAX_SIZE {
            return Err(AtomicFileError {
                action: "write",
                path: path.into(),
                source: too_large(),
            });
        }
        let mut draft = Draft::beside(path)?;
        draft.write(&contents)?;
        let found_mode = current.as_ref().map_or(0, |current| current.mode);
        let owner = current.as_ref().and_then(|current| current.owner);
        if draft
            .finish_for(mode | found_mode & 0o777, owner)?
            .put_in_place_of(current.as_ref(), replacement)?
        {
            writes += 1;
        } else {
            races += 1;
        }
        if races == MAX_RACES {
            return Err(contested("another program writes it again and again"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    use super::*;

    fn whole(_: Option<&[u8]>) -> bool {
        true
    }

    fn with_line(current: Option<&[u8]>, line: &str) -> Option<Vec<u8>> {
        let text = String::from_utf8(current.unwrap_or_default().to_vec()).unwrap();
        (!text.lines().any(|found| found == line)).then(|| format!("{text}{line}\n").into_bytes())
    }

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn amend_writes_once_and_is_then_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        let amend = |mode| amend(&file, mode, whole, |current| with_line(current, "ours")).unwrap();
        assert_eq!(amend(0o600), Change::Written);
        let inode = || fs::metadata(&file).unwrap().ino();
        let before = inode();
        assert_eq!((amend(0o600), inode()), (Change::Unchanged, before));
        assert_eq!(names(dir.path()), ["conf"]);
    }

    #[test]
    fn amend_widens_the_mode_and_never_narrows_the_mode() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
        for (found, wanted, line, expected) in [
            (0o644, 0o600, "a", 0o644),
            (0o644, 0o600, "a", 0o644),
            (0o600, 0o644, "a", 0o644),
            (0o640, 0o600, "b", 0o640),
        ] {
            let _ = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&file)
                .unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(found)).unwrap();
            amend(&file, wanted, whole, |current| with_line(current, line)).unwrap();
            assert_eq!(mode(), expected, "{found:o} {wanted:o}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "a\nb\n");
    }

    #[test]
    fn amend_preserves_owner_and_group() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        fs::write(&file, "theirs\n").unwrap();
        // Without the permission to change owners, the owner is this process's user before and
        // after.
        let given = chown(&file, Some(1234), Some(2345)).is_ok();
        let before = fs::metadata(&file).unwrap();
        amend(&file, 0o600, whole, |current| with_line(current, "ours")).unwrap();
        let found = fs::metadata(&file).unwrap();
        assert_eq!((found.uid(), found.gid()), (before.uid(), before.gid()));
        assert_eq!((found.uid(), found.gid()) == (1234, 2345), given);
    }

    #[test]
    fn concurrent_change_is_merged_and_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        for before in [None, Some("before\n")] {
            before
                .iter()
                .for_each(|text| fs::write(&file, text).unwrap());
            let mut rounds = 0;
            let change = |current: Option<&[u8]>| {
                let wanted = with_line(current, "ours");
                rounds += 1;
                if rounds == 1 {
                    let beside = dir.path().join("beside");
                    fs::write(&beside, "theirs\n").unwrap();
                    fs::rename(&beside, &file).unwrap();
                }
                wanted
            };
            assert_eq!(amend(&file, 0o600, whole, change).unwrap(), Change::Written);
            assert_eq!(fs::read_to_string(&file).unwrap(), "theirs\nours\n");
            assert_eq!((names(dir.path()), rounds), (vec!["conf".to_owned()], 3));
        }
    }

    #[test]
    fn endless_concurrent_changes_end_with_an_error_and_the_foreign_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        fs::write(&file, "theirs 0\n").unwrap();
        let mut rounds = 0;
        let change = |current: Option<&[u8]>| {
            rounds += 1;
            fs::write(&file, format!("theirs {rounds}\n")).unwrap();
            with_line(current, "ours")
        };
        let error = amend(&file, 0o600, whole, change).unwrap_err().to_string();
        assert!(
            error.ends_with("conf: another program writes it again and again"),
            "{error}"
        );
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            format!("theirs {MAX_RACES}\n")
        );
        assert_eq!(names(dir.path()), ["conf"]);
    }

    /// Cilium renames the file as soon as it is written.
    #[test]
    fn amend_ends_when_a_missing_file_is_accepted_after_a_write() {
        let dir = tempfile::tempdir().unwrap();
        let (file, aside) = (dir.path().join("conf"), dir.path().join("conf.bak"));
        let mut calls = 0;
        let change = |current: Option<&[u8]>| {
            calls += 1;
            if current.is_some() {
                fs::rename(&file, &aside).unwrap();
                return Some(b"newer\n".to_vec());
            }
            (!aside.exists()).then(|| b"ours\n".to_vec())
        };
        assert_eq!(amend(&file, 0o600, whole, change).unwrap(), Change::Written);
        assert_eq!((names(dir.path()), calls), (vec!["conf.bak".to_owned()], 3));
        assert_eq!(fs::read_to_string(&aside).unwrap(), "ours\n");
    }

    #[test]
    fn amend_gives_up_against_a_program_that_undoes_each_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        fs::write(&file, "theirs\n").unwrap();
        let mut written = 0;
        let change = |current: Option<&[u8]>| {
            let current = current.unwrap();
            written += u32::from(current.ends_with(b"ours\n"));
            fs::write(&file, "theirs\n").unwrap();
            with_line(Some(b"theirs\n"), "ours")
        };
        let error = amend(&file, 0o600, whole, change).unwrap_err();
        assert!(error.is_contested(), "{error}");
        assert!(
            error
                .to_string()
                .ends_with("conf: another program undoes each write of it"),
            "{error}"
        );
        assert_eq!(written, MAX_WRITES);
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs\n");
    }

    #[test]
    fn incomplete_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        fs::write(&file, "half").unwrap();
        let looks = std::cell::Cell::new(0);
        let is_whole = |current: Option<&[u8]>| {
            looks.set(looks.get() + 1);
            match looks.get() {
                1 => fs::remove_file(&file).unwrap(),
                2 => fs::write(&file, "theirs\n").unwrap(),
                _ => {}
            }
            current.is_some_and(|current| current.ends_with(b"\n"))
        };
        amend(&file, 0o600, is_whole, |current| with_line(current, "ours")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs\nours\n");
        fs::write(&file, "damaged").unwrap();
        let change =
            |current: Option<&[u8]>| (current != Some(b"new\n")).then(|| b"new\n".to_vec());
        assert_eq!(
            amend(&file, 0o600, |current| current != Some(b"damaged"), change).unwrap(),
            Change::Written
        );
    }

    #[test]
    fn amended_link_becomes_a_file_and_its_target_is_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let (file, elsewhere) = (dir.path().join("conf"), dir.path().join("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        for text in ["", "theirs\n"] {
            if !text.is_empty() {
                fs::write(&elsewhere, text).unwrap();
                fs::remove_file(&file).unwrap();
                std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
            }
            amend(&file, 0o600, whole, |current| with_line(current, "ours")).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{text}ours\n"));
            assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
        }
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "theirs\n");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o644)).unwrap();
        amend(&file, 0, whole, |current| with_line(current, "ours")).unwrap();
        assert_eq!(
            fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777,
            0o644
        );
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let error = amend(&file, 0o600, whole, |current| with_line(current, "ours"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot read") && file.is_dir(), "{error}");
    }
}
