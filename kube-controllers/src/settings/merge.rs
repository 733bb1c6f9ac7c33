//! [`merge`]: computes the effective settings from the environment and
//! KubeControllersConfiguration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libcalico::api::{
    AutoHostEndpointConfig, HostEndpointTemplate, KubeControllersConfigurationSpec,
    KubeControllersConfigurationStatus,
};
use libcalico::host_endpoints::AutoHostEndpoints;
use libcalico::validation::{complete_kube_controllers_configuration, invalid_templates};

use super::configuration::{
    ASSIGN_IPS, COMPACTION_PERIOD, RECONCILE_PERIOD, SWITCH, running_configuration, section_of,
};
use super::controllers::ControllerName;
use super::environment::{Environment, Override};
use super::{AssignIps, LogSeverity, Mode, Settings};

/// Minimum grace period of an endpoint without its pod, unless the environment sets the period.
const MIN_ORPHAN_GRACE_PERIOD: Duration = Duration::from_secs(300);

/// The port of the metrics in the Deployment and the Service of `deploy/`. The chart moves both
/// with the variable.
const PORT_OF_SERVICE: u16 = 9094;

/// Minimum interval of comparisons and compactions, unless the interval is zero. Each of them loads
/// the datastore.
const MIN_PERIOD: Duration = Duration::from_secs(1);

/// The effective settings, with the status and messages that result from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// The effective settings.
    pub settings: Settings,
    /// The `status` of the configuration.
    pub status: KubeControllersConfigurationStatus,
    /// Parts of the configuration that cannot be followed, for the log.
    pub notes: Vec<String>,
    /// Invalid values, each with its effect. No object that is in use is removed because of them.
    pub problems: Vec<String>,
}

/// Merges the configuration with the environment. A variable takes precedence over its field, and
/// `AUTO_HOST_ENDPOINTS` over its whole section (KC-130). `spec` may lack the defaults that
/// upstream's client adds; these defaults are added here.
pub fn merge(
    environment: &Environment,
    spec: &KubeControllersConfigurationSpec,
    mode: Mode,
) -> Merged {
    let mut spec = spec.clone();
    complete_kube_controllers_configuration(&mut spec);
    let mut merger = Merger {
        used_variables: BTreeMap::new(),
        notes: Vec::new(),
        problems: Vec::new(),
        environment,
        spec,
        mode,
    };
    let settings = merger.settings();
    let workers = environment.node_workers.as_ref();
    merger
        .notes
        .extend(workers.and_then(|given| given.note(&settings, mode)));
    let Merger {
        used_variables,
        notes,
        problems,
        spec,
        ..
    } = merger;
    let running_config = Some(running_configuration(&settings, &spec, environment));
    let status = KubeControllersConfigurationStatus {
        running_config,
        environment_vars: used_variables,
    };
    Merged {
        settings,
        status,
        notes,
        problems,
    }
}

struct Merger<'a> {
    environment: &'a Environment,
    spec: KubeControllersConfigurationSpec,
    mode: Mode,
    /// The variables that decided a setting, for the status.
    used_variables: BTreeMap<String, String>,
    notes: Vec<String>,
    problems: Vec<String>,
}

