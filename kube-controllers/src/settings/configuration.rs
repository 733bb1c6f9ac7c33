//! KubeControllersConfiguration as this program writes it: the default configuration and
//! `status.runningConfig`.

use libcalico::api::{
    AutoHostEndpointConfig, ControllersConfig, GoDuration, KubeControllersConfigurationSpec,
    LoadBalancerControllerConfig, MigrationControllerConfig, NodeControllerConfig,
    ReconcilerConfig,
};
use libcalico::validation::complete_kube_controllers_configuration;

use super::controllers::ControllerName;
use super::environment::Environment;
use super::{AssignIps, Settings};

const ENABLED: &str = "Enabled";
const DISABLED: &str = "Disabled";
pub(super) const SWITCH: [(&str, bool); 2] = [(ENABLED, true), (DISABLED, false)];
pub(super) const ASSIGN_IPS: [(&str, AssignIps); 2] = AssignIps::WORDS;
pub(super) const RECONCILE_PERIOD: GoDuration = GoDuration::from_mins(5);
pub(super) const COMPACTION_PERIOD: GoDuration = GoDuration::from_mins(10);

/// Returns upstream's default configuration, in which all controllers are enabled (KC-133).
pub fn default_configuration() -> KubeControllersConfigurationSpec {
    let text = |word: &str| Some(word.to_owned());
    let every = || {
        Some(ReconcilerConfig {
            reconciler_period: Some(RECONCILE_PERIOD),
            ..ReconcilerConfig::default()
        })
    };
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
            migration: Some(migration(true)),
            ..ControllersConfig::default()
        },
        ..KubeControllersConfigurationSpec::default()
    };
    complete_kube_controllers_configuration(&mut spec);
    spec
}

/// Returns the settings of the process, and a section for each controller that runs. Ports, and the
/// period of the node controller, are not shown, as in upstream's status (KC-135).
pub(super) fn running_configuration(
    settings: &Settings,
    spec: &KubeControllersConfigurationSpec,
    environment: &Environment,
) -> KubeControllersConfigurationSpec {
    let runs = |name| settings.enabled.contains(&name);
    let reconciler = |name| {
        let period = settings.reconcile_period.get(&name)?;
        Some(ReconcilerConfig {
            reconciler_period: Some((*period).into()),
            ..ReconcilerConfig::default()
        })
    };
    let load_balancer = || LoadBalancerControllerConfig {
        assign_ips: settings
            .assign_ips
            .and_then(|which| keyword_for(&ASSIGN_IPS, which)),
        ..LoadBalancerControllerConfig::default()
    };
    let compaction = environment
        .compaction_period
        .as_ref()
        .map(|setting| setting.value);
    let configured = spec
        .controllers
        .node
        .as_ref()
        .is_some_and(|node| node.host_endpoint.is_some());
    let with_host_endpoints = configured || environment.auto_host_endpoints.is_some();
    KubeControllersConfigurationSpec {
        log_severity_screen: Some(settings.log_severity.to_string()),
        health_checks: switch(settings.health_checks),
        etcd_v3_compaction_period: compaction
            .or(spec.etcd_v3_compaction_period)
            .or(Some(COMPACTION_PERIOD)),
        controllers: ControllersConfig {
            node: runs(ControllerName::Node).then(|| node(settings, with_host_endpoints)),
            policy: reconciler(ControllerName::Policy),
            workload_endpoint: reconciler(ControllerName::WorkloadEndpoint),
            service_account: reconciler(ControllerName::ServiceAccount),
            namespace: reconciler(ControllerName::Namespace),
            load_balancer: runs(ControllerName::LoadBalancer).then(load_balancer),
            migration: Some(migration(settings.policy_name_migrator)),
            ..ControllersConfig::default()
        },
        ..KubeControllersConfigurationSpec::default()
    }
}

fn migration(enabled: bool) -> MigrationControllerConfig {
    MigrationControllerConfig {
        policy_name_migrator: switch(enabled),
        ..MigrationControllerConfig::default()
    }
}

/// Returns the section of the node controller. Host endpoints are shown only if the configuration
/// or the environment mentions them.
fn node(settings: &Settings, with_host_endpoints: bool) -> NodeControllerConfig {
    let host_endpoints = &settings.host_endpoints;
    let host_endpoint = AutoHostEndpointConfig {
        auto_create: switch(host_endpoints.enabled),
        create_default_host_endpoint: switch(host_endpoints.default_endpoint),
        templates: host_endpoints.templates.clone(),
        ..AutoHostEndpointConfig::default()
    };
    NodeControllerConfig {
        reconciler_period: None,
        sync_labels: switch(settings.sync_node_labels),
        host_endpoint: with_host_endpoints.then_some(host_endpoint),
        leak_grace_period: settings.leak_grace_period.map(GoDuration::from),
        ..NodeControllerConfig::default()
    }
}

fn switch(on: bool) -> Option<String> {
    keyword_for(&SWITCH, on)
}

/// Returns the word with this meaning, or `None` if no word has it.
fn keyword_for<T: PartialEq>(words: &[(&str, T)], meaning: T) -> Option<String> {
    words
        .iter()
        .find(|(_, value)| *value == meaning)
        .map(|(word, _)| (*word).to_owned())
}

/// Returns the section of an etcd controller. Returns `None` if there is no section, and for other
/// controllers.
pub(super) fn section_of(
    sections: &ControllersConfig,
    name: ControllerName,
) -> Option<&ReconcilerConfig> {
    match name {
        ControllerName::Policy => sections.policy.as_ref(),
        ControllerName::Namespace => sections.namespace.as_ref(),
        ControllerName::ServiceAccount => sections.service_account.as_ref(),
        ControllerName::WorkloadEndpoint => sections.workload_endpoint.as_ref(),
        ControllerName::Node | ControllerName::LoadBalancer => None,
    }
}
