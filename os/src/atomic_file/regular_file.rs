//! Reads files in directories that other programs also write, without blocking and up to a size
//! limit.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::draft::{AtomicFileError, Result};

/// Maximum size in bytes of a file that this module reads or `amend` writes. Plugins accept no
/// larger input.
pub const MAX_SIZE: usize = 1 << 20;

/// Opens a regular file, following links, without blocking: opening a FIFO without a writer would
/// block forever.
///
/// # Errors
/// Returns an error if the file cannot be opened or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    opened(path).map(|(file, _)| file)
}

/// Reads a regular file of at most [`MAX_SIZE`] bytes, following links.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, or is larger.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    read(path).map(|(contents, _)| contents)
}

/// Reads a regular file of at most `limit` bytes, following links.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, or is larger.
pub fn contents_up_to(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    read_up_to(path, limit, || {
        let reason = format!(
            "it has more than {limit} bytes; configure another file name, or remove what is not \
             needed"
        );
        io::Error::new(ErrorKind::FileTooLarge, reason)
    })
    .map(|(contents, _)| contents)
}

/// Reads a regular file of at most [`MAX_SIZE`] bytes that is UTF-8, following links.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, is larger, or is not UTF-8.
pub fn utf8(path: &Path) -> io::Result<String> {
    String::from_utf8(contents(path)?)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

/// Reads a regular file of at most [`MAX_SIZE`] bytes as text, following links. As in Go, U+FFFD
/// replaces invalid UTF-8.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, or is larger.
pub fn text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&contents(path)?).into_owned())
}

pub(super) fn too_large() -> io::Error {
    let reason = format!(
        "it has more than the {MAX_SIZE} bytes that plugins accept; remove settings that no plugin \
         needs"
    );
    io::Error::new(ErrorKind::FileTooLarge, reason)
}

pub(super) fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    read_up_to(path, MAX_SIZE, too_large)
}

fn read_up_to(
    path: &Path,
    limit: usize,
    too_large: impl FnOnce() -> io::Error,
) -> io::Result<(Vec<u8>, Metadata)> {
    let (file, metadata) = opened(path)?;
    let mut contents = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut contents)?;
    if contents.len() > limit {
        Err(too_large())
    } else {
        Ok((contents, metadata))
    }
}

fn opened(path: &Path) -> io::Result<(File, Metadata)> {
    let file = open_any(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let reason = "it is no regular file; remove it, or configure another file name";
        return Err(io::Error::new(ErrorKind::InvalidInput, reason));
    }
    Ok((file, metadata))
}

/// Opens a file of any type without blocking.
pub(crate) fn open_any(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

/// A file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadFile {
    /// The contents, following links; empty for a link to a missing file.
    pub contents: Vec<u8>,
    /// The mode, following links; 0 for a link to a missing file.
    pub mode: u32,
    /// User ID and group ID; `None` for a link: a file that replaces a link does not get the owner
    /// of the link's target.
    pub owner: Option<(u32, u32)>,
    /// True if the path is a symbolic link.
    pub is_link: bool,
}

impl ReadFile {
    /// Reads a file, following links. Returns `None` if the path does not exist; a link to a
    /// missing file counts as an empty file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not a regular file, or has more than
    /// [`MAX_SIZE`] bytes.
    pub fn read(path: &Path) -> Result<Option<ReadFile>> {
        let failed = |source| AtomicFileError {
            action: "read",
            path: path.into(),
            source,
        };
        let is_link = match fs::symlink_metadata(path) {
            Ok(found) => found.is_symlink(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match read(path) {
            Ok((contents, found)) => {
                let (mode, owner) = (
                    found.permissions().mode() & 0o7777,
                    (found.uid(), found.gid()),
                );
                let owner = (!is_link).then_some(owner);
                Ok(Some(ReadFile {
                    contents,
                    mode,
                    owner,
                    is_link,
                }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(is_link.then(|| ReadFile {
                contents: Vec::new(),
                mode: 0,
                owner: None,
                is_link,
            })),
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns true for a file that is not a link and whose mode has all bits of `mode`.
    pub fn grants(&self, mode: u32) -> bool {
        !self.is_link && self.mode & mode == mode
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn special_files_are_rejected_and_links_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, link, nowhere, file] =
            ["fifo", "link", "nowhere", "file"].map(|name| dir.path().join(name));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            0o400.into(),
            0,
        )
        .unwrap();
        symlink(&fifo, &link).unwrap();
        for path in [
            &fifo,
            &link,
            &dir.path().to_owned(),
            &Path::new("/dev/zero").to_owned(),
        ] {
            let error = contents(path).unwrap_err();
            assert!(
                error.to_string().starts_with("it is no regular file"),
                "{path:?}: {error}"
            );
        }
        fs::write(&file, "text").unwrap();
        fs::remove_file(&link).unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(text(&link).unwrap(), "text");
        symlink("none", &nowhere).unwrap();
        for path in [nowhere, dir.path().join("none")] {
            assert_eq!(contents(&path).unwrap_err().kind(), ErrorKind::NotFound);
        }
    }

    #[test]
    fn oversized_file_is_rejected_and_invalid_utf8_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, vec![b' '; MAX_SIZE + 1]).unwrap();
        assert_eq!(contents(&file).unwrap_err().kind(), ErrorKind::FileTooLarge);
        fs::write(&file, b"\xff").unwrap();
        assert_eq!(text(&file).unwrap(), "\u{fffd}");
    }

    #[test]
    fn special_and_oversized_files_are_rejected_by_the_amending_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("conf");
        let refusal = |path: &Path| ReadFile::read(path).unwrap_err().to_string();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        assert!(
            refusal(&path).contains("cannot read") && refusal(&path).contains("no regular file")
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(refusal(&link).contains("no regular file"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![b' '; MAX_SIZE + 1]).unwrap();
        assert!(
            refusal(&path).contains("more than the 1048576 bytes"),
            "{}",
            refusal(&path)
        );
        fs::write(&path, vec![b' '; MAX_SIZE]).unwrap();
        assert_eq!(
            ReadFile::read(&path).unwrap().unwrap().contents.len(),
            MAX_SIZE
        );
    }
}
