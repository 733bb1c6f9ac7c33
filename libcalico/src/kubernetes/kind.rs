//! Maps each stored kind to its resource on the API server (DS-53).

use super::resource::{
    ApiGroup, NAMESPACES, NODES, PODS, Resource, SERVICES, VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
};

/// A kind of stored object, by its representation on the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredKind {
    /// IPAMBlock.
    Block,
    /// BlockAffinity.
    Affinity,
    /// IPAMHandle.
    Handle,
    /// The IPAM settings.
    Config,
    /// A kind whose `spec` is stored unchanged.
    Object(ObjectKind),
    /// A WorkloadEndpoint: a pod with annotations.
    Endpoint,
    /// A Node: a Kubernetes node with annotations.
    Node,
    /// A Profile: a namespace or a service account.
    Profile,
    /// A pod, unchanged.
    Pod,
    /// A pod, unchanged, found by its node.
    PodOnNode,
    /// A namespace, unchanged.
    Namespace,
    /// A Service, unchanged.
    Service,
    /// A KubeVirt VirtualMachine, unchanged.
    VirtualMachine,
    /// A KubeVirt VirtualMachineInstance, unchanged.
    VirtualMachineInstance,
}

/// A v3 kind that is stored as a custom resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectKind {
    /// The kind and the plural in the v3 API.
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    /// The kind and the plural in `crd.projectcalico.org/v1`.
    v1: (&'static str, &'static str),
    /// True if objects of the kind are namespaced.
    pub(super) namespaced: bool,
    /// True for Calico's policies, whose names are also stored in an annotation.
    pub(super) is_policy: bool,
}

const fn same(kind: &'static str, plural: &'static str) -> ObjectKind {
    ObjectKind {
        kind,
        plural,
        v1: (kind, plural),
        namespaced: false,
        is_policy: false,
    }
}

const fn policy(kind: &'static str, plural: &'static str, namespaced: bool) -> ObjectKind {
    ObjectKind {
        namespaced,
        is_policy: true,
        ..same(kind, plural)
    }
}

const fn namespaced(kind: &'static str, plural: &'static str) -> ObjectKind {
    ObjectKind {
        namespaced: true,
        ..same(kind, plural)
    }
}

const OBJECTS: &[ObjectKind] = &[
    same("BGPConfiguration", "bgpconfigurations"),
    same("BGPFilter", "bgpfilters"),
    same("BGPPeer", "bgppeers"),
    same("CalicoNodeStatus", "caliconodestatuses"),
    same("ClusterInformation", "clusterinformations"),
    same("FelixConfiguration", "felixconfigurations"),
    policy("GlobalNetworkPolicy", "globalnetworkpolicies", false),
    same("GlobalNetworkSet", "globalnetworksets"),
    same("HostEndpoint", "hostendpoints"),
    ObjectKind {
        v1: ("IPAMConfig", "ipamconfigs"),
        ..same("IPAMConfiguration", "ipamconfigurations")
    },
    same("IPPool", "ippools"),
    same("IPReservation", "ipreservations"),
    same(
        "KubeControllersConfiguration",
        "kubecontrollersconfigurations",
    ),
    policy("NetworkPolicy", "networkpolicies", true),
    namespaced("NetworkSet", "networksets"),
    policy(
        "StagedGlobalNetworkPolicy",
        "stagedglobalnetworkpolicies",
        false,
    ),
    namespaced(
        "StagedKubernetesNetworkPolicy",
        "stagedkubernetesnetworkpolicies",
    ),
    policy("StagedNetworkPolicy", "stagednetworkpolicies", true),
    same("Tier", "tiers"),
];

impl StoredKind {
    /// Returns the kind with the name `name`, if the API server stores it.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "IPAMBlock" => StoredKind::Block,
            "BlockAffinity" => StoredKind::Affinity,
            "IPAMHandle" => StoredKind::Handle,
            "IPAMConfig" => StoredKind::Config,
            "WorkloadEndpoint" => StoredKind::Endpoint,
            "Node" => StoredKind::Node,
            "Profile" => StoredKind::Profile,
            "Pod" => StoredKind::Pod,
            "PodOnNode" => StoredKind::PodOnNode,
            "Namespace" => StoredKind::Namespace,
            "Service" => StoredKind::Service,
            "VirtualMachine" => StoredKind::VirtualMachine,
            "VirtualMachineInstance" => StoredKind::VirtualMachineInstance,
            name => StoredKind::Object(*OBJECTS.iter().find(|object| object.kind == name)?),
        })
    }

    /// Returns the resource that represents the kind; for a profile, that of namespaces.
    pub(super) fn resource(self, group: ApiGroup) -> Resource {
        let custom = |kind, plural| Resource {
            api_version: group.api_version(),
            kind,
            plural,
            namespaced: false,
        };
        match self {
            StoredKind::Block => custom("IPAMBlock", "ipamblocks"),
            StoredKind::Affinity => custom("BlockAffinity", "blockaffinities"),
            StoredKind::Handle => custom("IPAMHandle", "ipamhandles"),
            StoredKind::Config => match group {
                ApiGroup::CrdV1 => custom("IPAMConfig", "ipamconfigs"),
                ApiGroup::V3 => custom("IPAMConfiguration", "ipamconfigurations"),
            },
            StoredKind::Object(object) => {
                let (kind, plural) = if group == ApiGroup::CrdV1 {
                    object.v1
                } else {
                    (object.kind, object.plural)
                };
                Resource {
                    namespaced: object.namespaced,
                    ..custom(kind, plural)
                }
            }
            StoredKind::Endpoint | StoredKind::Pod | StoredKind::PodOnNode => PODS,
            StoredKind::Node => NODES,
            StoredKind::Profile | StoredKind::Namespace => NAMESPACES,
            StoredKind::Service => SERVICES,
            StoredKind::VirtualMachine => VIRTUAL_MACHINES,
            StoredKind::VirtualMachineInstance => VIRTUAL_MACHINE_INSTANCES,
        }
    }

    /// Returns true if upstream marks objects of the kind before it deletes them (DS-72).
    pub(super) fn has_tombstones(self) -> bool {
        matches!(
            self,
            StoredKind::Block | StoredKind::Affinity | StoredKind::Handle
        )
    }

    /// Returns true if the kind is read from objects that Calico does not create or delete.
    pub(super) fn is_kubernetes_object(self) -> bool {
        use StoredKind::{Affinity, Block, Config, Handle, Object};
        !matches!(self, Block | Affinity | Handle | Config | Object(_))
    }
}
