//! KubeControllersConfiguration: the settings of kube-controllers, and what is in force of them (DS-106, KC-130).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::go_duration::GoDuration;
use super::{Object, Spec, Unknown};

/// the settings of kube-controllers, and what is in force of them (DS-106, KC-130).
pub type KubeControllersConfiguration = Object<KubeControllersConfigurationSpec>;

/// `spec` of KubeControllersConfiguration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeControllersConfigurationSpec {
    /// What is logged: this and what is worse.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["None", "Debug", "Info", "Warning", "Error", "Fatal", "Panic"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_severity_screen: Option<String>,
    /// Whether the datastore and the API server are looked at for the probes.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_checks: Option<String>,
    /// How often etcd is compacted; 0s: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_v3_compaction_period: Option<GoDuration>,
    /// TCP port of the metrics; 0: none.
    #[cfg_attr(feature = "schema", schemars(range(min = 0, max = 65535)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prometheus_metrics_port: Option<i64>,
    /// The controllers. One that has no section does not run.
    pub controllers: ControllersConfig,
    /// TCP port on localhost for profiles of the process; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_profile_port: Option<i32>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A section for each controller.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ControllersConfig {
    /// Nodes: addresses that nobody holds, labels, host endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeControllerConfig>,
    /// Network policies of Kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<ReconcilerConfig>,
    /// Labels of endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_endpoint: Option<ReconcilerConfig>,
    /// Profiles of service accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ReconcilerConfig>,
    /// Profiles of namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<ReconcilerConfig>,
    /// Addresses of Services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancerControllerConfig>,
    /// Names of policies of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration: Option<MigrationControllerConfig>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A controller that compares everything from time to time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ReconcilerConfig {
    /// How often it compares everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciler_period: Option<GoDuration>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What is done for nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NodeControllerConfig {
    /// Without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconciler_period: Option<GoDuration>,
    /// Whether labels of Kubernetes' nodes are copied to Calico's, where those are objects of their own.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_labels: Option<String>,
    /// Host endpoints that are made for nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_endpoint: Option<AutoHostEndpointConfig>,
    /// How long an address must have looked leaked before it is taken back; 0s: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leak_grace_period: Option<GoDuration>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Host endpoints that are made for nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct AutoHostEndpointConfig {
    /// Whether any are made.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_create: Option<String>,
    /// Whether each node gets one for all its interfaces.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create_default_host_endpoint: Option<String>,
    /// Further ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub templates: Vec<HostEndpointTemplate>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A pattern for host endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct HostEndpointTemplate {
    /// Tells the endpoints of this template from others of the node.
    #[cfg_attr(feature = "schema", schemars(length(max = 253)))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// The addresses of the node that are expected at the endpoint.
    #[serde(rename = "interfaceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub interface_cidrs: Vec<String>,
    /// The interfaces of the node that get an endpoint, as a regular expression.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface_pattern: String,
    /// Labels, stronger than those of the node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The nodes that get it; empty: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_selector: String,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Which Services get addresses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerControllerConfig {
    /// All of them, or those that ask for one.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["AllServices", "RequestedServicesOnly"])))]
    #[serde(rename = "assignIPs", skip_serializing_if = "Option::is_none")]
    pub assign_ips: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Names of policies of earlier versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationControllerConfig {
    /// Whether policies are stored under their own names.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["Enabled", "Disabled"])))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_name_migrator: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// `status` of KubeControllersConfiguration: what is in force (KC-135).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct KubeControllersConfigurationStatus {
    /// What the process does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_config: Option<KubeControllersConfigurationSpec>,
    /// The environment variables that decided some of it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment_vars: BTreeMap<String, String>,
}

impl Spec for KubeControllersConfigurationSpec {
    const KIND: &'static str = "KubeControllersConfiguration";
    const PLURAL: &'static str = "kubecontrollersconfigurations";
}
