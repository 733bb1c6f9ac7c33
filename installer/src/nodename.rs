//! Writes `/var/lib/calico/nodename`, which calico-node otherwise writes (INST-56).

use std::fs;
use std::io::ErrorKind;

use installation::layout::Layout;
use installation::settings::Settings;
use os::atomic_file::{self, AtomicFileError, regular_file};

/// The file name in `/var/lib/calico`.
pub const NAME: &str = "nodename";

const MODE: u32 = 0o644;

/// The result of writing the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeNameFile {
    /// The file was missing or empty, and was written.
    Written,
    /// The file contains the name already.
    UpToDate,
    /// The file contains another name and stays: IPAM would lose the blocks of a renamed node.
    Other(String),
}

/// Writes the name of this node, without a line break, unless the file contains a name.
pub fn ensure(layout: &Layout, name: &str) -> Result<NodeNameFile, AtomicFileError> {
    let path = layout.state_dir().join(NAME);
    let failed = |source| AtomicFileError {
        action: "read",
        path: path.clone(),
        source,
    };
    match regular_file::utf8(&path) {
        Ok(present) if present.trim() == name => Ok(NodeNameFile::UpToDate),
        Ok(present) if !present.trim().is_empty() => {
            Ok(NodeNameFile::Other(present.trim().to_owned()))
        }
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
        Ok(_) | Err(_) => {
            fs::create_dir_all(layout.state_dir()).map_err(failed)?;
            atomic_file::replace(&path, name.as_bytes(), MODE)?;
            Ok(NodeNameFile::Written)
        }
    }
}

/// The name of the node, if the installer can determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeNameSource<'a> {
    /// `KUBERNETES_NODE_NAME` gives the name.
    Variable(&'a str),
    /// This machine is the node.
    Host(&'a str),
    /// The root is an image of a node, and this is the name of the machine that builds the image.
    Builder(&'a str),
    /// The name is unknown.
    Unknown,
}

/// Returns the name of the node that `layout` describes.
#[must_use]
pub fn find_source<'a>(settings: &'a Settings, layout: &Layout) -> NodeNameSource<'a> {
    match &settings.node_name {
        Some(name) => NodeNameSource::Variable(name),
        None if layout.is_container() || settings.host_name.is_empty() => NodeNameSource::Unknown,
        None if layout.is_this_machine() => NodeNameSource::Host(&settings.host_name),
        None => NodeNameSource::Builder(&settings.host_name),
    }
}

impl NodeNameSource<'_> {
    /// Calls [`ensure`] if the name of the node is known, and logs the result. An error is not
    /// fatal, because the configuration may contain the name, too.
    pub fn ensure_or_warn(self, layout: &Layout) {
        let (name, source) = match self {
            NodeNameSource::Variable(name) => (name, "KUBERNETES_NODE_NAME"),
            NodeNameSource::Host(name) => (name, "the host"),
            NodeNameSource::Builder(name) => {
                tracing::warn!(
                    name,
                    hint = "write each node's name to /var/lib/calico/nodename, or set KUBERNETES_NODE_NAME",
                    "the name of the node is unknown; using the name of this machine"
                );
                return;
            }
            NodeNameSource::Unknown => return,
        };
        match ensure(layout, name) {
            Ok(NodeNameFile::Written) => {
                tracing::info!("wrote /var/lib/calico/{NAME}: this node is {name}")
            }
            Ok(NodeNameFile::UpToDate) => {}
            Ok(NodeNameFile::Other(present)) => tracing::error!(
                present,
                name,
                source,
                hint = "after a rename, release the old name's addresses and remove the file",
                "/var/lib/calico/{NAME} has another node name, and stays"
            ),
            Err(error) => {
                tracing::warn!(
                    "cannot read or write the nodename file; the installation continues: {error}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;

    use super::*;

    #[test]
    fn special_nodename_file_is_reported_and_not_awaited() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        fs::create_dir_all(layout.state_dir()).unwrap();
        let fifo = layout.state_dir().join(NAME);
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        let error = ensure(&layout, "node1").unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
    }

    #[test]
    fn nodename_file_is_written_once_and_never_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        assert_eq!(ensure(&layout, "node1").unwrap(), NodeNameFile::Written);
        let file = layout.state_dir().join(NAME);
        assert_eq!(fs::read(&file).unwrap(), b"node1");
        assert_eq!(ensure(&layout, "node1").unwrap(), NodeNameFile::UpToDate);
        assert_eq!(
            ensure(&layout, "node2").unwrap(),
            NodeNameFile::Other("node1".into())
        );
        fs::write(&file, "node2\n").unwrap();
        assert_eq!(ensure(&layout, "node2").unwrap(), NodeNameFile::UpToDate);
        assert_eq!(fs::read(&file).unwrap(), b"node2\n");
        fs::write(&file, "\n").unwrap();
        assert_eq!(ensure(&layout, "node2").unwrap(), NodeNameFile::Written);
    }

    #[test]
    fn nodename_defaults_to_the_host_on_a_node_and_is_not_written_in_an_image() {
        let settings = |variables: &'static [(&str, &str)]| {
            let find = |name: &str| {
                variables
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            };
            Settings::from_environment(Variables::new(&find), "Host.Example").unwrap()
        };
        let (silent, said) = (
            settings(&[]),
            settings(&[("KUBERNETES_NODE_NAME", "node1")]),
        );
        let root = tempfile::tempdir().unwrap();
        let image = Layout::below(root.path());
        assert_eq!(
            find_source(&silent, &Layout::node()),
            NodeNameSource::Host("host.example")
        );
        assert_eq!(
            find_source(&silent, &image),
            NodeNameSource::Builder("host.example")
        );
        assert_eq!(
            find_source(&silent, &Layout::container()),
            NodeNameSource::Unknown
        );
        assert_eq!(
            find_source(&said, &image),
            NodeNameSource::Variable("node1")
        );
        find_source(&silent, &image).ensure_or_warn(&image);
        assert!(!image.state_dir().exists());
        NodeNameSource::Host("host.example").ensure_or_warn(&image);
        assert_eq!(
            fs::read(image.state_dir().join(NAME)).unwrap(),
            b"host.example"
        );
    }
}
