//! Files in directories that others write as well, read without waiting and to a limit.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::atomic_file::There;

/// Reads a regular file, through a link, of at most [`netconf::MAX_INPUT`] bytes: plugins are given no more.
///
/// # Errors
/// The file cannot be read, is no regular file, or is larger.
pub(crate) fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let there = There::read(path).map_err(|error| error.source)?;
    // A link that leads nowhere has no mode.
    let there = there.filter(|there| !(there.is_link && there.mode == 0 && there.contents.is_empty()));
    there.map(|there| there.contents).ok_or_else(|| ErrorKind::NotFound.into())
}

/// Reads such a file as text, as Go does: U+FFFD is in the place of what is not UTF-8.
///
/// # Errors
/// The file cannot be read, is no regular file, or is larger.
pub(crate) fn text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&contents(path)?).into_owned())
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
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
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
        fs::write(&file, vec![b' '; netconf::MAX_INPUT + 1]).unwrap();
        assert_eq!(contents(&file).unwrap_err().kind(), ErrorKind::FileTooLarge);
        fs::write(&file, b"\xff").unwrap();
        assert_eq!(text(&file).unwrap(), "\u{fffd}");
    }
}
