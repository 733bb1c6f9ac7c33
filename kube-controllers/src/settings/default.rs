//! The configuration that is created if there is none.

use libcalico::api::{
    AutoHostEndpointConfig, ControllersConfig, GoDuration, KubeControllersConfigurationSpec,
    LoadBalancerControllerConfig, MigrationControllerConfig, NodeControllerConfig, ReconcilerConfig,
};
use libcalico::validation::complete_kube_controllers_configuration;

pub(super) const ENABLED: &str = "Enabled";
pub(super) const DISABLED: &str = "Disabled";
pub(super) const ALL_SERVICES: &str = "AllServices";
pub(super) const REQUESTED_SERVICES_ONLY: &str = "RequestedServicesOnly";
pub(super) const RECONCILE_PERIOD: GoDuration = GoDuration::from_mins(5);
pub(super) const COMPACTION_PERIOD: GoDuration = GoDuration::from_mins(10);

/// Returns upstream's default configuration, in which all controllers are enabled (KC-133).
pub fn default_configuration() -> KubeControllersConfigurationSpec {
    let text = |word: &str| Some(word.to_owned());
    let every = || Some(ReconcilerConfig { reconciler_period: Some(RECONCILE_PERIOD), ..ReconcilerConfig::default() });
    let host_endpoint = AutoHostEndpointConfig {
        auto_create: text(DISABLED),
        create_default_host_endpoint: text(ENABLED),
        ..AutoHostEndpointConfig::default()
    };
    let node = NodeControllerConfig {
        reconciler_period: Some(RECONCILE_PERIOD),
        sync_labels: text(ENABLED),
        host_endpoint: Some(host_endpoint),
        ..NodeControllerConfig::default()
    };
    let migration =
        MigrationControllerConfig { policy_name_migrator: text(ENABLED), ..MigrationControllerConfig::default() };
    let mut spec = KubeControllersConfigurationSpec {
        log_severity_screen: text("Info"),
        health_checks: text(ENABLED),
        etcd_v3_compaction_period: Some(COMPACTION_PERIOD),
        controllers: ControllersConfig {
            node: Some(node),
            policy: every(),
            workload_endpoint: every(),
            service_account: every(),
            namespace: every(),
            load_balancer: Some(LoadBalancerControllerConfig::default()),
            migration: Some(migration),
            ..ControllersConfig::default()
        },
        ..KubeControllersConfigurationSpec::default()
    };
    complete_kube_controllers_configuration(&mut spec);
    spec
}
