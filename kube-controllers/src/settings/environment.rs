//! [`Environment`]: the environment variables, read once.

use std::collections::{BTreeMap, BTreeSet};

use libcalico::api::GoDuration;
use libcalico::variables::Variables;

use super::controllers::{self, ControllerName};
use super::parse::{self, SettingsError};
use super::variables::{
    AUTO_HOST_ENDPOINTS, COMPACTION_PERIOD, ENABLED_CONTROLLERS, GC_MODE, GC_PARALLELISM,
    GC_REQUESTS_PER_SECOND, HEALTH_ENABLED, LEADER_ELECTION, LEADER_ELECTION_NAME,
    LEADER_ELECTION_NAMESPACE, LEAK_GRACE_PERIOD, LOG_LEVEL, NODE_WORKERS,
    ORPHAN_ENDPOINT_GRACE_PERIOD, POLICY_WORKERS, PROFILE_WORKERS, PROMETHEUS_METRICS_PORT,
    RECONCILER_PERIOD, STATUS_LIVENESS, SYNC_NODE_LABELS, WORKLOAD_ENDPOINT_WORKERS,
};
use super::{GcLimits, GcMode, LogSeverity, Mode, Settings};

/// The settings in the environment. An empty variable counts as unset.
#[derive(Debug, Clone, PartialEq)]
pub struct Environment {
    pub(super) log_severity: Option<Override<LogSeverity>>,
    pub(super) enabled: Option<Override<BTreeSet<ControllerName>>>,
    pub(super) reconcile_period: Option<Override<GoDuration>>,
    pub(super) compaction_period: Option<Override<GoDuration>>,
    pub(super) health_checks: Option<Override<bool>>,
    pub(super) sync_node_labels: Option<Override<bool>>,
    pub(super) auto_host_endpoints: Option<Override<bool>>,
    pub(super) leak_grace_period: Option<Override<GoDuration>>,
    pub(super) metrics_port: Option<Override<u16>>,
    pub(super) orphan_endpoint_grace_period: Option<GoDuration>,
    pub(super) workers: BTreeMap<ControllerName, usize>,
    pub(super) node_workers: Option<NodeWorkers>,
    pub(super) gc_mode: GcMode,
    pub(super) gc_limits: GcLimits,
    /// The way in which this replica obtains the right to write.
    pub leader_election: LeaderElection,
    /// The Lease of the leader election.
    pub lease: Lease,
    /// The condition that `check-status -l` tests.
    pub status_liveness: StatusLiveness,
}

/// The value of a variable, with the original text.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Override<T> {
    pub(super) variable: &'static str,
    pub(super) text: String,
    pub(super) value: T,
}

/// `NODE_WORKERS`, whose invalid value is no error.
pub(super) type NodeWorkers = Override<Result<usize, SettingsError>>;

impl NodeWorkers {
    /// Returns a message if the value is invalid, or if no controller that runs with `settings` has
    /// work for more workers. Garbage collection is not such a controller. Upstream reads the
    /// variable and uses it for nothing, so no value of it may end the process.
    pub(super) fn note(&self, settings: &Settings, mode: Mode) -> Option<String> {
        let (variable, text) = (self.variable, self.text.trim());
        if let Err(error) = &self.value {
            return Some(format!("{error}; 1 worker is in force"));
        }
        if !settings.enabled.contains(&ControllerName::Node) {
            return Some(format!(
                "{variable}={text} has no effect: the controller node is not enabled"
            ));
        }
        let is_used = match mode {
            Mode::Etcd => true,
            // The other controllers that use these workers copy labels and delete nodes, which only
            // etcd needs.
            Mode::Kubernetes(_) => settings.host_endpoints.enabled,
        };
        (!is_used).then(|| {
            format!(
                "{variable}={text} has no effect: with the datastore kubernetes only automatic \
                 host endpoints use these workers, and they are off; set GC_PARALLELISM for \
                 garbage collection"
            )
        })
    }
}

/// The way in which this replica obtains the right to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeaderElection {
    /// By the Lease if the role allows its use. Otherwise the replica writes without a Lease, and
    /// does not check for other replicas.
    #[default]
    IfAllowed,
    /// By the Lease only.
    Required,
    /// Without an election. The replica does not check for other replicas.
    Off,
}

/// The condition that `check-status -l` tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StatusLiveness {
    /// Readiness, as upstream does (KC-143).
    #[default]
    Readiness,
    /// Heartbeats in the status file, so that an unreachable server does not fail liveness.
    Heartbeat,
}

/// Identifier of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
}

