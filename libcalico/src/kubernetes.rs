//! Calico's objects as a Kubernetes API server stores them, in one of two API groups (DS-53).
//!
//! Other code identifies objects by the path and JSON of upstream's etcd layout ([`crate::store`]).
//! A [`Codec`] translates between the two. This module does no I/O.
//!
//! Blocks, handles, settings and affinities have another `spec` than the stored value; pools and
//! similar kinds may have other metadata. Endpoints, nodes and profiles are views of Kubernetes'
//! own objects.
//!
//! Read `codec` first, then `query` and `request`.

mod affinity;
mod codec;
mod error;
#[cfg(test)]
pub(crate) mod golden;
mod ipam;
mod json;
mod kind;
mod kubevirt;
mod metadata;
mod moved;
mod network_policy;
mod node;
mod pod;
mod pod_addresses;
mod pod_cidrs;
mod pod_patch;
mod profile;
mod qos;
mod query;
mod request;
mod request_kind;
mod resource;
mod revision;
mod served;
mod service;
mod status;
mod workload_endpoint;

pub use affinity::affinity_name;
pub use codec::{Codec, DecodedObject};
pub use error::{CodecError, FLOATING_IPS, PodProblem, beginning};
pub use ipam::{cidr_of_name, decode_listed_block, handle_name};
pub use json::json_bytes;
pub use kubevirt::{
    MIGRATION_LABEL, OwnerReference, VirtualMachine, VirtualMachineInstance, VmiPod,
    may_be_virt_launcher,
};
pub use moved::{Moved, MovedKind, Source, Unmovable, to_v3};
pub use network_policy::{
    EgressRule, IngressRule, IpBlock, LabelExpression, LabelSelector, NetworkPolicySpec,
    NumberOrName, PolicyPeer, PolicyPort,
};
pub use node::{DifferingField, merge_node};
pub use pod::{
    Container, ContainerPort, Namespace, Pod, PodIp, PodOnNode, PodOnNodeKey, PodSpec, PodStatus,
};
pub use pod_addresses::{AddressAnnotations, PodAddresses};
pub use pod_cidrs::{PodCidrError, PodCidrs};
pub use pod_patch::{
    CONTAINER_ID, POD_IP, POD_IPS, STRATEGIC_MERGE_PATCH, annotated_addresses, has_empty_addresses,
    is_detached,
};
pub use qos::parse_quantity;
pub use query::{ContinueTokens, List, Query, RepeatedToken};
pub use request::{Preconditions, Request};
pub use request_kind::{ApiVerb, is_watch, request_kind};
pub use resource::{
    ApiGroup, Location, NAMESPACES, NETWORK_POLICIES, NODES, PODS, Resource, SERVICE_ACCOUNTS,
    SERVICES, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, escaped,
};
pub use revision::{ObjectRevision, PreservedMetadata, reverse_uid};
pub use served::{API_GROUPS_PATH, DiscoveryError, ServedGroups, has_kind, kinds_path};
pub use service::{
    AssignIps, IPV4_POOLS, IPV6_POOLS, LOAD_BALANCER_IPS, LoadBalancerRequest, Service,
    ServiceIngress, ServiceLoadBalancer, ServiceSpec, ServiceStatus,
};
pub use status::{Status, StatusCause, StatusDetails};
pub use workload_endpoint::{PodEndpoint, endpoint_of_pod, floating_ips, parse_text_list};
