//! Opens the files that a person names on a command line.

use std::fs::{File, FileType};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};

/// The type of the file system of the kernel's pipes without a name, as the shell makes them:
/// `PIPEFS_MAGIC`.
const PIPES: u64 = 0x5049_5045;

/// Opens a regular file, or a pipe of the shell such as `/dev/stdin` and `<(command)`, following
/// links. Waits for no other program: the open of a named pipe without a writer would never end,
/// and neither would the read of a device.
///
/// # Errors
/// Returns an error if the file cannot be opened, or is of another type.
pub fn open(path: &Path) -> io::Result<File> {
    let file = super::atomic_file::regular_file::open_any(path)?;
    let found = file.metadata()?.file_type();
    if found.is_file() {
        return Ok(file);
    }
    if found.is_fifo() && fstatfs(&file)?.f_type as u64 == PIPES {
        // The data may arrive later than the read.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        return Ok(file);
    }
    let kind = kind_of(found);
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!("it is {kind}; name a file, or /dev/stdin for a pipe"),
    ))
}

/// Returns the words for a type of file that is not read.
fn kind_of(file: FileType) -> &'static str {
    match file {
        _ if file.is_dir() => "a directory",
        _ if file.is_fifo() => "a named pipe",
        _ => "a device",
    }
}

/// A reader that returns an error instead of more than a number of bytes.
#[derive(Debug)]
pub struct Limited<R> {
    inner: R,
    limit: u64,
    left: u64,
}

impl<R> Limited<R> {
    /// Returns a reader of at most `limit` bytes of `inner`.
    pub fn new(inner: R, limit: u64) -> Self {
        Limited {
            inner,
            limit,
            left: limit,
        }
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A byte more than the limit shows that the file is too large.
        let wanted = usize::try_from(self.left.saturating_add(1))
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.inner.read(&mut buffer[..wanted])?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| {
            io::Error::new(
                ErrorKind::FileTooLarge,
                format!("it has more than {} bytes", self.limit),
            )
        })?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use rustix::fs::{CWD, mknodat};

    use super::*;

    #[test]
    fn regular_files_and_pipes_without_a_name_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "text").unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let pipe = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        for path in [&file, &pipe] {
            let mut opened = open(path).unwrap();
            let mut text = [0; 4];
            // The read begins before the data arrives.
            let read = std::thread::spawn(move || opened.read_exact(&mut text).map(|()| text));
            writer.write_all(b"text").unwrap();
            assert_eq!(read.join().unwrap().unwrap(), *b"text", "{path:?}");
        }
    }

    #[test]
    fn named_pipes_devices_and_directories_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for (path, kind) in [
            (&*fifo, "a named pipe"),
            (dir.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = open(path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("it is {kind}; ")), "{error}");
        }
        assert_eq!(
            open(&dir.path().join("none")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}
