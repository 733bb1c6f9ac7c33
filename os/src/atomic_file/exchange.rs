//! [`Finished::put_in_place_of`]: replaces a file that other programs write as well.
//!
//! A comparison before a rename leaves a moment in which another program's new file is lost. Where
//! the system permits it, the draft and the file are therefore exchanged atomically, and the
//! replaced file is compared afterwards. Another program's file is put back by a second exchange.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::draft::{ATTEMPTS, DraftName, Finished, Result, sync_directory};
use super::regular_file::ReadFile;

/// The way in which a draft takes the place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// Exchanges the draft and the file, so that no version of another program is lost. Watchers of
    /// the directory see an `IN_MOVED_FROM` of the replaced file. Where the kernel or the file
    /// system refuses the exchange, this is a [`Rename`](Self::Rename).
    Exchange,
    /// Compares the file and then renames the draft over it. A version that another program writes
    /// in between is lost.
    Rename,
}

/// The kernel's `renameat2`, or a function of a test.
type Rename<'r> = &'r mut dyn FnMut(&Path, &Path, RenameFlags) -> Result<(), Errno>;

impl Finished {
    /// Replaces the file that was read as `expected`, or creates the file if `expected` is `None`.
    /// Returns false, and leaves the file as it is, if another program has changed it since it was
    /// read.
    ///
    /// # Errors
    /// Returns an error if the draft cannot be put in place, or if the directory cannot be synced,
    /// with the draft in place. Also returns an error if another program's file cannot be put back
    /// after an exchange: the draft may then be in place, and the error contains the new name of
    /// that file.
    pub fn put_in_place_of(
        self,
        expected: Option<&ReadFile>,
        replacement: Replacement,
    ) -> Result<bool> {
        match replacement {
            Replacement::Rename => self.rename_if_unchanged(expected),
            Replacement::Exchange => self.put_in_place_by(
                &mut |from, to, flags| renameat_with(CWD, from, CWD, to, flags),
                expected,
            ),
        }
    }

    fn rename_if_unchanged(self, expected: Option<&ReadFile>) -> Result<bool> {
        if ReadFile::read(&self.name.target)?.as_ref() != expected {
            return Ok(false);
        }
        self.put_in_place().map(|()| true)
    }

    fn put_in_place_by(mut self, rename: Rename<'_>, expected: Option<&ReadFile>) -> Result<bool> {
        let name = &mut self.name;
        let draft = ReadFile::read(&name.path)?;
        let flags = if expected.is_some() {
            RenameFlags::EXCHANGE
        } else {
            RenameFlags::NOREPLACE
        };
        match rename(&name.path, &name.target, flags) {
            Ok(()) => {}
            Err(Errno::EXIST | Errno::NOENT) => return Ok(false),
            // Some file systems do not support the flags, and a seccomp profile may forbid the
            // call.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                return self.rename_if_unchanged(expected);
            }
            Err(error) => return Err(name.error("rename the new file to", error.into())),
        }
        match expected {
            None => name.in_place = true,
            Some(expected) => match ReadFile::read(&name.path) {
                // Another installer's sweep may have removed the replaced file, which has the
                // draft's name.
                Ok(None) => {}
                Ok(Some(displaced)) if displaced == *expected => {}
                Ok(Some(displaced)) => {
                    return name
                        .restore_or_keep(rename, draft, Some(displaced))
                        .map(|()| false);
                }
                Err(error) => {
                    name.restore_or_keep(rename, draft, None)?;
                    return Err(error);
                }
            },
        }
        sync_directory(&name.target)?;
        Ok(true)
    }
}

