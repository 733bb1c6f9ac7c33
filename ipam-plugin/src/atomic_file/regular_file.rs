//! Reads files in directories that other programs also write, without blocking and up to a size limit.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use netconf::MAX_INPUT;
use rustix::fs::OFlags;

/// Opens a regular file, following links, without blocking: opening a FIFO without a writer would block forever.
///
/// # Errors
/// Returns an error if the file cannot be opened or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    opened(path).map(|(file, _)| file)
}

/// Reads a regular file of at most [`MAX_INPUT`] bytes, following links. Plugins accept no larger input.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, or is larger.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    read(path).map(|(contents, _)| contents)
}

/// Reads such a file as text. As in Go, U+FFFD replaces invalid UTF-8.
///
/// # Errors
/// Returns an error if the file cannot be read, is not a regular file, or is larger.
pub fn text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&contents(path)?).into_owned())
}

/// Returns the error for a configuration larger than plugins accept.
pub(super) fn too_large() -> io::Error {
    let words = format!("it has more than the {MAX_INPUT} bytes that a plugin is given; remove what no plugin needs");
    io::Error::new(ErrorKind::FileTooLarge, words)
}

/// Reads such a file with its metadata.
pub(super) fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let (file, metadata) = opened(path)?;
    let mut contents = Vec::new();
    file.take(MAX_INPUT as u64 + 1).read_to_end(&mut contents)?;
    if contents.len() > MAX_INPUT {
        return Err(too_large());
    }
    Ok((contents, metadata))
}

fn opened(path: &Path) -> io::Result<(File, Metadata)> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let words = "it is no regular file; remove it, or configure another file name";
        return Err(io::Error::new(ErrorKind::InvalidInput, words));
    }
    Ok((file, metadata))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn read_of_what_is_no_regular_file_is_refused_and_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [fifo, link, nowhere, file] = ["fifo", "link", "nowhere", "file"].map(|name| dir.path().join(name));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o400.into(), 0).unwrap();
        symlink(&fifo, &link).unwrap();
        for path in [&fifo, &link, &dir.path().to_owned(), &Path::new("/dev/zero").to_owned()] {
            let error = contents(path).unwrap_err();
            assert!(error.to_string().starts_with("it is no regular file"), "{path:?}: {error}");
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
    fn read_of_more_than_plugins_are_given_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, vec![b' '; MAX_INPUT + 1]).unwrap();
        assert_eq!(contents(&file).unwrap_err().kind(), ErrorKind::FileTooLarge);
        fs::write(&file, b"\xff").unwrap();
        assert_eq!(text(&file).unwrap(), "\u{fffd}");
    }
}
