//! Which resource stands for which kind of stored object (DS-53).

use super::group::ApiGroup;
use super::resource::{NAMESPACES, NODES, PODS, Resource, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES};

/// A kind of stored object, by how it is kept in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredKind {
    /// IPAMBlock.
    Block,
    /// BlockAffinity.
    Affinity,
    /// IPAMHandle.
    Handle,
    /// The allocator's settings.
    Config,
    /// A kind whose `spec` is the same everywhere.
    Object(ObjectKind),
    /// A pod with annotations.
    Endpoint,
    /// A Kubernetes node with annotations.
    Node,
    /// A namespace or a service account.
    Profile,
    /// A pod as it is.
    Pod,
    /// The same, found by its node.
    PodOnNode,
    /// A namespace as it is.
    Namespace,
    /// A virtual machine of KubeVirt as it is.
    Machine,
    /// A run of one as it is.
    MachineInstance,
}

/// A v3 kind that is stored as a custom resource of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObjectKind {
    /// Kind and plural of the v3 API.
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    /// Kind and plural in `crd.projectcalico.org/v1`.
    v1: (&'static str, &'static str),
    /// Whether objects live in a namespace.
    pub(super) namespaced: bool,
    /// Whether it is one of Calico's policies, whose names are kept twice.
    pub(super) is_policy: bool,
}

const fn same(kind: &'static str, plural: &'static str) -> ObjectKind {
    ObjectKind { kind, plural, v1: (kind, plural), namespaced: false, is_policy: false }
}

const fn policy(kind: &'static str, plural: &'static str, namespaced: bool) -> ObjectKind {
    ObjectKind { namespaced, is_policy: true, ..same(kind, plural) }
}

const OBJECTS: &[ObjectKind] = &[
    same("ClusterInformation", "clusterinformations"),
    policy("GlobalNetworkPolicy", "globalnetworkpolicies", false),
    same("HostEndpoint", "hostendpoints"),
    ObjectKind { v1: ("IPAMConfig", "ipamconfigs"), ..same("IPAMConfiguration", "ipamconfigurations") },
    same("IPPool", "ippools"),
    same("IPReservation", "ipreservations"),
    same("KubeControllersConfiguration", "kubecontrollersconfigurations"),
    policy("NetworkPolicy", "networkpolicies", true),
    policy("StagedGlobalNetworkPolicy", "stagedglobalnetworkpolicies", false),
    policy("StagedNetworkPolicy", "stagednetworkpolicies", true),
    same("Tier", "tiers"),
];

impl StoredKind {
    /// The kind called `name` in requests; `None` for one that is not kept in Kubernetes.
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
            "VirtualMachine" => StoredKind::Machine,
            "VirtualMachineInstance" => StoredKind::MachineInstance,
            name => StoredKind::Object(*OBJECTS.iter().find(|object| object.kind == name)?),
        })
    }

    /// The resource that holds the kind; for profiles that of the namespaces.
    pub(super) fn resource(self, group: ApiGroup) -> Resource {
        let custom = |kind, plural| Resource { api_version: group.api_version(), kind, plural, namespaced: false };
        match self {
            StoredKind::Block => custom("IPAMBlock", "ipamblocks"),
            StoredKind::Affinity => custom("BlockAffinity", "blockaffinities"),
            StoredKind::Handle => custom("IPAMHandle", "ipamhandles"),
            StoredKind::Config => match group {
                ApiGroup::CrdV1 => custom("IPAMConfig", "ipamconfigs"),
                ApiGroup::V3 => custom("IPAMConfiguration", "ipamconfigurations"),
            },
            StoredKind::Object(object) => {
                let (kind, plural) = if group == ApiGroup::CrdV1 { object.v1 } else { (object.kind, object.plural) };
                Resource { namespaced: object.namespaced, ..custom(kind, plural) }
            }
            StoredKind::Endpoint | StoredKind::Pod | StoredKind::PodOnNode => PODS,
            StoredKind::Node => NODES,
            StoredKind::Profile | StoredKind::Namespace => NAMESPACES,
            StoredKind::Machine => VIRTUAL_MACHINES,
            StoredKind::MachineInstance => VIRTUAL_MACHINE_INSTANCES,
        }
    }

    /// Whether its objects are marked before they are deleted (DS-72).
    pub(super) fn has_tombstones(self) -> bool {
        matches!(self, StoredKind::Block | StoredKind::Affinity | StoredKind::Handle)
    }

    /// Whether it is read from objects of Kubernetes' own, which we do not create or delete.
    pub(super) fn is_kubernetes_own(self) -> bool {
        matches!(
            self,
            StoredKind::Endpoint
                | StoredKind::Node
                | StoredKind::Profile
                | StoredKind::Pod
                | StoredKind::PodOnNode
                | StoredKind::Namespace
                | StoredKind::Machine
                | StoredKind::MachineInstance
        )
    }
}
