//! A file as it was read, for a comparison with the file that is replaced.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::draft::AtomicFileError;
use super::regular_file;

/// A file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFile {
    /// The contents, following links. A link to a missing file has none.
    pub contents: Vec<u8>,
    /// The mode, following links; 0 for a link to a missing file.
    pub mode: u32,
    /// The owner and group. `None` for a link: a file that replaces a link does not get its target's owner.
    pub owner: Option<(u32, u32)>,
    /// True if the name is a link.
    pub is_link: bool,
}

impl ReadFile {
    /// Reads a file. Returns `None` if it is missing.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a regular file, or has more than
    /// [`MAX_INPUT`](netconf::MAX_INPUT) bytes.
    pub fn read(path: &Path) -> Result<Option<ReadFile>, AtomicFileError> {
        let failed = |source| AtomicFileError { action: "read", path: path.into(), source };
        let is_link = match fs::symlink_metadata(path) {
            Ok(found) => found.is_symlink(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match regular_file::read(path) {
            Ok((contents, found)) => {
                let (mode, owner) = (found.permissions().mode() & 0o7777, (found.uid(), found.gid()));
                let owner = (!is_link).then_some(owner);
                Ok(Some(ReadFile { contents, mode, owner, is_link }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !is_link => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Some(ReadFile { contents: Vec::new(), mode: 0, owner: None, is_link }))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns true for a file that is not a link and whose mode includes `mode`.
    pub fn grants(&self, mode: u32) -> bool {
        !self.is_link && self.mode & mode == mode
    }
}

#[cfg(test)]
mod tests {
    use netconf::MAX_INPUT;

    use super::*;

    #[test]
    fn read_of_what_is_no_file_of_a_usual_size_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf");
        let refusal = |path: &Path| ReadFile::read(path).unwrap_err().to_string();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(refusal(&path).contains("cannot read") && refusal(&path).contains("no regular file"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refusal(&link).contains("no regular file"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b' '; MAX_INPUT + 1]).unwrap();
        assert!(refusal(&path).contains("more than the 1048576 bytes"), "{}", refusal(&path));
        fs::write(&path, vec![b' '; MAX_INPUT]).unwrap();
        assert_eq!(ReadFile::read(&path).unwrap().unwrap().contents.len(), MAX_INPUT);
    }
}
