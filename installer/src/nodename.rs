//! `/var/lib/calico/nodename`: what calico-node would have written (INST-56).

use std::fs;
use std::io::{self, ErrorKind};

use crate::atomic_file::{self, AtomicFileError};
use crate::layout::Layout;

/// Its name in `/var/lib/calico`.
pub const NAME: &str = "nodename";

const MODE: u32 = 0o644;

/// What became of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeName {
    /// It was not there, and is now.
    Written,
    /// It says so already.
    Same,
    /// It says something else, and stays: to rename a node in IPAM is to lose its blocks.
    Other(String),
}

/// Why the file cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum NodeNameError {
    /// It cannot be read, or its directory not be made.
    #[error("cannot read {}: {source}", .path.display())]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] AtomicFileError),
}

/// Writes the name of this node, without a line break, where no name is written yet.
///
/// # Errors
/// `/var/lib/calico` cannot be written.
pub fn ensure(layout: &Layout, name: &str) -> Result<NodeName, NodeNameError> {
    let path = layout.state_dir().join(NAME);
    let failed = |source| NodeNameError::File { path: path.clone(), source };
    match fs::read_to_string(&path) {
        Ok(there) if there.trim() == name => Ok(NodeName::Same),
        Ok(there) if !there.trim().is_empty() => Ok(NodeName::Other(there.trim().to_owned())),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
        Ok(_) | Err(_) => {
            fs::create_dir_all(layout.state_dir()).map_err(failed)?;
            atomic_file::replace(&path, name.as_bytes(), MODE)?;
            Ok(NodeName::Written)
        }
    }
}

/// [`ensure`], for whom a missing file is no reason to stop: the configuration may have the name too.
pub fn ensure_or_warn(layout: &Layout, name: &str) {
    match ensure(layout, name) {
        Ok(NodeName::Written) => tracing::info!("this node is {name}"),
        Ok(NodeName::Same) => {}
        Ok(NodeName::Other(there)) => tracing::error!(
            "/var/lib/calico/{NAME} says that this node is {there}, KUBERNETES_NODE_NAME says {name}; the file stays. If \
             the node was renamed, release the addresses of {there} and remove the file"
        ),
        Err(error) => tracing::warn!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_once_and_never_changed() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        assert_eq!(ensure(&layout, "node1").unwrap(), NodeName::Written);
        let file = layout.state_dir().join(NAME);
        assert_eq!(fs::read(&file).unwrap(), b"node1");
        assert_eq!(ensure(&layout, "node1").unwrap(), NodeName::Same);
        assert_eq!(ensure(&layout, "node2").unwrap(), NodeName::Other("node1".into()));
        fs::write(&file, "node2\n").unwrap();
        assert_eq!(ensure(&layout, "node2").unwrap(), NodeName::Same);
        assert_eq!(fs::read(&file).unwrap(), b"node2\n");
        fs::write(&file, "\n").unwrap();
        assert_eq!(ensure(&layout, "node2").unwrap(), NodeName::Written);
    }
}
