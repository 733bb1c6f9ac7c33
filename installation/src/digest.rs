//! SHA-256 digests, by which files are compared.

use std::io::{self, ErrorKind, Read};
use std::path::Path;

use sha2::{Digest as _, Sha256};

use os::atomic_file::regular_file;

const CHUNK: usize = 64 * 1024;

/// Returns the SHA-256 of some bytes, in lower-case hexadecimal.
#[must_use]
pub fn of_bytes(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Returns the SHA-256 of a file's contents.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a regular file.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut file = regular_file::open(path)?;
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hexadecimal(&digest.finalize())),
            Ok(length) => digest.update(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes include those with which upstream tests its comparison of files.
    #[test]
    fn file_digest_equals_the_digest_of_its_bytes_at_all_sizes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        for size in [0, 1, 63_999, 64_000, CHUNK - 1, CHUNK, CHUNK + 1, 256_000] {
            let mut bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            std::fs::write(&file, &bytes).unwrap();
            assert_eq!(of_file(&file).unwrap(), of_bytes(&bytes), "{size}");
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
                assert_ne!(of_file(&file).unwrap(), of_bytes(&bytes), "{size}");
            }
        }
    }

    #[test]
    fn digest_equals_sha256sum() {
        assert_eq!(
            of_bytes(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
