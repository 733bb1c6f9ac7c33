//! KubeControllersConfiguration: the settings of kube-controllers, and in its status the settings
//! in effect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::go_duration::GoDuration;
use super::{Object, Unknown};

/// The settings of kube-controllers, and in the status the settings in effect. Environment
/// variables may override settings.
pub type KubeControllersConfiguration = Object<KubeControllersConfigurationSpec>;

/// `spec` of KubeControllersConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeControllersConfigurationSpec {
    /// Lowest severity that is logged.
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic"]))
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_severity_screen: Option<String>,
    /// Mode of the health checks of the datastore and the API server: `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_checks: Option<String>,
    /// Interval of etcd compactions; 0s disables them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_v3_compaction_period: Option<GoDuration>,
    /// TCP port of the metrics; 0 disables them.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 65535)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus_metrics_port: Option<i64>,
    /// Settings of the controllers. The sections select the controllers that run, unless
    /// `ENABLED_CONTROLLERS` is set. `policy`, `workloadEndpoint`, `serviceAccount` and `namespace`
    /// have an effect only with etcd.
    pub controllers: ControllersConfig,
    /// TCP port on localhost for profiles of the process; 0 disables it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_profile_port: Option<i32>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Sections of the controllers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ControllersConfig {
    /// Node controller: leaked addresses, node labels, host endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeControllerConfig>,
    /// Policy controller: Kubernetes network policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<ReconcilerConfig>,
    /// Workload endpoint controller: labels of endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_endpoint: Option<ReconcilerConfig>,
    /// Service account controller: profiles of service accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ReconcilerConfig>,
    /// Namespace controller: profiles of namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<ReconcilerConfig>,
    /// Load balancer controller: addresses of Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerControllerConfig>,
    /// Migration controller: policies stored under the names of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationControllerConfig>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Settings of a controller that periodically compares all its objects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ReconcilerConfig {
    /// Interval of the full comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciler_period: Option<GoDuration>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Settings of the node controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeControllerConfig {
    /// Without effect; accepted because upstream's object has the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciler_period: Option<GoDuration>,
    /// Synchronization of Kubernetes node labels to Calico nodes that are separate objects:
    /// `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_labels: Option<String>,
    /// Host endpoints that are created for nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_endpoint: Option<AutoHostEndpointConfig>,
    /// Time for which an address must look leaked before it is released; with 0s only addresses of
    /// deleted nodes and of virtual machines are released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leak_grace_period: Option<GoDuration>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Host endpoints that are created for nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AutoHostEndpointConfig {
    /// Automatic host endpoints: `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_create: Option<String>,
    /// Default host endpoint of each node for all its interfaces: `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_default_host_endpoint: Option<String>,
    /// Templates of further host endpoints.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<HostEndpointTemplate>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Template of host endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HostEndpointTemplate {
    /// Part of the name that distinguishes the endpoints of this template from others of the node.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// Ranges of the node's addresses that are expected at the endpoint.
    #[serde(rename = "interfaceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub interface_cidrs: Vec<String>,
    /// Regular expression for the interfaces of the node that get an endpoint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_pattern: String,
    /// Labels, which override those of the node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the endpoints.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Nodes that get the endpoints; empty selects all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_selector: String,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Settings of the load balancer controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerControllerConfig {
    /// Services that get addresses: all, or only those that request one.
    #[cfg_attr(
        feature = "schema", schemars(extend("enum" = ["AllServices", "RequestedServicesOnly"]))
    )]
    #[serde(rename = "assignIPs", skip_serializing_if = "Option::is_none")]
    pub assign_ips: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Settings of the migration controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationControllerConfig {
    /// Renaming of stored policies to their own names: `Enabled` or `Disabled`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_name_migrator: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `status` of KubeControllersConfiguration: the settings in effect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeControllersConfigurationStatus {
    /// Settings in effect in the running process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_config: Option<KubeControllersConfigurationSpec>,
    /// Environment variables that override settings.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment_vars: BTreeMap<String, String>,
}
