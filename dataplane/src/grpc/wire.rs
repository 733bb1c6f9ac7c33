//! The messages of service `cni.CniDataplane` (proto3 package `cni`). Their field numbers are part
//! of the protocol (CNI-236).

use std::collections::BTreeMap;

/// A request to create the network of an endpoint.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AddRequest {
    /// CNI_IFNAME.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// CNI_NETNS.
    #[prost(string, tag = "2")]
    pub netns: String,
    /// The name that the kernel's dataplane would give the host interface.
    #[prost(string, tag = "3")]
    pub desired_host_interface_name: String,
    /// Settings inside the container.
    #[prost(message, optional, tag = "4")]
    pub settings: Option<ContainerSettings>,
    /// The addresses of the container.
    #[prost(message, repeated, tag = "5")]
    pub container_ips: Vec<IpConfig>,
    /// The routes inside the container, as CIDRs.
    #[prost(string, repeated, tag = "6")]
    pub container_routes: Vec<String>,
    /// The workload that the network is for.
    #[prost(message, optional, tag = "7")]
    pub workload: Option<WorkloadIds>,
    /// The string entries of `dataplane_options`; [`GrpcDataplane::add`](super::GrpcDataplane::add)
    /// sets them.
    #[prost(btree_map = "string, string", tag = "8")]
    pub dataplane_options: BTreeMap<String, String>,
}

/// Settings inside the container.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ContainerSettings {
    /// Whether to let the container forward packets.
    #[prost(bool, tag = "1")]
    pub allow_ip_forwarding: bool,
    /// MTU in bytes; 0 if neither the configuration nor Felix sets one.
    #[prost(int32, tag = "2")]
    pub mtu: i32,
}

/// An address of the container.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct IpConfig {
    /// The address with the prefix length from IPAM.
    #[prost(string, tag = "1")]
    pub address: String,
    /// The gateway from IPAM, or [`NO_GATEWAY`].
    #[prost(string, tag = "2")]
    pub gateway: String,
}

/// The text that upstream sends for an address without a gateway (CNI-237).
pub const NO_GATEWAY: &str = "<nil>";

/// The WorkloadEndpoint that the network is for.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WorkloadIds {
    /// Name of the WorkloadEndpoint.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace of the WorkloadEndpoint.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Labels of the WorkloadEndpoint.
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations.
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    /// `spec.endpoint` of the WorkloadEndpoint.
    #[prost(string, tag = "5")]
    pub endpoint: String,
    /// `spec.node` of the WorkloadEndpoint.
    #[prost(string, tag = "6")]
    pub node: String,
    /// `spec.orchestrator` of the WorkloadEndpoint.
    #[prost(string, tag = "7")]
    pub orchestrator: String,
    /// `spec.pod` of the WorkloadEndpoint.
    #[prost(string, tag = "8")]
    pub pod: String,
    /// `spec.ports` of the WorkloadEndpoint.
    #[prost(message, repeated, tag = "9")]
    pub ports: Vec<Port>,
}

/// A port of the workload.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Port {
    /// Name of the port.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Protocol of the port.
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// Number of the port.
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// The port of the host that is mapped to this port, 0 for none.
    #[prost(uint32, tag = "4")]
    pub host_port: u32,
    /// The address of the host for the mapping of `host_port`; may be empty.
    #[prost(string, tag = "5")]
    pub host_ip: String,
}

/// The response to an [`AddRequest`].
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct AddReply {
    /// True if the server created the network.
    #[prost(bool, tag = "1")]
    pub successful: bool,
    /// The reason for a failure.
    #[prost(string, tag = "2")]
    pub error_message: String,
    /// The host interface's name.
    #[prost(string, tag = "3")]
    pub host_interface_name: String,
    /// The MAC address inside the container.
    #[prost(string, tag = "4")]
    pub container_mac: String,
}

/// A request to remove the network of an endpoint.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DelRequest {
    /// CNI_IFNAME.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// CNI_NETNS; empty if the runtime no longer has a namespace.
    #[prost(string, tag = "2")]
    pub netns: String,
    /// The string entries of `dataplane_options`.
    #[prost(btree_map = "string, string", tag = "3")]
    pub dataplane_options: BTreeMap<String, String>,
}

/// The response to a [`DelRequest`].
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct DelReply {
    /// True if the network no longer exists.
    #[prost(bool, tag = "1")]
    pub successful: bool,
    /// The reason for a failure.
    #[prost(string, tag = "2")]
    pub error_message: String,
}
