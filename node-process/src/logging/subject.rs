//! [`Subject`]: the attachment of a call or of a deferred DEL, whose fields end log lines.

use std::fmt::Write as _;

use libcalico::names::EndpointIdentifiers;
use libcalico::variables::Variables;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::conf::NodeConf;
use netconf::{Call, CniArgs, NetConf};
use tracing::Span;

use crate::node_name;

/// Maximum number of characters of a value in [`Subject::line_suffix`], the length of the longest
/// Kubernetes name. An environment variable that is not validated may have more.
const MAX_CHARS: usize = 253;

const UNKNOWN_NODE: &str = "unknown";

/// The attachment of a call or of a deferred DEL. A field that does not apply is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the WorkloadEndpoint.
    pub endpoint: String,
}

impl Subject {
    /// Returns the attachment of a call; empty for a call without a container, such as STATUS.
    #[must_use]
    pub fn of_call(call: &Call) -> Self {
        if call.container_id.is_empty() {
            return Subject::default();
        }
        let pod = call
            .args
            .pod()
            .map(|pod| (pod.namespace, pod.name))
            .unwrap_or_default();
        Subject::new(&call.container_id, pod, &node_of(&call.conf), &call.ifname)
    }

    /// Returns the attachment of a workload.
    #[must_use]
    pub fn of_attachment(workload: &WorkloadIdentity) -> Self {
        let pod = match &workload.orchestrator {
            Orchestrator::Kubernetes(pod) => (pod.namespace.as_str(), pod.name.as_str()),
            Orchestrator::Cni(_) => Default::default(),
        };
        let node = if workload.node.is_empty() {
            UNKNOWN_NODE
        } else {
            &workload.node
        };
        Subject::new(&workload.container_id, pod, node, &workload.endpoint)
    }

    /// Returns the attachment of a call that cannot be decoded. `node` is the node section of the
    /// configuration, if readable.
    #[must_use]
    pub fn of_environment(variables: Variables<'_>, node: Option<&NodeConf>) -> Self {
        let text = |name: &str| variables.text(name, "");
        let args = text("CNI_ARGS");
        let pod = CniArgs::pod_as_written(&args);
        let node = node.map(|node| {
            node_of(&NetConf {
                node: node.clone(),
                ..NetConf::default()
            })
        });
        let node = node.as_deref().unwrap_or(UNKNOWN_NODE);
        Subject::new(
            &text("CNI_CONTAINERID"),
            (pod.namespace, pod.name),
            node,
            &text("CNI_IFNAME"),
        )
    }

    fn new(container_id: &str, (namespace, pod): (&str, &str), node: &str, ifname: &str) -> Self {
        let identifiers = EndpointIdentifiers {
            node: node.to_owned(),
            orchestrator: if pod.is_empty() { "cni" } else { "k8s" }.to_owned(),
            endpoint: ifname.to_owned(),
            pod: pod.to_owned(),
            container_id: container_id.to_owned(),
            ..EndpointIdentifiers::default()
        };
        let endpoint = identifiers.name().unwrap_or_default();
        Subject {
            container_id: container_id.into(),
            namespace: namespace.into(),
            pod: pod.into(),
            endpoint,
        }
    }

    /// Creates the span for work on this attachment, whose fields replace those of the call.
    /// `within` is the container of the call in which the work is done, or empty.
    #[must_use]
    pub fn span(&self, within: &str) -> Span {
        let [id, namespace, pod, endpoint] = self.fields().map(|(_, value)| value);
        tracing::error_span!(
            "attachment",
            ContainerID = id,
            Namespace = namespace,
            ReplayedBy = Some(within).filter(|within| !within.is_empty()),
            Pod = pod,
            WorkloadEndpoint = endpoint
        )
    }

    /// Returns ` key="value"` for each field that is not empty, ordered by key.
    #[must_use]
    pub fn line_suffix(&self) -> String {
        let mut text = String::new();
        for (key, value) in self.fields() {
            let Some(value) = value else { continue };
            let shown = value
                .char_indices()
                .nth(MAX_CHARS)
                .map_or(value, |(end, _)| &value[..end]);
            let _ = write!(text, " {key}={shown:?}");
        }
        text
    }

