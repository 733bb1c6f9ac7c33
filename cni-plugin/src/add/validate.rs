//! Rejects some ADDs that would fail later, before their first write (CNI-85, CNI-140).

use libcalico::api::WorkloadEndpoint;
use libcalico::conversion::{ProfileReach, default_profile};
use libcalico::names::{DEFAULT_INTERFACE_PREFIX, interface_prefix, is_dns_name};
use libcalico::validation;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::{Call, CniError, Code};
use node_process::{node_name, process};

use crate::cni_error::{naming_error, on_one_line};
use crate::endpoint;
use crate::interface::InterfaceConfig;

/// The variable of Felix with the prefixes of interfaces. The first one applies.
const INTERFACE_PREFIX: &str = "FELIX_INTERFACEPREFIX";

/// Checks parts of the configuration, the MTU, and the names of the endpoint and its profile.
pub(super) fn request(call: &Call, workload: &WorkloadIdentity) -> Result<(), CniError> {
    let conf = &call.conf;
    for key in conf.windows.ignored() {
        tracing::warn!(
            key,
            "ignoring a configuration key that has an effect on Windows only"
        );
    }
    let is_container = matches!(workload.orchestrator, Orchestrator::Cni(_));
    if is_container && conf.feature_control.ip_addrs_no_ipam {
        return Err(CniError::new(
            Code::UNSUPPORTED_FIELD,
            "ip_addrs_no_ipam is not supported for this runtime",
        )
        .with_details(
            "$.feature_control.ip_addrs_no_ipam needs Kubernetes (K8S_POD_NAME in CNI_ARGS)",
        ));
    }
    if conf.policy.policy_type.is_empty() {
        let profile = default_profile(&conf.name, ProfileReach::SameNetwork);
        validation::validate_profile(&profile).map_err(|error| {
            CniError::new(Code::INVALID_CONFIG, on_one_line(&error))
                .with_details(rule_of_network_names(&conf.name, is_container))
        })?;
    }
    let config = InterfaceConfig { call, workload };
    if !is_dns_name(&workload.node) {
        return Err(invalid_node_name(call, &workload.node));
    }
    let mut endpoint = workload.create(&[]).map_err(|error| naming_error(&error))?;
    endpoint.spec.interface_name = config.host_ifname();
    endpoint::validate(&endpoint).map_err(|error| {
        if is_container && !is_dns_name(&conf.name) {
            return error.with_details(rule_of_network_names(&conf.name, is_container));
        }
        let prefix = process::felix_interface_prefix().filter(|_| config.is_of_pod());
        match prefix.and_then(|list| rule_of_interface_prefix(&list)) {
            Some(details) => error.with_details(details),
            None => error,
        }
    })
}

/// Returns the rule that the name of a network breaks. `policy.type` only helps pods: the endpoint
/// of another container has the profile of the network in each case.
fn rule_of_network_names(name: &str, is_container: bool) -> String {
    if is_dns_name(name) {
        return "$.name: the network's name becomes a label; 63 letters, digits and '-_.' at most"
            .to_owned();
    }
    let way_out = if is_container {
        ""
    } else {
        ", or set \"policy\": {\"type\": \"k8s\"}"
    };
    format!(
        "$.name: the network's name becomes the name of a profile, which consists of lower case \
         letters, digits, '-' and '.', and begins and ends with a letter or a digit; `{name}` does \
         not; rename the network{way_out}"
    )
}

/// Returns upstream's error of a node name that is no DNS name, with the source of the name and the
/// name to write.
fn invalid_node_name(call: &Call, node: &str) -> CniError {
    let source = node_name::source(&call.conf).unwrap_or_default();
    // Upstream's text.
    let msg = format!(
        "error with field Node = '{node}' (Reason: failed to validate Field: Node because of Tag: name )"
    );
    let details = if node.starts_with("__") && node.ends_with("__") {
        format!(
            "{source} is the placeholder {node}, which no installer has filled; let `calico \
             install` or the installer of upstream write the configuration, or write the name of \
             the node there"
        )
    } else {
        let suggested = Some(node.to_lowercase()).filter(|lower| is_dns_name(lower));
        let suggested = suggested
            .map(|name| format!(", such as {name}"))
            .unwrap_or_default();
        format!(
            "{source} is not a DNS name in lower case; write the name of the Node in Kubernetes or \
             Calico there{suggested}"
        )
    };
    CniError::new(Code::INVALID_ENVIRONMENT, msg).with_details(details)
}

/// Returns the rule that the first prefix of `FELIX_INTERFACEPREFIX` breaks; `None` if it breaks
/// none.
fn rule_of_interface_prefix(list: &str) -> Option<String> {
    let prefix = interface_prefix(Some(list));
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if prefix.len() <= DEFAULT_INTERFACE_PREFIX.len() && prefix.bytes().all(is_allowed) {
        return None;
    }
    Some(format!(
        "{INTERFACE_PREFIX}: {prefix:?} cannot begin the name of an interface, because 11 \
         characters follow and the kernel allows 15; use at most four letters, digits and '-_.', \
         here and in Felix"
    ))
}