impl DraftName {
    /// Puts another program's file back. If that fails, keeps the file under a name that no sweep
    /// removes, if it can, and returns an error with the name.
    fn restore_or_keep(
        &mut self,
        rename: Rename<'_>,
        draft: Option<ReadFile>,
        displaced: Option<ReadFile>,
    ) -> Result<()> {
        self.restore(rename, draft, displaced).map_err(|mut error| {
            // The path is no longer a draft's, so the drop must not remove the file.
            self.in_place = true;
            let names =
                [&self.target, &self.path].map(|path| path.with_added_extension("displaced"));
            let renamed = names
                .into_iter()
                .find(|name| fs::rename(&self.path, name).is_ok());
            let kept = renamed.unwrap_or_else(|| self.path.clone());
            let kind = if error.is_contested() {
                ErrorKind::ResourceBusy
            } else {
                ErrorKind::Other
            };
            let reason = format!(
                "{}; that program's file is {}",
                error.source,
                kept.display()
            );
            error.source = io::Error::new(kind, reason);
            error
        })
    }

    /// Exchanges `displaced`, another program's file under the draft's name, for `draft`, and
    /// repeats this with each newer file that it replaces.
    fn restore(
        &self,
        rename: Rename<'_>,
        draft: Option<ReadFile>,
        displaced: Option<ReadFile>,
    ) -> Result<()> {
        let (mut last_placed, mut displaced) = (draft, displaced);
        for _ in 0..ATTEMPTS {
            match rename(&self.path, &self.target, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                // The other program has removed the file, so it stays removed.
                Err(Errno::NOENT) => return Ok(()),
                Err(error) => {
                    return Err(self.error("restore another program's version of", error.into()));
                }
            }
            let newly_displaced = ReadFile::read(&self.path).unwrap_or(None);
            if newly_displaced == last_placed {
                return Ok(());
            }
            last_placed = std::mem::replace(&mut displaced, newly_displaced);
        }
        let source = io::Error::new(
            ErrorKind::ResourceBusy,
            "another program writes it again and again",
        );
        Err(self.error("restore another program's version of", source))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Draft;
    use super::*;

    fn directory() -> (tempfile::TempDir, PathBuf, Option<ReadFile>) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        write(&file, "before\n");
        let expected = ReadFile::read(&file).unwrap();
        (dir, file, expected)
    }

    fn finished(file: &Path) -> Finished {
        let mut draft = Draft::beside(file).unwrap();
        draft.write(b"ours\n").unwrap();
        draft.finish(0o600).unwrap()
    }