    fn fields(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("ContainerID", &self.container_id),
            ("Namespace", &self.namespace),
            ("Pod", &self.pod),
            ("WorkloadEndpoint", &self.endpoint),
        ]
        .map(|(key, value)| (key, Some(value.as_str()).filter(|value| !value.is_empty())))
    }
}

fn node_of(conf: &NetConf) -> String {
    node_name::without_logging(conf).unwrap_or_else(|| UNKNOWN_NODE.into())
}

#[cfg(test)]
mod tests {
    use netconf::read_call;

    use super::*;

    const CONF: &str = r#"{"cniVersion":"1.0.0","name":"net1","type":"calico","nodename":"node1"}"#;

    fn call(variables: &[(&str, &str)]) -> Call {
        let lookup = |name: &str| match variables.iter().find(|(key, _)| *key == name) {
            Some((_, value)) => Some((*value).to_owned()),
            None => match name {
                "CNI_COMMAND" => Some("ADD".into()),
                "CNI_CONTAINERID" => Some("c1".into()),
                "CNI_NETNS" | "CNI_PATH" => Some("/x".into()),
                "CNI_IFNAME" => Some("eth0".into()),
                _ => None,
            },
        };
        read_call(Variables::new(&lookup), || Ok(CONF.into())).unwrap()
    }

    #[test]
    fn log_subject_of_a_pod_has_four_fields_and_of_a_container_two() {
        let pod = call(&[("CNI_ARGS", "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-1")]);
        assert_eq!(
            Subject::of_call(&pod).line_suffix(),
            r#" ContainerID="c1" Namespace="default" Pod="web-1" WorkloadEndpoint="node1-k8s-web--1-eth0""#
        );
        let container = Subject::of_call(&call(&[])).line_suffix();
        assert_eq!(
            container,
            r#" ContainerID="c1" WorkloadEndpoint="node1-cni-c1-eth0""#
        );
    }

    #[test]
    fn log_subject_of_a_rejected_configuration_uses_the_node_name_if_readable() {
        let lookup = |name: &str| match name {
            "CNI_COMMAND" => Some("ADD".into()),
            "CNI_CONTAINERID" => Some("c1".into()),
            "CNI_NETNS" | "CNI_PATH" => Some("/x".into()),
            "CNI_IFNAME" => Some("eth0".into()),
            "CNI_ARGS" => Some("K8S_POD_NAMESPACE=default;K8S_POD_NAME=web".to_owned()),
            _ => None,
        };
        for (conf, node) in [
            (
                r#"{"name":"net1","nodename":"node1","calico_api_group":"v7"}"#,
                "node1",
            ),
            (r#"{"name":"net1","nodename":"node1","mtu":[]}"#, "node1"),
            (r#"{"name":"","nodename":"node1"}"#, "node1"),
            (r#"{"name":"net1","nodename":[]}"#, "unknown"),
            ("{", "unknown"),
        ] {
            let error = read_call(Variables::new(&lookup), || Ok(conf.into())).unwrap_err();
            let endpoint =
                Subject::of_environment(Variables::new(&lookup), error.node.as_deref()).endpoint;
            assert_eq!(endpoint, format!("{node}-k8s-web-eth0"), "{conf}");
        }
    }

    #[test]
    fn log_subject_without_a_container_is_empty() {
        let status = Call {
            container_id: String::new(),
            ifname: String::new(),
            ..call(&[])
        };
        assert_eq!(Subject::of_call(&status).line_suffix(), "");
    }

    #[test]
    fn environment_values_in_log_lines_are_escaped_and_truncated() {
        let long = "x".repeat(5_000);
        let lookup = |name: &str| match name {
            "CNI_CONTAINERID" => Some(long.clone()),
            "CNI_ARGS" => Some(
                "K8S_POD_NAMESPACE=a\n2026 [INFO] \x1b[2K\";K8S_POD_NAME=\u{202e}b\u{9b};x".into(),
            ),
            _ => None,
        };
        let text = Subject::of_environment(Variables::new(&lookup), None).line_suffix();
        assert!(
            text.contains(r#" Namespace="a\n2026 [INFO] \u{1b}[2K\"" Pod="\u{202e}b\u{9b}""#),
            "{text}"
        );
        assert!(!text.contains(char::is_control), "{text:?}");
        assert!(text.len() < 2 * MAX_CHARS + 300, "{}", text.len());
        assert_eq!(
            Subject::of_environment(Variables::NONE, None),
            Subject::default()
        );
    }
}
