//! Names of WorkloadEndpoints: `<node>-<orchestrator>-<workload>-<endpoint>`, with every `-` in a
//! part doubled.

use crate::api::WorkloadEndpointSpec;
use crate::validation_error::{FieldError, ValidationError};

/// The length of four parts of one character with dashes between them.
const SHORTEST_NAME: usize = 7;

/// The identifiers from which a WorkloadEndpoint's name is built. The orchestrator selects the
/// field for the workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointIdentifiers {
    /// The node.
    pub node: String,
    /// The orchestrator.
    pub orchestrator: String,
    /// The name of the interface inside the container.
    pub endpoint: String,
    /// The workload, for orchestrators other than `k8s`, `cni` and `libnetwork`.
    pub workload: String,
    /// The pod, for `k8s`.
    pub pod: String,
    /// The container ID of the sandbox, for `cni`.
    pub container_id: String,
}

/// A text that is not the name of a WorkloadEndpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointNameError {
    /// The text is empty.
    #[error("a WorkloadEndpoint name must not be empty")]
    Empty,
    /// The text has more than four parts.
    #[error(
        "the WorkloadEndpoint name {name:?} has {parts} parts, more than the four allowed; \
         write a '-' inside a part as '--'"
    )]
    TooManyParts {
        /// The text.
        name: String,
        /// The number of its parts.
        parts: usize,
    },
}

impl EndpointIdentifiers {
    /// Returns the identifiers of a stored endpoint.
    pub fn of(spec: &WorkloadEndpointSpec) -> Self {
        EndpointIdentifiers {
            node: spec.node.clone(),
            orchestrator: spec.orchestrator.clone(),
            endpoint: spec.endpoint.clone(),
            workload: spec.workload.clone(),
            pod: spec.pod.clone(),
            container_id: spec.container_id.clone(),
        }
    }

    /// Returns the name. Fails if a part is empty, or begins or ends with `-`.
    pub fn name(&self) -> Result<String, ValidationError> {
        let mut parts = Vec::with_capacity(4);
        for segment in self.segments()? {
            if segment.value.is_empty() {
                return Err(FieldError::new(segment.field, "", "field should be assigned").into());
            }
            parts.push(segment.escaped()?);
        }
        Ok(parts.join("-"))
    }

    /// Returns the prefix of all names whose leading parts are these identifiers, up to the first
    /// empty one. Names of other endpoints may have the same prefix; check them with
    /// [`EndpointIdentifiers::matches`].
    pub fn prefix(&self) -> Result<String, ValidationError> {
        let mut prefix = String::new();
        for segment in self.segments()?.iter().take_while(|s| !s.value.is_empty()) {
            prefix.push_str(&segment.escaped()?);
            prefix.push('-');
        }
        Ok(prefix)
    }

    /// Returns true if each part of `name` equals its identifier, unless the identifier is empty.
    /// Without a node, no name matches.
    pub fn matches(&self, name: &str) -> bool {
        let parts = split(name);
        let Ok(segments) = self.segments() else {
            return false;
        };
        name.len() >= SHORTEST_NAME
            && parts.len() == segments.len()
            && segments
                .iter()
                .zip(&parts)
                .all(|(segment, part)| segment.value.is_empty() || segment.value == part)
    }

    /// Parses the identifiers in `name`, in which trailing parts may be missing, as in a prefix.
    pub fn parse(name: &str) -> Result<Self, EndpointNameError> {
        if name.is_empty() {
            return Err(EndpointNameError::Empty);
        }
        let parts = split(name);
        if parts.len() > 4 {
            return Err(EndpointNameError::TooManyParts {
                name: name.to_owned(),
                parts: parts.len(),
            });
        }
        let mut parts = parts.into_iter();
        let [node, orchestrator, workload, endpoint] =
            std::array::from_fn(|_| parts.next().unwrap_or_default());
        let mut ids = EndpointIdentifiers {
            node,
            orchestrator,
            endpoint,
            ..EndpointIdentifiers::default()
        };
        match ids.orchestrator.as_str() {
            "k8s" => ids.pod = workload,
            "cni" => ids.container_id = workload,
            "libnetwork" => {}
            _ => ids.workload = workload,
        }
        Ok(ids)
    }

