//! [`PodCidrs`]: the ranges that Kubernetes assigns to the pods of a node.

use crate::api::Node;
use crate::net::{Cidr, CidrParseError, IpVersion};

/// The pod ranges of a node, at most one per family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCidrs {
    node: String,
    v4: Option<Cidr>,
    v6: Option<Cidr>,
}

/// A node without usable pod ranges (CNI-110).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodCidrError {
    /// The node has no range.
    #[error("no podCidr for node {node}")]
    None {
        /// The node.
        node: String,
    },
    /// Several ranges of one family, and none of the other.
    #[error("node {node} has several podCIDRs of one family and none of the other: {found}")]
    OneFamily {
        /// The node.
        node: String,
        /// The ranges.
        found: String,
    },
    /// An entry that is not a CIDR.
    #[error("cannot read the podCIDRs of node {node}: {cause}")]
    Cidr {
        /// The node.
        node: String,
        /// The parser's error.
        cause: CidrParseError,
    },
    /// A missing range of the requested family.
    #[error("no IPv{version} podCIDR for node {node}")]
    Family {
        /// The node.
        node: String,
        /// The family.
        version: IpVersion,
    },
}

impl PodCidrs {
    /// Reads the ranges of a node from `spec.podCIDRs` of the Kubernetes node, which the v3 form
    /// contains in its status. Several ranges of one family are accepted only if the node also has
    /// one of the other (CNI-110).
    pub fn of(node: &Node) -> Result<Self, PodCidrError> {
        let name = || node.metadata.name.clone();
        let listed = node
            .status
            .as_ref()
            .and_then(|status| status["podCIDRs"].as_array());
        let texts: Vec<&str> = listed
            .into_iter()
            .flatten()
            .filter_map(|cidr| cidr.as_str())
            .collect();
        let mut found = PodCidrs {
            node: name(),
            v4: None,
            v6: None,
        };
        for text in &texts {
            let cidr: Cidr = text.parse().map_err(|cause| PodCidrError::Cidr {
                node: name(),
                cause,
            })?;
            match cidr.version() {
                IpVersion::V4 => found.v4 = Some(cidr),
                IpVersion::V6 => found.v6 = Some(cidr),
            }
        }
        match (found.v4, found.v6) {
            (None, None) => Err(PodCidrError::None { node: name() }),
            (None, _) | (_, None) if texts.len() > 1 => Err(PodCidrError::OneFamily {
                node: name(),
                found: texts.join(", "),
            }),
            _ => Ok(found),
        }
    }

    /// Returns the range of a family, or an error if the node has none.
    pub fn of_family(&self, version: IpVersion) -> Result<Cidr, PodCidrError> {
        let found = if version == IpVersion::V4 {
            self.v4
        } else {
            self.v6
        };
        found.ok_or_else(|| PodCidrError::Family {
            node: self.node.clone(),
            version,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::node::from_kubernetes;
    use super::*;

    fn of(spec: Value) -> Result<[Option<String>; 2], String> {
        let object = json!({ "metadata": { "name": "n1" }, "spec": spec });
        let node = Value::Object(from_kubernetes(object.as_object().unwrap().clone()));
        let found = PodCidrs::of(&serde_json::from_value(node).unwrap())
            .map_err(|error| error.to_string())?;
        let text = |version| found.of_family(version).ok().map(|cidr| cidr.to_string());
        Ok([text(IpVersion::V4), text(IpVersion::V6)])
    }

    #[test]
    fn last_pod_cidr_of_each_family_is_used() {
        let (v4, v6) = (
            Some("10.244.7.0/24".to_owned()),
            Some("fd00:244:7::/64".to_owned()),
        );
        for (listed, expected) in [
            (json!(["10.244.7.0/24"]), [v4.clone(), None]),
            (json!(["fd00:244:7::/64"]), [None, v6.clone()]),
            (
                json!(["10.244.7.0/24", "fd00:244:7::/64"]),
                [v4.clone(), v6.clone()],
            ),
            (
                json!(["10.1.0.0/24", "fd00:244:7::/64", "10.244.7.0/24"]),
                [v4, v6],
            ),
        ] {
            assert_eq!(of(json!({ "podCIDRs": listed })), Ok(expected), "{listed}");
        }
    }

    #[test]
    fn ambiguous_or_invalid_pod_cidrs_are_an_error() {
        for (spec, expected) in [
            (json!({}), "no podCidr for node n1"),
            (
                json!({ "podCIDR": "10.244.7.0/24" }),
                "no podCidr for node n1",
            ),
            (json!({ "podCIDRs": [] }), "no podCidr for node n1"),
            (
                json!({ "podCIDRs": ["10.1.0.0/24", "10.2.0.0/24"] }),
                "node n1 has several podCIDRs of one family and none of the other: 10.1.0.0/24, \
                 10.2.0.0/24",
            ),
            (
                json!({ "podCIDRs": ["fd00::/64", "fd01::/64"] }),
                "several podCIDRs of one family",
            ),
            (
                json!({ "podCIDRs": ["10.1.0.0"] }),
                "cannot read the podCIDRs of node n1: ",
            ),
        ] {
            let error = of(spec.clone()).unwrap_err();
            assert!(error.contains(expected), "{spec}: {error}");
        }
        let node =
            json!({ "metadata": { "name": "n1" }, "status": { "podCIDRs": ["10.1.0.0/24"] } });
        let found = PodCidrs::of(&serde_json::from_value(node).unwrap()).unwrap();
        assert_eq!(
            found.of_family(IpVersion::V6).unwrap_err().to_string(),
            "no IPv6 podCIDR for node n1"
        );
    }
}