/// Rejects a second interface of a container: an endpoint describes one interface, so the result
/// would name an interface that does not exist (CNI-90).
pub(super) fn ensure_same_interface(
    call: &Call,
    existing: &WorkloadEndpoint,
) -> Result<(), CniError> {
    let (id, requested, first) = (&call.container_id, &call.ifname, &existing.spec.endpoint);
    if requested == first {
        return Ok(());
    }
    let msg = format!(
        "container {id} already has interface {first} and cannot get a second interface {requested}"
    );
    Err(CniError::new(Code::INVALID_ENVIRONMENT, msg).with_details(
        "CNI_IFNAME: Calico creates one interface per container; call DEL for the first, or use \
         another plugin for the second",
    ))
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use libcalico::workload::{ContainerIdentity, PodIdentity};
    use serde_json::{Value, json};

    use super::*;

    fn refusal(network: &str, node: &str, keys: &[(&str, Value)]) -> Option<CniError> {
        refusal_of(
            Orchestrator::Cni(ContainerIdentity::new(network)),
            network,
            node,
            keys,
        )
    }

    fn pod() -> Orchestrator {
        let identity = PodIdentity {
            namespace: "ns".into(),
            name: "p".into(),
            ..PodIdentity::default()
        };
        Orchestrator::Kubernetes(identity)
    }

    fn refusal_of(
        orchestrator: Orchestrator,
        network: &str,
        node: &str,
        keys: &[(&str, Value)],
    ) -> Option<CniError> {
        let environment = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => "ADD",
                "CNI_CONTAINERID" => "c1",
                "CNI_IFNAME" => "eth0",
                "CNI_NETNS" | "CNI_PATH" => "/x",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let mut conf =
            json!({ "cniVersion": "1.0.0", "name": network, "type": "calico", "mtu": 1400 });
        keys.iter()
            .for_each(|(key, value)| conf[key] = value.clone());
        let call = netconf::read_call(Variables::new(&environment), || {
            Ok(conf.to_string().into_bytes())
        })
        .unwrap();
        let workload = WorkloadIdentity {
            node: node.into(),
            container_id: call.container_id.clone(),
            endpoint: call.ifname.clone(),
            orchestrator,
        };
        request(&call, &workload).err()
    }

    #[test]
    fn invalid_node_name_is_refused_with_its_source_and_the_name_to_write() {
        assert_eq!(refusal("net1", "node-a", &[]), None);
        let of_key = refusal("net1", "Node-A", &[("nodename", json!("Node-A"))]).unwrap();
        assert!(
            of_key.msg.contains("because of Tag: name") && !of_key.msg.contains('\n'),
            "{of_key}"
        );
        assert!(
            of_key
                .details
                .starts_with("nodename of the network configuration is not"),
            "{of_key}"
        );
        assert!(of_key.details.ends_with("such as node-a"), "{of_key}");

        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "Node_A\n").unwrap();
        let of_file = refusal("net1", "Node_A", &[("nodename_file", json!(file.path()))]).unwrap();
        assert!(
            of_file
                .details
                .starts_with(&format!("the file {} is not", file.path().display())),
            "{of_file}"
        );
        assert!(of_file.details.ends_with("there"), "{of_file}");
    }

    #[test]
    fn placeholder_as_node_name_is_refused_as_an_unfilled_template() {
        let name = "__KUBERNETES_NODE_NAME__";
        let error = refusal("net1", name, &[("nodename", json!(name))]).unwrap();
        assert!(
            error.details.contains("no installer has filled") && error.details.contains(name),
            "{error}"
        );
    }

    #[test]
    fn refused_network_name_comes_with_the_rule_that_it_breaks() {
        let refused = |name: &str| refusal(name, "node1", &[]).unwrap().details;
        for name in ["my_net", "Net"] {
            assert!(
                refused(name).contains("the name of a profile") && refused(name).contains(name),
                "{name}"
            );
        }
        assert!(refused(&"n".repeat(64)).contains("becomes a label; 63 letters"));
        let with_policy = [("policy", json!({ "type": "k8s" }))];
        assert!(
            refusal_of(pod(), "my_net", "node1", &[])
                .unwrap()
                .details
                .contains("or set \"policy\"")
        );
        assert_eq!(refusal_of(pod(), "my_net", "node1", &with_policy), None);
        let of_container = refusal("my_net", "node1", &with_policy).unwrap().details;
        assert!(
            of_container.ends_with("rename the network"),
            "{of_container}"
        );
    }

    #[test]
    fn interface_prefix_that_is_too_long_or_invalid_is_named() {
        assert_eq!(rule_of_interface_prefix("eni,veth-"), None);
        assert_eq!(rule_of_interface_prefix(""), None);
        for prefix in ["veth-", "a/", "veth-,cali"] {
            let rule = rule_of_interface_prefix(prefix).unwrap();
            assert!(
                rule.starts_with("FELIX_INTERFACEPREFIX: ") && rule.contains("at most four"),
                "{rule}"
            );
        }
        let workload = WorkloadIdentity {
            node: "node1".into(),
            container_id: "c1".into(),
            endpoint: "eth0".into(),
            orchestrator: pod(),
        };
        assert_eq!(
            workload.host_interface(Some("veth-")).len(),
            16,
            "too long for the kernel"
        );
    }
}
