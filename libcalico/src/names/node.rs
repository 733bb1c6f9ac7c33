//! Which node this is.

/// Where a node's name can come from; the caller reads them (CNI-72).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeNameInputs<'a> {
    /// `nodename` of the network configuration.
    pub nodename: &'a str,
    /// Content of the nodename file; `None` when it could not be read.
    pub nodename_file: Option<&'a str>,
    /// `hostname` of the network configuration, deprecated.
    pub hostname: &'a str,
    /// The host name that the kernel reports.
    pub os_hostname: &'a str,
}

/// Where a node's name came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeNameSource {
    /// `nodename`.
    Config,
    /// The nodename file.
    File,
    /// `hostname`: worth a warning, as it is deprecated.
    DeprecatedHostname,
    /// The kernel.
    OsHostname,
}

/// A node's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// The name.
    pub name: String,
    /// Where it came from.
    pub source: NodeNameSource,
}

/// The node's name: the first of the inputs that is not empty, in the order they are declared. `None` when all are.
///
/// The file's content loses its surrounding blanks: upstream keeps a trailing line break as part of the name, which no
/// node can have, so that nothing it then writes passes validation.
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