    fn segments(&self) -> Result<[Segment<'_>; 4], FieldError> {
        if self.node.is_empty() {
            return Err(FieldError::missing("node", "field should be assigned"));
        }
        let workload = match self.orchestrator.as_str() {
            "k8s" => Segment {
                field: "pod",
                value: &self.pod,
            },
            "cni" => Segment {
                field: "containerID",
                value: &self.container_id,
            },
            "libnetwork" => Segment {
                field: "orchestrator",
                value: &self.orchestrator,
            },
            _ => Segment {
                field: "workload",
                value: &self.workload,
            },
        };
        Ok([
            Segment {
                field: "node",
                value: &self.node,
            },
            Segment {
                field: "orchestrator",
                value: &self.orchestrator,
            },
            workload,
            Segment {
                field: "endpoint",
                value: &self.endpoint,
            },
        ])
    }
}

struct Segment<'a> {
    field: &'static str,
    value: &'a str,
}

impl Segment<'_> {
    fn escaped(&self) -> Result<String, FieldError> {
        let dash_at = |end| {
            FieldError::new(
                self.field,
                self.value,
                format!("field must not {end} with a '-'"),
            )
        };
        if self.value.starts_with('-') {
            return Err(dash_at("begin"));
        }
        if self.value.ends_with('-') {
            return Err(dash_at("end"));
        }
        Ok(self.value.replace('-', "--"))
    }
}

