//! [`PrivateFile`]: a new file that a command writes.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use libcalico::failure::Failure;
use os::atomic_file::{AtomicFileError, Draft};

use super::error::file_failure;

/// Only the owner may read the file: the data name every pod, and may contain keys.
const MODE: u32 = 0o600;

/// A new file, which has its name from [`publish`](Self::publish) on. A command that fails or is
/// killed before that leaves no file of that name.
#[derive(Debug)]
pub(super) struct PrivateFile {
    draft: Draft,
    path: PathBuf,
}

impl PrivateFile {
    /// Begins the file. Fails if `path` exists.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let failed = file_failure("write", path);
        if fs::symlink_metadata(path).is_ok() {
            return Err(failed(exists()));
        }
        let draft =
            std::path::absolute(path).and_then(|absolute| Draft::beside(&absolute).map_err(source));
        Ok(PrivateFile {
            draft: draft.map_err(failed)?,
            path: path.to_owned(),
        })
    }

    /// Gives the complete file its name. Fails if the name exists by now.
    pub(super) fn publish(self) -> Result<(), Failure> {
        let failed = file_failure("write", &self.path);
        let publish = || {
            let finished = self.draft.finish(MODE).map_err(source)?;
            // A rename would replace a file.
            match fs::hard_link(finished.path(), &self.path) {
                Err(error)
                    if error.kind() != ErrorKind::AlreadyExists
                        && fs::symlink_metadata(&self.path).is_err() =>
                {
                    // Some file systems have no hard links.
                    finished.put_in_place().map_err(source)
                }
                linked => linked.map_err(|_| exists()),
            }
        };
        publish().map_err(failed)
    }
}

impl io::Write for PrivateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.draft.write(bytes).map_err(source)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn exists() -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, "File exists")
}

/// The command's own error names the file.
fn source(error: AtomicFileError) -> io::Error {
    error.source
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn failed_command_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export.jsonl");
        let mut file = PrivateFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert!(
            !path.exists(),
            "a killed command leaves no file of this name either"
        );
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut file = PrivateFile::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        file.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_that_another_process_creates_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("export.jsonl");
        let file = PrivateFile::create(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        for error in [
            file.publish().unwrap_err(),
            PrivateFile::create(&path).unwrap_err(),
        ] {
            assert!(error.to_string().contains("File exists"), "{error}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
