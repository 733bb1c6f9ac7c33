//! Optional features, and settings inside the container.

use crate::decode::{DecodeError, FromNode, Node};

/// Features that are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct FeatureControl {
    /// Whether to honor the pod annotation `cni.projectcalico.org/ipAddrsNoIpam`. Read by ADD.
    pub ip_addrs_no_ipam: bool,

    /// Whether to honor the pod annotation `cni.projectcalico.org/floatingIPs`. Read by ADD.
    pub floating_ips: bool,

    /// Whether to restrict the annotations `cni.projectcalico.org/ipAddrs`, `ipv4pools` and `ipv6pools` to pools whose
    /// namespaceSelector selects the pod's namespace, and to addresses that no IPReservation covers. Read by ADD.
    pub restrict_annotations: bool,

    /// Whether to remove the network of running containers that `cni.dev/valid-attachments` does not list. Read by GC.
    pub gc_running_containers: bool,
}

/// Settings inside the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), serde(default), schemars(inline))]
pub struct ContainerSettings {
    /// Whether to enable IP forwarding in the container. Read by ADD, CHECK.
    pub allow_ip_forwarding: bool,
}

impl FromNode for FeatureControl {
    fn from_node(node: &Node<'_>) -> Result<FeatureControl, DecodeError> {
        let object = node.object()?;
        Ok(FeatureControl {
            ip_addrs_no_ipam: object.read_or_default("ip_addrs_no_ipam")?,
            floating_ips: object.read_or_default("floating_ips")?,
            restrict_annotations: object.read_or_default("restrict_annotations")?,
            gc_running_containers: object.read_or_default("gc_running_containers")?,
        })
    }
}

impl FromNode for ContainerSettings {
    fn from_node(node: &Node<'_>) -> Result<ContainerSettings, DecodeError> {
        Ok(ContainerSettings { allow_ip_forwarding: node.object()?.read_or_default("allow_ip_forwarding")? })
    }
}