impl Environment {
    /// Reads the environment variables.
    pub fn read(variables: Variables<'_>) -> Result<Self, SettingsError> {
        let variables = &variables;
        let GcLimits {
            parallelism,
            requests_per_second,
        } = GcLimits::default();
        let gc_mode = parse::keyword(
            "not reclaim or report",
            [("reclaim", GcMode::Reclaim), ("report", GcMode::Report)],
        );
        let liveness = [
            ("readiness", StatusLiveness::Readiness),
            ("heartbeat", StatusLiveness::Heartbeat),
        ];
        let liveness = parse::keyword("not readiness or heartbeat", liveness);
        let switch = parse::keyword(
            "not enabled or disabled",
            [("enabled", true), ("disabled", false)],
        );
        let node_workers = override_of(variables, NODE_WORKERS, |variable, text| {
            Ok(parse::count(variable, text))
        })?;
        let node_worker_count = node_workers
            .as_ref()
            .and_then(|given| given.value.as_ref().ok())
            .copied();
        Ok(Environment {
            log_severity: override_of(variables, LOG_LEVEL, |variable, text| {
                parse::parsed(
                    variable,
                    text,
                    "not one of panic, fatal, error, warning, info, debug, trace",
                )
            })?,
            enabled: override_of(variables, ENABLED_CONTROLLERS, |_, list| {
                controllers::parse(list)
            })?,
            reconcile_period: override_of(variables, RECONCILER_PERIOD, parse::duration)?,
            compaction_period: override_of(variables, COMPACTION_PERIOD, parse::duration)?,
            health_checks: override_of(variables, HEALTH_ENABLED, parse::boolean)?,
            sync_node_labels: override_of(variables, SYNC_NODE_LABELS, parse::boolean)?,
            auto_host_endpoints: override_of(variables, AUTO_HOST_ENDPOINTS, switch)?,
            leak_grace_period: override_of(variables, LEAK_GRACE_PERIOD, parse::duration)?,
            metrics_port: override_of(variables, PROMETHEUS_METRICS_PORT, parse::port)?,
            orphan_endpoint_grace_period: variables
                .parsed(ORPHAN_ENDPOINT_GRACE_PERIOD, parse::duration)?,
            workers: workers(variables, node_worker_count.unwrap_or(1))?,
            node_workers,
            gc_mode: variables.parsed(GC_MODE, gc_mode)?.unwrap_or_default(),
            gc_limits: GcLimits {
                parallelism: variables
                    .parsed(GC_PARALLELISM, parse::count)?
                    .unwrap_or(parallelism),
                requests_per_second: variables
                    .parsed(GC_REQUESTS_PER_SECOND, parse::rate)?
                    .unwrap_or(requests_per_second),
            },
            leader_election: match variables.parsed(LEADER_ELECTION, parse::boolean)? {
                None => LeaderElection::IfAllowed,
                Some(true) => LeaderElection::Required,
                Some(false) => LeaderElection::Off,
            },
            lease: Lease {
                namespace: variables
                    .trimmed(LEADER_ELECTION_NAMESPACE)
                    .unwrap_or_else(|| "kube-system".into()),
                name: variables
                    .trimmed(LEADER_ELECTION_NAME)
                    .unwrap_or_else(|| "calico-kube-controllers".into()),
            },
            status_liveness: variables
                .parsed(STATUS_LIVENESS, liveness)?
                .unwrap_or_default(),
        })
    }

    /// Returns the severity to log at until KubeControllersConfiguration has been read.
    pub fn first_log_severity(&self) -> LogSeverity {
        self.log_severity
            .as_ref()
            .map_or(LogSeverity::default(), |setting| setting.value)
    }

    /// Returns true if the servers are checked for the probes until KubeControllersConfiguration
    /// has been read.
    pub fn first_health_checks(&self) -> bool {
        self.health_checks
            .as_ref()
            .is_none_or(|setting| setting.value)
    }
}

fn workers(
    variables: &Variables<'_>,
    of_node: usize,
) -> Result<BTreeMap<ControllerName, usize>, SettingsError> {
    let mut workers = BTreeMap::from(ControllerName::ALL.map(|name| (name, 1)));
    workers.insert(ControllerName::Node, of_node);
    for (variable, controllers) in [
        (
            WORKLOAD_ENDPOINT_WORKERS,
            &[ControllerName::WorkloadEndpoint][..],
        ),
        (
            PROFILE_WORKERS,
            &[ControllerName::Namespace, ControllerName::ServiceAccount],
        ),
        (POLICY_WORKERS, &[ControllerName::Policy]),
    ] {
        if let Some(count) = variables.parsed(variable, parse::count)? {
            workers.extend(controllers.iter().map(|name| (*name, count)));
        }
    }
    Ok(workers)
}

/// Returns the parsed value of a variable with its text, or `None` if the variable is unset.
fn override_of<T>(
    variables: &Variables<'_>,
    variable: &'static str,
    parse: impl Fn(&'static str, &str) -> Result<T, SettingsError>,
) -> Result<Option<Override<T>>, SettingsError> {
    let value = variables.parsed(variable, parse)?;
    Ok(value.map(|value| Override {
        variable,
        text: variables.get(variable).unwrap_or_default(),
        value,
    }))
}
