//! The name of the node that this process runs on.

/// The possible sources of a node's name, read by the caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeNameInputs<'a> {
    /// `nodename` of the network configuration.
    pub nodename: &'a str,
    /// Content of the nodename file; `None` if the file could not be read.
    pub nodename_file: Option<&'a str>,
    /// `hostname` of the network configuration, deprecated.
    pub hostname: &'a str,
    /// The host name reported by the kernel.
    pub os_hostname: &'a str,
}

/// The source of a node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeNameSource {
    /// `nodename`.
    Config,
    /// The nodename file.
    File,
    /// `hostname`, which is deprecated; callers log a warning.
    DeprecatedHostname,
    /// The kernel.
    OsHostname,
}

/// A node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// The name.
    pub name: String,
    /// The source of the name.
    pub source: NodeNameSource,
}

/// Returns the first input that is not empty, in the order of declaration (CNI-72). Returns `None` if all are empty.
///
/// White space around the file's content is removed. Upstream keeps a trailing line break as part of the name, and then
/// every object that it writes for the node fails validation.
pub fn node_name(inputs: NodeNameInputs<'_>) -> Option<NodeName> {
    let candidates = [
        (NodeNameSource::Config, inputs.nodename.to_owned()),
        (NodeNameSource::File, inputs.nodename_file.unwrap_or_default().trim().to_owned()),
        (NodeNameSource::DeprecatedHostname, inputs.hostname.to_owned()),
        (NodeNameSource::OsHostname, inputs.os_hostname.trim().to_lowercase()),
    ];
    let (source, name) = candidates.into_iter().find(|(_, name)| !name.is_empty())?;
    Some(NodeName { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_input_that_says_something_wins() {
        let all =
            NodeNameInputs { nodename: "N", nodename_file: Some("f\n"), hostname: "h", os_hostname: " Os.Example\n" };
        let name = |inputs| node_name(inputs).map(|n| (n.name, n.source));
        assert_eq!(name(all), Some(("N".into(), NodeNameSource::Config)));
        let all = NodeNameInputs { nodename: "", ..all };
        assert_eq!(name(all), Some(("f".into(), NodeNameSource::File)));
        for file in [None, Some(""), Some(" \n")] {
            let all = NodeNameInputs { nodename_file: file, ..all };
            assert_eq!(name(all), Some(("h".into(), NodeNameSource::DeprecatedHostname)));
            let all = NodeNameInputs { hostname: "", ..all };
            assert_eq!(name(all), Some(("os.example".into(), NodeNameSource::OsHostname)));
            assert_eq!(name(NodeNameInputs { os_hostname: "\n", ..all }), None);
        }
    }
}
