//! Reads the files that the command line names: regular files, pipes of the shell, and stdin for
//! `-`.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use libcalico::failure::Failure;
use os::input_file::{self, Limited};

use super::error::file_failure;

/// Maximum size in bytes of a configuration. Plugins accept no larger one.
pub(super) const MAX_CONFIGURATION: u64 = 1 << 20;
/// Maximum size in bytes of manifests.
pub(super) const MAX_MANIFESTS: u64 = 64 << 20;
/// Maximum size in bytes of a report, or of a file of `migrate export`.
pub(super) const MAX_REPORT: u64 = 512 << 20;
/// Maximum size in bytes of an export, which is read line by line.
pub(super) const MAX_EXPORT: u64 = 8 << 30;

/// Opens a file. The reader returns an error after `limit` bytes.
pub(super) fn open(path: &Path, limit: u64) -> Result<Box<dyn BufRead>, Failure> {
    Ok(
        match opened(path, limit).map_err(file_failure("read", path))? {
            Input::Stdin(stdin) => Box::new(BufReader::new(stdin)),
            Input::File(file) => Box::new(BufReader::new(file)),
        },
    )
}

/// Reads a file of at most `limit` bytes.
pub(super) fn bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    match opened(path, limit)? {
        Input::Stdin(mut stdin) => stdin.read_to_end(&mut contents)?,
        Input::File(mut file) => file.read_to_end(&mut contents)?,
    };
    Ok(contents)
}

/// Reads a UTF-8 file of at most `limit` bytes.
pub(super) fn text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(bytes(path, limit)?)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

enum Input {
    Stdin(Limited<io::Stdin>),
    File(Limited<std::fs::File>),
}

fn opened(path: &Path, limit: u64) -> io::Result<Input> {
    // stdin may be a terminal.
    if path.as_os_str() == "-" || path == Path::new("/dev/stdin") {
        return Ok(Input::Stdin(Limited::new(io::stdin(), limit)));
    }
    Ok(Input::File(Limited::new(input_file::open(path)?, limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::testing::Shell;

    #[test]
    fn reader_returns_an_error_after_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(text(&path, 5).unwrap(), "12345");
        let error = bytes(&path, 4).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::FileTooLarge, "it has more than 4 bytes")
        );
        let mut line = String::new();
        assert!(open(&path, 4).ok().unwrap().read_line(&mut line).is_err());
    }

    #[test]
    fn device_in_the_place_of_a_file_is_refused_by_each_command() {
        let shell = Shell::with_pool();
        let zero = "/dev/zero";
        for line in [
            &["apply", "-f", zero][..],
            &["release", "--from-report", zero],
            &["import", zero],
        ] {
            let error = shell.error(line);
            assert!(
                error.starts_with("cannot read /dev/zero: it is a device; "),
                "{line:?}: {error}"
            );
        }
    }
}
