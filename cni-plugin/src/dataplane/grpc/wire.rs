//! The messages of service `cni.CniDataplane` (proto3 package `cni`, CNI-236). The numbers are the protocol.

use std::collections::BTreeMap;

/// Make an endpoint's network.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AddRequest {
    /// CNI_IFNAME.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// CNI_NETNS.
    #[prost(string, tag = "2")]
    pub netns: String,
    /// The host interface's name as it would be computed.
    #[prost(string, tag = "3")]
    pub desired_host_interface_name: String,
    /// Settings inside the container.
    #[prost(message, optional, tag = "4")]
    pub settings: Option<ContainerSettings>,
    /// The addresses that IPAM gave.
    #[prost(message, repeated, tag = "5")]
    pub container_ips: Vec<IpConfig>,
    /// In-pod routes as CIDRs.
    #[prost(string, repeated, tag = "6")]
    pub container_routes: Vec<String>,
    /// Whose network it is.
    #[prost(message, optional, tag = "7")]
    pub workload: Option<WorkloadIds>,
    /// The text entries of `dataplane_options`; filled in by [`GrpcDataplane::add`](super::GrpcDataplane::add).
    #[prost(btree_map = "string, string", tag = "8")]
    pub dataplane_options: BTreeMap<String, String>,
}

/// Settings inside the container.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct ContainerSettings {
    /// Whether the container may forward packets.
    #[prost(bool, tag = "1")]
    pub allow_ip_forwarding: bool,
    /// MTU in bytes; 0 for the default.
    #[prost(int32, tag = "2")]
    pub mtu: i32,
}

/// One address.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct IpConfig {
    /// The address with IPAM's prefix length.
    #[prost(string, tag = "1")]
    pub address: String,
    /// IPAM's gateway, or [`NO_GATEWAY`].
    #[prost(string, tag = "2")]
    pub gateway: String,
}

/// What upstream sends for an address without a gateway (CNI-237).
pub const NO_GATEWAY: &str = "<nil>";

/// The WorkloadEndpoint that the network is for, before it is written.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct WorkloadIds {
    /// Name of the WorkloadEndpoint.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its labels.
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations.
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    /// `spec.endpoint`.
    #[prost(string, tag = "5")]
    pub endpoint: String,
    /// `spec.node`.
    #[prost(string, tag = "6")]
    pub node: String,
    /// `spec.orchestrator`.
    #[prost(string, tag = "7")]
    pub orchestrator: String,
    /// `spec.pod`.
    #[prost(string, tag = "8")]
    pub pod: String,
    /// `spec.ports`.
    #[prost(message, repeated, tag = "9")]
    pub ports: Vec<Port>,
}

/// One port of the workload.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Port {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its protocol.
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// Its number.
    #[prost(uint32, tag = "3")]
    pub port: u32,
    /// The host's port that leads to it, 0 for none.
    #[prost(uint32, tag = "4")]
    pub host_port: u32,
    /// The host's address for that.
    #[prost(string, tag = "5")]
    pub host_ip: String,
}

/// The answer to an [`AddRequest`].
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct AddReply {
    /// Whether the network is there.
    #[prost(bool, tag = "1")]
    pub successful: bool,
    /// Why not.
    #[prost(string, tag = "2")]
    pub error_message: String,
    /// The host interface's name.
    #[prost(string, tag = "3")]
    pub host_interface_name: String,
    /// The MAC address inside the container.
    #[prost(string, tag = "4")]
    pub container_mac: String,
}

/// Take an endpoint's network away.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct DelRequest {
    /// CNI_IFNAME.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// CNI_NETNS, empty when the runtime has none any more.
    #[prost(string, tag = "2")]
    pub netns: String,
    /// The text entries of `dataplane_options`.
    #[prost(btree_map = "string, string", tag = "3")]
    pub dataplane_options: BTreeMap<String, String>,
}

/// The answer to a [`DelRequest`].
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct DelReply {
    /// Whether the network is gone.
    #[prost(bool, tag = "1")]
    pub successful: bool,
    /// Why not.
    #[prost(string, tag = "2")]
    pub error_message: String,
}