    /// Writes a file as other programs do: next to it, then renamed.
    fn write(file: &Path, text: &str) {
        let beside = file.with_extension("beside");
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, file).unwrap();
    }

    fn kernels(from: &Path, to: &Path, flags: RenameFlags) -> Result<(), Errno> {
        renameat_with(CWD, from, CWD, to, flags)
    }

    #[test]
    fn file_written_before_each_exchange_is_restored() {
        for writes in 1..=5 {
            let (dir, file, expected) = directory();
            let mut written = 0;
            let mut rename = |from: &Path, to: &Path, flags: RenameFlags| {
                if written < writes {
                    written += 1;
                    write(&file, &format!("theirs {written}\n"));
                }
                kernels(from, to, flags)
            };
            assert!(
                !finished(&file)
                    .put_in_place_by(&mut rename, expected.as_ref())
                    .unwrap()
            );
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                format!("theirs {writes}\n")
            );
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn directory_that_replaced_the_file_is_restored() {
        let (_dir, file, expected) = directory();
        let mut rename = |from: &Path, to: &Path, flags: RenameFlags| {
            if file.is_file() {
                fs::remove_file(&file).unwrap();
                fs::create_dir(&file).unwrap();
            }
            kernels(from, to, flags)
        };
        let error = finished(&file)
            .put_in_place_by(&mut rename, expected.as_ref())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no regular file"), "{error}");
        assert!(file.is_dir());
    }

    #[test]
    fn file_removed_before_the_restore_stays_removed() {
        let (_dir, file, expected) = directory();
        let mut exchanges = 0;
        let mut rename = |from: &Path, to: &Path, flags: RenameFlags| {
            exchanges += 1;
            if exchanges == 1 {
                write(&file, "theirs\n")
            } else {
                fs::remove_file(&file).unwrap()
            }
            kernels(from, to, flags)
        };
        assert!(
            !finished(&file)
                .put_in_place_by(&mut rename, expected.as_ref())
                .unwrap()
        );
        assert!(!file.exists());
    }

    #[test]
    fn unrestorable_file_is_saved_under_the_name_in_the_error() {
        let (dir, file, expected) = directory();
        let mut exchanges = 0;
        let mut rename = |from: &Path, to: &Path, flags: RenameFlags| {
            exchanges += 1;
            if exchanges > 1 {
                return Err(Errno::IO);
            }
            write(&file, "theirs\n");
            kernels(from, to, flags)
        };
        let error = finished(&file)
            .put_in_place_by(&mut rename, expected.as_ref())
            .unwrap_err()
            .to_string();
        let kept = dir.path().join("conf.displaced");
        assert!(
            error.ends_with(&format!("that program's file is {}", kept.display())),
            "{error}"
        );
        assert_eq!(fs::read_to_string(kept).unwrap(), "theirs\n");
    }

    #[test]
    fn unrestorable_file_stays_if_its_names_are_taken() {
        for taken_names in 0..=2 {
            let (dir, file, expected) = directory();
            let draft = finished(&file);
            let own_name = draft.path().to_owned();
            let names = [
                file.with_added_extension("displaced"),
                own_name.with_added_extension("displaced"),
            ];
            names
                .iter()
                .take(taken_names)
                .for_each(|name| fs::create_dir(name).unwrap());
            let mut exchanges = 0;
            let mut rename = |from: &Path, to: &Path, flags: RenameFlags| {
                exchanges += 1;
                if exchanges > 1 {
                    return Err(Errno::IO);
                }
                write(&file, "theirs\n");
                kernels(from, to, flags)
            };
            let error = draft
                .put_in_place_by(&mut rename, expected.as_ref())
                .unwrap_err()
                .to_string();
            let kept = names.get(taken_names).unwrap_or(&own_name);
            assert!(
                error.ends_with(&format!("that program's file is {}", kept.display())),
                "{error}"
            );
            assert_eq!(fs::read_to_string(kept).unwrap(), "theirs\n");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2 + taken_names);
        }
    }

    /// A rename onto a mount point fails with EBUSY.
    #[test]
    fn rename_onto_a_mount_point_is_not_contested() {
        let refused = |exchanges_before: u32| {
            let (_dir, file, expected) = directory();
            let mut exchanges = 0;
            let mut rename = |from: &Path, to: &Path, flags: RenameFlags| {
                exchanges += 1;
                if exchanges > exchanges_before {
                    return Err(Errno::BUSY);
                }
                write(&file, "theirs\n");
                kernels(from, to, flags)
            };
            finished(&file)
                .put_in_place_by(&mut rename, expected.as_ref())
                .unwrap_err()
        };
        for exchanges_before in [0, 1] {
            let error = refused(exchanges_before);
            assert!(!error.is_contested(), "{error}");
        }
    }

    #[test]
    fn replacement_by_rename_keeps_a_file_that_changed_since_it_was_read() {
        for (now, is_in_place) in [("before\n", true), ("theirs\n", false)] {
            let (dir, file, expected) = directory();
            write(&file, now);
            let replaced = finished(&file)
                .put_in_place_of(expected.as_ref(), Replacement::Rename)
                .unwrap();
            assert_eq!(replaced, is_in_place);
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                if is_in_place { "ours\n" } else { now }
            );
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn filesystem_without_exchange_compares_and_then_renames() {
        let mut rename = |_: &Path, _: &Path, _: RenameFlags| Err(Errno::INVAL);
        for (now, is_in_place) in [("before\n", true), ("theirs\n", false)] {
            let (_dir, file, expected) = directory();
            write(&file, now);
            assert_eq!(
                finished(&file)
                    .put_in_place_by(&mut rename, expected.as_ref())
                    .unwrap(),
                is_in_place
            );
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                if is_in_place { "ours\n" } else { now }
            );
        }
    }
}
