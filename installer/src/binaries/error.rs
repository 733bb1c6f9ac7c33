//! [`BinariesError`]: reasons for a failed installation of the programs.

use std::path::PathBuf;

use crate::atomic_file::AtomicFileError;
use crate::child_process::RunError;

/// Reasons for a failed installation of the programs. The programs installed earlier stay in place.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// No directory is usable (INST-29).
    #[error("found no writeable directory, exiting: {}; mount the node's plugin directory there for \
        writing", list(.skipped))]
    NoDirectory {
        /// The rejected directories with the reason for each.
        skipped: Vec<(PathBuf, &'static str)>,
    },
    /// A program's path is occupied by something other than a file.
    #[error("{} is no file and in the way of the plugin of that name; remove it, or name the plugin in \
        SKIP_CNI_BINARIES if it is not Calico's", .path.display())]
    NoFile {
        /// The occupied path.
        path: PathBuf,
    },
    /// A program of this container cannot be read, or its copy cannot be written.
    #[error(transparent)]
    Copy(#[from] AtomicFileError),
    /// The copy differs from the source.
    #[error("{} was written and reads back otherwise; is the disk sound?", .path.display())]
    Differs {
        /// The path of the program to install.
        path: PathBuf,
    },
    /// The copy cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
}

fn list(skipped: &[(PathBuf, &'static str)]) -> String {
    let words: Vec<String> = skipped.iter().map(|(path, why)| format!("{} {why}", path.display())).collect();
    words.join(", ")
}