impl Merger<'_> {
    fn settings(&mut self) -> Settings {
        let environment = self.environment;
        let enabled = self.enabled();
        let log_severity = self.log_severity();
        let is_etcd = match self.mode {
            Mode::Etcd => true,
            Mode::Kubernetes(_) => false,
        };
        let of_node = enabled.contains(&ControllerName::Node);
        let configured = self
            .spec
            .controllers
            .node
            .as_ref()
            .and_then(|node| node.leak_grace_period);
        let leak_grace_period = self
            .take_override(&environment.leak_grace_period)
            .or(configured);
        // The default applies if the environment enabled the controller and the configuration has
        // no section for it.
        let leak_grace_period =
            leak_grace_period.map_or(Duration::from_secs(900), |period| period.duration());
        let compaction = self.take_override(&environment.compaction_period);
        let compaction = compaction
            .or(self.spec.etcd_v3_compaction_period)
            .unwrap_or(COMPACTION_PERIOD);
        let health_checks = self.health_checks();
        let metrics_port = self.metrics_port();
        Settings {
            log_severity,
            reconcile_period: self.reconcile_periods(&enabled),
            workers: environment.workers.clone(),
            leak_grace_period: Some(leak_grace_period),
            orphan_endpoint_grace_period: match environment.orphan_endpoint_grace_period {
                Some(period) => period.duration(),
                None => leak_grace_period.max(MIN_ORPHAN_GRACE_PERIOD),
            },
            sync_node_labels: of_node && self.sync_node_labels(),
            delete_nodes: of_node && is_etcd,
            host_endpoints: if of_node {
                self.host_endpoints()
            } else {
                AutoHostEndpoints::default()
            },
            assign_ips: self.assign_ips(),
            policy_name_migrator: self.migrates_policy_names(),
            compaction_period: if is_etcd {
                self.at_least_min("etcdV3CompactionPeriod", compaction.duration())
            } else {
                Duration::ZERO
            },
            health_checks,
            metrics_port,
            debug_profile_port: self.port(
                "debugProfilePort",
                self.spec.debug_profile_port.map(i64::from),
            ),
            gc_mode: environment.gc_mode,
            gc_limits: environment.gc_limits,
            enabled,
        }
    }

    /// Returns the value of a variable, and records the variable as one that decided a setting.
    /// Returns `None` if the variable is unset.
    fn take_override<T: Clone>(&mut self, setting: &Option<Override<T>>) -> Option<T> {
        let setting = setting.as_ref()?;
        self.used_variables
            .insert(setting.variable.into(), setting.text.clone());
        Some(setting.value.clone())
    }

    fn enabled(&mut self) -> BTreeSet<ControllerName> {
        let sections = &self.spec.controllers;
        let has_section = |name: &ControllerName| match name {
            ControllerName::Node => sections.node.is_some(),
            ControllerName::LoadBalancer => sections.load_balancer.is_some(),
            name => section_of(sections, *name).is_some(),
        };
        let configured = ControllerName::ALL
            .into_iter()
            .filter(has_section)
            .collect();
        let chosen = self.take_override(&self.environment.enabled);
        match self.mode {
            Mode::Etcd => {
                if chosen.is_none() {
                    self.note_missing_sections(&configured);
                }
                chosen.unwrap_or(configured)
            }
            Mode::Kubernetes(_) => self.without_etcd_only(chosen.unwrap_or(configured)),
        }
    }

    /// Returns the controllers without those that only etcd needs, and names the removed ones.
    fn without_etcd_only(
        &mut self,
        mut enabled: BTreeSet<ControllerName>,
    ) -> BTreeSet<ControllerName> {
        let idle: Vec<_> = enabled
            .extract_if(.., |name| name.is_etcd_only())
            .map(ControllerName::as_str)
            .collect();
        if !idle.is_empty() {
            self.notes.push(format!(
                "not running controllers whose objects the datastore kubernetes derives by \
                 itself: {}",
                idle.join(", ")
            ));
        }
        enabled
    }

    /// Names the controllers that do not run because the configuration lacks their sections
    /// (KC-133).
    fn note_missing_sections(&mut self, configured: &BTreeSet<ControllerName>) {
        let missing = ControllerName::ALL
            .into_iter()
            .filter(|name| !configured.contains(name));
        let missing: Vec<_> = missing.map(ControllerName::section).collect();
        if !missing.is_empty() {
            self.notes.push(format!(
                "not running the controllers without a section in spec.controllers: {0}; add the \
                 section (`{1}: {{}}`) to run a controller",
                missing.join(", "),
                missing[0]
            ));
        }
    }

    fn log_severity(&mut self) -> LogSeverity {
        if let Some(severity) = self.take_override(&self.environment.log_severity) {
            return severity;
        }
        let Some(word) = &self.spec.log_severity_screen else {
            return LogSeverity::default();
        };
        word.parse().unwrap_or_else(|()| {
            self.notes.push(format!(
                "logSeverityScreen: `{word}` is not a severity; Info is in force"
            ));
            LogSeverity::default()
        })
    }

    /// Returns the period of each enabled controller of etcd. A controller without a configured
    /// period has the default period.
    fn reconcile_periods(
        &mut self,
        enabled: &BTreeSet<ControllerName>,
    ) -> BTreeMap<ControllerName, Duration> {
        let given = self.take_override(&self.environment.reconcile_period);
        let period = |name: ControllerName| {
            let configured = section_of(&self.spec.controllers, name)
                .and_then(|section| section.reconciler_period);
            given.or(configured).unwrap_or(RECONCILE_PERIOD).duration()
        };
        let reconcilers = enabled.iter().copied().filter(|name| name.is_etcd_only());
        let periods: Vec<_> = reconcilers.map(|name| (name, period(name))).collect();
        let in_force = |(name, period)| {
            (
                name,
                self.at_least_min(&format!("reconcilerPeriod of {name}"), period),
            )
        };
        periods.into_iter().map(in_force).collect()
    }

    /// Returns the period, or [`MIN_PERIOD`] with a note if the period is shorter. A period of zero
    /// stays.
    fn at_least_min(&mut self, field: &str, period: Duration) -> Duration {
        if period.is_zero() || period >= MIN_PERIOD {
            return period;
        }
        self.notes.push(format!(
            "{field}: {period:?} is too short; {MIN_PERIOD:?} is in force"
        ));
        MIN_PERIOD
    }

    fn sync_node_labels(&mut self) -> bool {
        match self.mode {
            Mode::Etcd => {}
            Mode::Kubernetes(_) => {
                // Calico's node is a view of the Kubernetes node and has the same labels. Upstream
                // also reports `DATASTORE_TYPE` here (KC-122).
                self.used_variables
                    .insert(super::variables::DATASTORE_TYPE.into(), "kubernetes".into());
                return false;
            }
        }
        let configured = self
            .spec
            .controllers
            .node
            .as_ref()
            .and_then(|node| node.sync_labels.clone());
        let given = self.take_override(&self.environment.sync_node_labels);
        given.unwrap_or_else(|| {
            self.keyword(
                "node.syncLabels",
                configured,
                &SWITCH,
                true,
                "no label of a Node is copied",
            ) == Some(true)
        })
    }

    /// Returns the settings of automatic host endpoints. `AUTO_HOST_ENDPOINTS` replaces the whole
    /// section `hostEndpoint`, not only `autoCreate` (KC-130).
    fn host_endpoints(&mut self) -> AutoHostEndpoints {
        if let Some(enabled) = self.take_override(&self.environment.auto_host_endpoints) {
            return AutoHostEndpoints {
                enabled,
                default_endpoint: true,
                ..AutoHostEndpoints::default()
            };
        }
        let section = self
            .spec
            .controllers
            .node
            .as_ref()
            .and_then(|node| node.host_endpoint.clone());
        let AutoHostEndpointConfig {
            auto_create,
            create_default_host_endpoint: create_default,
            templates,
            ..
        } = section.unwrap_or_default();
        let problems_before = self.problems.len();
        let effect = "no automatic host endpoint of an existing node is created or deleted";
        let enabled = self.keyword(
            "hostEndpoint.autoCreate",
            auto_create,
            &SWITCH,
            false,
            effect,
        );
        let effect = "host endpoints for all interfaces of existing nodes stay as they are, and no \
                      automatic host endpoint of these nodes is deleted";
        let default = self.keyword(
            "hostEndpoint.createDefaultHostEndpoint",
            create_default,
            &SWITCH,
            true,
            effect,
        );
        let template_count = templates.len();
        let templates = self.valid_templates(templates);
        if enabled == Some(false) {
            // `Disabled` deletes all automatic host endpoints, so the other fields and their
            // problems have no effect.
            self.problems.truncate(problems_before);
        }
        AutoHostEndpoints {
            enabled: enabled == Some(true),
            default_endpoint: default == Some(true),
            keep: enabled.is_none_or(|enabled| {
                enabled && (default.is_none() || templates.len() < template_count)
            }),
            templates,
        }
    }

    fn valid_templates(
        &mut self,
        templates: Vec<HostEndpointTemplate>,
    ) -> Vec<HostEndpointTemplate> {
        let mut invalid: BTreeMap<_, _> = invalid_templates(&templates)
            .into_iter()
            .map(|(index, error)| (index, error.to_string()))
            .collect();
        for (index, HostEndpointTemplate { generate_name, .. }) in templates.iter().enumerate() {
            // Endpoints are named after their template, so an existing endpoint may belong to any
            // template with this name.
            if templates
                .iter()
                .filter(|other| other.generate_name == *generate_name)
                .count()
                > 1
            {
                let error = || format!("`{generate_name}` is also the name of another template");
                invalid.entry(index).or_insert_with(error);
            }
        }
        let messages = invalid.iter().map(|(index, error)| {
            format!(
                "hostEndpoint.templates[{index}]: {error}; the template is left out, and no \
                 automatic host endpoint of an existing node is deleted"
            )
        });
        self.problems.extend(messages);
        templates
            .into_iter()
            .enumerate()
            .filter(|(index, _)| !invalid.contains_key(index))
            .map(|(_, t)| t)
            .collect()
    }

    fn assign_ips(&mut self) -> Option<AssignIps> {
        let section = self.spec.controllers.load_balancer.as_ref();
        let given = section.and_then(|section| section.assign_ips.clone());
        let consequence = "no Service gets or loses an address";
        self.keyword(
            "loadBalancer.assignIPs",
            given,
            &ASSIGN_IPS,
            AssignIps::default(),
            consequence,
        )
    }

    /// Returns the meaning of the value of a field, `default` if the field is empty, and `None` if
    /// the value is not among `words`. The reported problem then contains `consequence`, the effect
    /// of the invalid value until it is corrected.
    fn keyword<T: Copy>(
        &mut self,
        field: &str,
        given: Option<String>,
        words: &[(&str, T)],
        default: T,
        consequence: &str,
    ) -> Option<T> {
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            return Some(default);
        };
        let meaning = words
            .iter()
            .find(|(word, _)| *word == given)
            .map(|(_, meaning)| *meaning);
        if meaning.is_none() {
            let allowed: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.problems.push(format!(
                "{field}: `{given}` is not one of {}; {consequence}",
                allowed.join(", ")
            ));
        }
        meaning
    }

    fn migrates_policy_names(&mut self) -> bool {
        let section = self.spec.controllers.migration.as_ref();
        let given = section.and_then(|section| section.policy_name_migrator.clone());
        self.keyword(
            "migration.policyNameMigrator",
            given,
            &SWITCH,
            true,
            "no policy is renamed",
        ) == Some(true)
    }

    fn health_checks(&mut self) -> bool {
        let configured = self.spec.health_checks.clone();
        let given = self.take_override(&self.environment.health_checks);
        given.unwrap_or_else(|| {
            self.keyword(
                "healthChecks",
                configured,
                &SWITCH,
                true,
                "the health checks continue",
            ) != Some(false)
        })
    }

    /// Returns the port of the metrics. As with upstream the configuration moves the port, but not
    /// that of the Service.
    fn metrics_port(&mut self) -> Option<u16> {
        if let Some(port) = self.take_override(&self.environment.metrics_port) {
            return self.port("prometheusMetricsPort", Some(port.into()));
        }
        let port = self.port("prometheusMetricsPort", self.spec.prometheus_metrics_port)?;
        if port != PORT_OF_SERVICE {
            self.notes.push(format!(
                "prometheusMetricsPort: {port} is the port of the metrics, but the Service \
                 calico-kube-controllers-metrics of our manifests leads to {PORT_OF_SERVICE}; \
                 change that too (docs/metrics.md)"
            ));
        }
        Some(port)
    }

    fn port(&mut self, field: &str, port: Option<i64>) -> Option<u16> {
        match u16::try_from(port?) {
            Ok(port) => (port != 0).then_some(port),
            Err(_) => {
                self.notes.push(format!(
                    "{field}: {} is not a TCP port; no port is opened",
                    port.unwrap_or_default()
                ));
                None
            }
        }
    }
}
