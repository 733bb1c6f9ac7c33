//! Names that are derived from other names: endpoints, host interfaces, status files, labels. The
//! name of this node.

mod host_interface;
mod workload_endpoint;

use std::fmt::Write;

use data_encoding::BASE32_NOPAD;
use sha3::{Digest, Sha3_256};

use crate::net::Cidr;

pub use host_interface::{
    DEFAULT_INTERFACE_PREFIX, InterfaceAlias, container_interface, interface_prefix, pod_interface,
};
pub use workload_endpoint::{EndpointIdentifiers, EndpointNameError};

/// Returns `10-0-0-0-26` for `10.0.0.0/26`. Stored objects have these names, so this form must not
/// change (IPAM-72).
pub fn cidr_name(cidr: &Cidr) -> String {
    cidr.to_string().replace(['.', ':', '/'], "-")
}

/// Returns `k8s default%2Fweb-0 eth0` for the endpoint `eth0` of the pod `default/web-0` (CNI-93).
pub fn endpoint_status_file(
    orchestrator: &str,
    namespace: &str,
    workload: &str,
    endpoint: &str,
) -> String {
    [
        escape(orchestrator),
        escape(&format!("{namespace}/{workload}")),
        escape(endpoint),
    ]
    .join(" ")
}

/// Escapes a path segment as Go's `url.PathEscape` does.
fn escape(segment: &str) -> String {
    percent_encoded(segment, |byte| b"-_.~$&+=:@".contains(&byte))
}

/// Escapes a text for a URL, except ASCII letters, digits and the bytes that `is_plain` accepts.
pub(crate) fn percent_encoded(text: &str, is_plain: fn(u8) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || is_plain(byte) {
            escaped.push(char::from(byte));
        } else {
            _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Returns true for a DNS name in lower case, without a check of its length.
pub fn is_dns_name(text: &str) -> bool {
    let is_edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split('.').map(str::as_bytes).all(|label| {
        label.first().is_some_and(is_edge)
            && label.last().is_some_and(is_edge)
            && label.iter().all(|byte| is_edge(byte) || *byte == b'-')
    })
}

/// The label with the [`hostname_hash`] of an affinity's owner.
pub const HOSTNAME_HASH_LABEL: &str = "projectcalico.org/hostname-hash";

/// Returns a hash of 52 characters, because a label's value cannot contain a long host name
/// (IPAM-70).
pub fn hostname_hash(host: &str) -> String {
    BASE32_NOPAD.encode(&Sha3_256::digest(host))
}

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

/// Returns the first input that is not empty, in the order of the fields of [`NodeNameInputs`]
/// (CNI-72).
///
/// White space around the file's content and the kernel's host name is removed, and the latter is
/// converted to lower case. With upstream's trailing line break in the name, objects of the node
/// fail validation.
pub fn node_name(inputs: NodeNameInputs<'_>) -> Option<NodeName> {
    let candidates = [
        (NodeNameSource::Config, inputs.nodename.to_owned()),
        (
            NodeNameSource::File,
            inputs.nodename_file.unwrap_or_default().trim().to_owned(),
        ),
        (
            NodeNameSource::DeprecatedHostname,
            inputs.hostname.to_owned(),
        ),
        (
            NodeNameSource::OsHostname,
            inputs.os_hostname.trim().to_lowercase(),
        ),
    ];
    let (source, name) = candidates.into_iter().find(|(_, name)| !name.is_empty())?;
    Some(NodeName { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidr_names_are_upstreams() {
        for (cidr, name) in [
            ("10.0.0.0/26", "10-0-0-0-26"),
            ("10.244.1.0/26", "10-244-1-0-26"),
            ("fd80:24e2:f998:72d6::/122", "fd80-24e2-f998-72d6---122"),
            ("fd00:10:244:1::/122", "fd00-10-244-1---122"),
            ("fd00:10:244::1:0:0:40/122", "fd00-10-244-0-1--40-122"),
        ] {
            assert_eq!(cidr_name(&cidr.parse().unwrap()), name);
        }
    }

    #[test]
    fn endpoint_status_file_name_is_escaped_and_joined_by_spaces() {
        assert_eq!(
            endpoint_status_file("k8s", "default", "testpod1", "eth0"),
            "k8s default%2Ftestpod1 eth0"
        );
        assert_eq!(
            endpoint_status_file("a b", "n", "p%,;?ä", "e:0@~"),
            "a%20b n%2Fp%25%2C%3B%3F%C3%A4 e:0@~"
        );
    }

    #[test]
    fn hashes_of_hosts_are_upstreams() {
        assert_eq!(
            hostname_hash("node-a"),
            "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA"
        );
        assert_eq!(
            hostname_hash("node-1"),
            "A3XPYDATRKB7Q4SM2O5FN4RXIHBFIL2PITFX26BAIP5XAB2X74CA"
        );
    }

    #[test]
    fn first_nonempty_node_name_input_wins() {
        let all = NodeNameInputs {
            nodename: "N",
            nodename_file: Some("f\n"),
            hostname: "h",
            os_hostname: " Os.Example\n",
        };
        let name = |inputs| node_name(inputs).map(|n| (n.name, n.source));
        assert_eq!(name(all), Some(("N".into(), NodeNameSource::Config)));
        let all = NodeNameInputs {
            nodename: "",
            ..all
        };
        assert_eq!(name(all), Some(("f".into(), NodeNameSource::File)));
        for file in [None, Some(""), Some(" \n")] {
            let all = NodeNameInputs {
                nodename_file: file,
                ..all
            };
            assert_eq!(
                name(all),
                Some(("h".into(), NodeNameSource::DeprecatedHostname))
            );
            let all = NodeNameInputs {
                hostname: "",
                ..all
            };
            assert_eq!(
                name(all),
                Some(("os.example".into(), NodeNameSource::OsHostname))
            );
            assert_eq!(
                name(NodeNameInputs {
                    os_hostname: "\n",
                    ..all
                }),
                None
            );
        }
    }
}
