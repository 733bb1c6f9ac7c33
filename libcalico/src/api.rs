//! The `projectcalico.org/v3` resources that the programs read or write.
//!
//! Almost every type keeps the fields that it does not model in `unknown`, so that a
//! read-modify-write does not drop a field that a newer Calico wrote. The exception is the status
//! of KubeControllersConfiguration, which kube-controllers replaces as a whole. Read `object`
//! first: the envelope that all kinds share.

mod cluster_information;
mod go_bool;
mod go_duration;
mod host_endpoint;
mod ip_pool;
mod ip_reservation;
mod ipam_configuration;
mod kube_controllers_configuration;
mod meta;
mod node;
mod node_scoped;
mod object;
mod policy;
mod port;
mod profile;
mod rule;
mod string_enum;
mod tier;
mod workload_endpoint;

pub use cluster_information::{ClusterInformation, ClusterInformationSpec};
pub use go_bool::go_bool;
pub use go_duration::{DurationError, GoDuration};
pub use host_endpoint::{HostEndpoint, HostEndpointPort, HostEndpointSpec};
pub use ip_pool::{AllowedUse, AssignmentMode, IP_POOL_FINALIZER, IpPool, IpPoolSpec};
pub use ip_reservation::{IpReservation, IpReservationSpec};
pub use ipam_configuration::{IpamConfiguration, IpamConfigurationSpec};
pub use kube_controllers_configuration::{
    AutoHostEndpointConfig, ControllersConfig, HostEndpointTemplate, KubeControllersConfiguration,
    KubeControllersConfigurationSpec, KubeControllersConfigurationStatus,
    LoadBalancerControllerConfig, MigrationControllerConfig, NodeControllerConfig,
    ReconcilerConfig,
};
pub use meta::{DEFAULT_TIER, ObjectMeta, Unknown};
pub(crate) use meta::{
    NAME_ANNOTATION, is_zero, parse_time, restore_policy_name, seconds_in_utc, without_tier,
};
pub use node::{Node, NodeAddress, NodeBgp, NodeSpec, NodeWireguard, OrchRef};
pub use node_scoped::{
    BgpConfiguration, BgpConfigurationSpec, BgpPeer, BgpPeerSpec, FelixConfiguration,
    FelixConfigurationSpec, configuration_of_node,
};
pub(crate) use object::OBJECT_ROOT;
pub use object::{API_VERSION, Object, ObjectKey, ObjectSelect, Spec};
pub use policy::{
    Global, GlobalNetworkPolicy, InNamespace, NetworkPolicy, PolicyKind, PolicySpec, StagedGlobal,
    StagedGlobalNetworkPolicy, StagedInNamespace, StagedNetworkPolicy,
};
pub use port::{Port, PortParseError, Protocol};
pub use profile::{Profile, ProfileSpec};
pub use rule::{Rule, RuleEntity};
pub use string_enum::StringEnum;
pub use tier::{BUILT_IN_TIERS, Tier, TierSpec};
pub use workload_endpoint::{EndpointPort, IpNat, WorkloadEndpoint, WorkloadEndpointSpec};

/// Implements [`Spec`] for resources without a namespace: the type, the kind, and the plural.
macro_rules! global_resources {
    ($($spec:ty: $kind:literal, $plural:literal;)*) => {
        $(impl Spec for $spec {
            const KIND: &'static str = $kind;
            const PLURAL: &'static str = $plural;
        })*
    };
}

global_resources! {
    BgpConfigurationSpec: "BGPConfiguration", "bgpconfigurations";
    BgpPeerSpec: "BGPPeer", "bgppeers";
    ClusterInformationSpec: "ClusterInformation", "clusterinformations";
    FelixConfigurationSpec: "FelixConfiguration", "felixconfigurations";
    HostEndpointSpec: "HostEndpoint", "hostendpoints";
    IpPoolSpec: "IPPool", "ippools";
    IpReservationSpec: "IPReservation", "ipreservations";
    IpamConfigurationSpec: "IPAMConfiguration", "ipamconfigurations";
    KubeControllersConfigurationSpec: "KubeControllersConfiguration",
    "kubecontrollersconfigurations";
    NodeSpec: "Node", "nodes";
    ProfileSpec: "Profile", "profiles";
    TierSpec: "Tier", "tiers";
}