/// Splits a name. The first character is never a separator, so that the node is never empty.
fn split(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = name.chars().peekable();
    let mut first = true;
    while let Some(c) = chars.next() {
        let separates = c == '-' && !first && chars.next_if_eq(&'-').is_none();
        first = false;
        match parts.last_mut() {
            Some(part) if !separates => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(node: &str, orchestrator: &str, workload: &str, endpoint: &str) -> EndpointIdentifiers {
        let mut ids = EndpointIdentifiers {
            node: node.into(),
            orchestrator: orchestrator.into(),
            endpoint: endpoint.into(),
            ..EndpointIdentifiers::default()
        };
        match orchestrator {
            "k8s" => ids.pod = workload.into(),
            "cni" => ids.container_id = workload.into(),
            "libnetwork" => {}
            _ => ids.workload = workload.into(),
        }
        ids
    }

    #[test]
    fn endpoint_names_match_upstreams_vectors() {
        for (of, name, prefix) in [
            (
                ids("node-1", "k8s", "web-0", "eth0"),
                "node--1-k8s-web--0-eth0",
                "node--1-k8s-web--0-",
            ),
            (
                ids("ip-10-0-0-1.ec2.internal", "k8s", "my-app-6f7d8-x2", "eth0"),
                "ip--10--0--0--1.ec2.internal-k8s-my--app--6f7d8--x2-eth0",
                "ip--10--0--0--1.ec2.internal-k8s-my--app--6f7d8--x2-",
            ),
            (
                ids("node-1", "cni", "abc123", "eth0"),
                "node--1-cni-abc123-eth0",
                "node--1-cni-abc123-",
            ),
            (
                ids("node-1", "libnetwork", "", "e1"),
                "node--1-libnetwork-libnetwork-e1",
                "node--1-libnetwork-libnetwork-",
            ),
            (
                ids("n", "openstack", "vm", "tap0"),
                "n-openstack-vm-tap0",
                "n-openstack-vm-",
            ),
        ] {
            assert_eq!(of.name().unwrap(), name);
            assert_eq!(
                EndpointIdentifiers {
                    endpoint: String::new(),
                    ..of.clone()
                }
                .prefix()
                .unwrap(),
                prefix
            );
            assert_eq!(EndpointIdentifiers::parse(name).unwrap(), of);
            assert!(of.matches(name));
        }
    }

    #[test]
    fn endpoint_prefix_ends_at_the_first_empty_part() {
        assert_eq!(ids("n", "", "", "").prefix().unwrap(), "n-");
        assert_eq!(ids("n", "k8s", "", "eth0").prefix().unwrap(), "n-k8s-");
        assert_eq!(
            ids("n", "cni", "c", "eth0").prefix().unwrap(),
            "n-cni-c-eth0-"
        );
    }

    #[test]
    fn endpoint_prefix_is_ambiguous_and_matches_is_exact() {
        let web = ids("n", "k8s", "web", "");
        let other = "n-k8s-web--1-eth0";
        assert!(other.starts_with(&web.prefix().unwrap()));
        assert!(!web.matches(other));
        assert!(web.matches("n-k8s-web-eth0"));
        assert!(!web.matches("n-k8s-web"));
        assert!(!web.matches("n-cni-web-eth0"));
        assert!(!ids("", "k8s", "web", "").matches("n-k8s-web-eth0"));
        assert!(!web.matches(""));
        assert!(
            !ids("n", "o", "w", "").matches("n-o-w-"),
            "shorter than any name"
        );
    }

    #[test]
    fn endpoint_name_errors_name_the_field() {
        for (of, text) in [
            (
                ids("", "k8s", "p", "eth0"),
                "node (field should be assigned)",
            ),
            (
                ids("n", "k8s", "", "eth0"),
                "pod = '' (field should be assigned)",
            ),
            (
                ids("n", "cni", "", "eth0"),
                "containerID = '' (field should be assigned)",
            ),
            (
                ids("n", "", "w", "eth0"),
                "orchestrator = '' (field should be assigned)",
            ),
            (
                ids("n", "k8s", "-p", "eth0"),
                "pod = '-p' (field must not begin with a '-')",
            ),
            (
                ids("n-", "k8s", "p", "eth0"),
                "node = 'n-' (field must not end with a '-')",
            ),
        ] {
            assert_eq!(
                of.name().unwrap_err().to_string(),
                format!("error with field {text}")
            );
        }
        assert!(ids("", "k8s", "p", "eth0").prefix().is_err());
        assert!(ids("n", "k8s", "p-", "").prefix().is_err());
    }

    #[test]
    fn malformed_endpoint_names_do_not_parse() {
        assert_eq!(
            EndpointIdentifiers::parse(""),
            Err(EndpointNameError::Empty)
        );
        let error = EndpointIdentifiers::parse("node--1-k8s-web---0-eth0").unwrap_err();
        assert!(
            matches!(error, EndpointNameError::TooManyParts { parts: 5, .. }),
            "{error}"
        );
    }

    #[test]
    fn endpoint_name_parts_may_be_missing_at_the_end() {
        assert_eq!(
            EndpointIdentifiers::parse("n").unwrap(),
            ids("n", "", "", "")
        );
        assert_eq!(
            EndpointIdentifiers::parse("n-k8s-web-").unwrap(),
            ids("n", "k8s", "web", "")
        );
    }

    proptest! {
        #[test]
        fn endpoint_names_round_trip(
            node in "[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?",
            orchestrator in "k8s|cni|openstack",
            workload in "[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?",
            endpoint in "[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?",
        ) {
            let of = ids(&node, &orchestrator, &workload, &endpoint);
            let name = of.name().unwrap();
            prop_assert_eq!(EndpointIdentifiers::parse(&name).unwrap(), of.clone());
            prop_assert!(of.matches(&name));
        }

        #[test]
        fn any_text_parses_to_its_identifiers_or_is_refused(text in "[-a-zä]{0,20}|(n-)?(k8s-)?[-a-cä]{0,12}") {
            match EndpointIdentifiers::parse(&text) {
                Ok(of) => {
                    let is_of_n = (of.node.as_str(), of.orchestrator.as_str()) == ("n", "k8s");
                    // `name` fails if a part is missing, or begins or ends with a dash.
                    if let Ok(name) = of.name() {
                        prop_assert_eq!(&name, &text);
                        prop_assert!(of.matches(&text));
                        prop_assert_eq!(ids("n", "k8s", "", "").matches(&text), is_of_n);
                    }
                    prop_assert!(is_of_n || !ids("n", "k8s", "", "").matches(&text));
                }
                Err(EndpointNameError::Empty) => prop_assert_eq!(text, ""),
                Err(error) => prop_assert!(
                    error.to_string().contains(&format!("{text:?}")),
                    "{}",
                    error,
                ),
            }
        }
    }
}
