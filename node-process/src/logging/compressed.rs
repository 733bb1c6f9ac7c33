//! Compression of rotated files. A compressed file consists of Zstandard frames, each with a part
//! of the log.
//!
//! The compressor ends the process if a read or a write fails, so it gets memory only. Separate
//! frames also let the caller pause between two parts.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// A reader of the text of a compressed file, which one or more frames may contain.
pub struct LogText<R> {
    frames: R,
    decoder: FrameDecoder,
}

/// Returns a frame with this part of a log. The frame contains the part as it is if the decoder
/// does not return the compressed part unchanged.
#[must_use]
pub fn frame(part: &[u8]) -> Vec<u8> {
    let compressed = compress_to_vec(part, CompressionLevel::Fastest);
    let mut decoded = Vec::with_capacity(part.len());
    let has_decoded = LogText::new(&compressed[..])
        .read_to_end(&mut decoded)
        .is_ok();
    if has_decoded && decoded == part {
        compressed
    } else {
        compress_to_vec(part, CompressionLevel::Uncompressed)
    }
}

impl<R: BufRead> LogText<R> {
    /// Creates a reader of the text in `frames`.
    pub fn new(frames: R) -> Self {
        LogText {
            frames,
            decoder: FrameDecoder::new(),
        }
    }
}

impl<R: BufRead> Read for LogText<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder
                    .decode_blocks(&mut self.frames, one)
                    .map_err(io::Error::other)?;
            } else if self.frames.fill_buf()?.is_empty() {
                return Ok(0);
            } else {
                self.decoder
                    .reset(&mut self.frames)
                    .map_err(io::Error::other)?;
            }
        }
        self.decoder.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::sync::PoisonError;

    use super::*;
    use crate::FORKS;

    /// Returns the lines of a log: many similar ones, and one with bytes that cannot be compressed.
    fn log() -> Vec<u8> {
        let line = |number: u32| {
            format!("2026-11-27 01:02:03.{number:03} [INFO][4711] cni-plugin/add 42: added\n")
        };
        let mut log: Vec<u8> = (0..9000)
            .flat_map(|number| line(number).into_bytes())
            .collect();
        let mut state = 1_u32;
        log.extend((0..200_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        }));
        log
    }

    fn text(frames: &[u8]) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        LogText::new(frames).read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn frames_of_a_log_are_smaller_and_decode_to_the_log() {
        let log = log();
        let frames: Vec<u8> = log.chunks(300_000).flat_map(frame).collect();
        assert!(
            frames.len() < log.len() / 2,
            "{} of {} bytes",
            frames.len(),
            log.len()
        );
        assert!(text(&frames).unwrap() == log);
        for part in [&b""[..], b"a", &[0_u8; 400_000]] {
            assert_eq!(text(&frame(part)).unwrap(), part);
        }
        assert_eq!(text(b"").unwrap(), b"");
    }

    #[test]
    fn incomplete_or_foreign_frame_is_an_error() {
        let frames = frame(&log());
        assert!(text(&frames[..frames.len() - 1]).is_err());
        assert!(text(&[&frames[..], b"no frame"].concat()).is_err());
        assert!(text(b"2026-11-27 01:02:03 plain text").is_err());
    }

    /// Returns the output of `zstd` for this input; `None` if the program is not installed.
    fn zstd(argument: &str, input: &[u8]) -> Option<Vec<u8>> {
        let _forks = FORKS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("zstd");
        command
            .args([argument, "--stdout"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut stdin = child.stdin.take()?;
        std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input));
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            Some(output.stdout)
        })
    }

    #[test]
    fn program_zstd_reads_our_frames_and_its_frames_are_read() {
        let log = log();
        let frames: Vec<u8> = log.chunks(300_000).flat_map(frame).collect();
        let Some(decoded) = zstd("--decompress", &frames) else {
            return;
        };
        assert!(decoded == log);
        let foreign = zstd("--compress", &log).unwrap();
        assert!(text(&[foreign, frames].concat()).unwrap() == log.repeat(2));
    }
}
