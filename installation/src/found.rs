//! [`FoundState`]: the comparison of a file with the record of its installation.

use std::io::ErrorKind;
use std::path::Path;

use crate::state::InstalledFile;
use crate::{conflist, digest, kubeconfig};
use os::atomic_file::regular_file;

/// A text in the first line of a kubeconfig written by calico-node.
const CALICO_NODE: &str = "Installed by calico/node";

/// The result of the comparison with the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundState {
    /// The file is missing.
    Missing,
    /// The file is unchanged.
    Same,
    /// The content of the file changes regularly, and no other writer is apparent.
    Renewed,
    /// Another program changed the file, as described here.
    Changed(String),
    /// The file cannot be examined, for this reason.
    Unreadable(String),
}

/// Compares a file with its record. A network configuration with all our plugins counts as
/// unchanged, because other programs add theirs.
pub fn inspect_file(path: &Path, installed: &InstalledFile) -> FoundState {
    let is_installed = |text: Vec<u8>| conflist::is_installed_in(&text, installed);
    let is_extended =
        || !installed.renderings.is_empty() && regular_file::contents(path).is_ok_and(is_installed);
    let present = match digest::of_file(path) {
        Ok(digest) => digest,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return FoundState::Missing;
        }
        Err(error) => return FoundState::Unreadable(error.to_string()),
    };
    match &installed.digest {
        Some(_) if installed.has_digest(&present) || is_extended() => FoundState::Same,
        Some(_) => FoundState::Changed("the file was changed after the installation".into()),
        None => check_renewed(path),
    }
}

fn check_renewed(path: &Path) -> FoundState {
    let is_kubeconfig = path
        .file_name()
        .is_some_and(|name| name == kubeconfig::NAME);
    let text = regular_file::text(path).unwrap_or_default();
    if is_kubeconfig
        && text
            .lines()
            .next()
            .is_some_and(|first| first.contains(CALICO_NODE))
    {
        return FoundState::Changed("calico-node wrote the file and renews its token".into());
    }
    FoundState::Renewed
}
