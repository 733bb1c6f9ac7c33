//! Calico's objects as a Kubernetes API server keeps them (DS-53), in either of two API groups.
//!
//! The program knows objects by the path and JSON of upstream's etcd layout ([`crate::store`]). A [`Transcoder`] says
//! which request answers a range ([`Query`]) and which a write is ([`Request`]), and turns the API server's objects
//! into stored pairs ([`Decoded`]). Nothing here does I/O.
//!
//! * blocks, affinities, handles and settings have a file each: their `spec` differs from what is stored;
//! * pools, reservations and the like differ in their metadata alone;
//! * endpoints, nodes and profiles are views of Kubernetes' own pods, nodes, namespaces and service accounts.

mod affinity;
mod block;
mod error;
mod group;
mod handle;
mod ipam_config;
mod json;
mod kind;
mod kubevirt;
mod metadata;
mod network_policy;
mod node;
mod node_patch;
mod pod;
mod pod_addresses;
mod pod_cidrs;
mod pod_on_node;
mod pod_patch;
mod policy;
mod profile;
mod qos;
mod quantity;
mod query;
#[cfg(test)]
pub(crate) mod recordings;
mod request;
mod resource;
mod revision;
mod served;
mod status;
mod transcoder;
mod uid;
mod workload_endpoint;

pub use affinity::affinity_name;
pub use block::{cidr_of_name, sighting_of_block};
pub use error::TranscodeError;
pub use group::ApiGroup;
pub use handle::handle_name;
pub use json::json_bytes;
pub use kubevirt::{MachinePod, OwnerReference, VirtualMachine, VirtualMachineInstance, may_be_machine};
pub use network_policy::{
    EgressRule, IngressRule, IpBlock, LabelExpression, LabelSelector, NetworkPolicySpec, NumberOrName, PolicyPeer,
    PolicyPort,
};
pub use pod::{Container, ContainerPort, Namespace, Pod, PodIp, PodSpec, PodStatus};
pub use pod_addresses::{AddressAnnotations, PodAddresses};
pub use pod_cidrs::{PodCidrError, PodCidrs};
pub use pod_on_node::{PodOnNode, PodOnNodeKey};
pub use pod_patch::{
    CONTAINER_ID, POD_IP, POD_IPS, STRATEGIC_MERGE_PATCH, is_detached, listed_addresses, lists_nothing,
};
pub use quantity::quantity;
pub use query::{List, Query};
pub use request::{Preconditions, Request};
pub use resource::{
    Location, NAMESPACES, NETWORK_POLICIES, NODES, PODS, Resource, SERVICE_ACCOUNTS, SERVICES,
    VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, escaped,
};
pub use revision::{Foreign, ObjectRevision};
pub use served::{GROUPS, Served, has_kind, kinds_path};
pub use status::{Status, StatusCause, StatusDetails};
pub use transcoder::{Decoded, Transcoder};
pub use uid::reverse_uid;
pub use workload_endpoint::{FLOATING_IPS, PodEndpoint, PodProblem, endpoint_of_pod, floating_ips, texts_of};
