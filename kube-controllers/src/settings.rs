//! The effective settings. In order of precedence: the environment, KubeControllersConfiguration,
//! the defaults.

mod configuration;
mod controllers;
mod environment;
mod merge;
mod parse;
#[cfg(test)]
mod tests;
pub mod variables;

pub use configuration::default_configuration;
pub use controllers::ControllerName;
pub use environment::{Environment, LeaderElection, Lease, StatusLiveness};
pub use merge::{Merged, merge};
pub use parse::SettingsError;

pub use libcalico::kubernetes::AssignIps;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use libcalico::host_endpoints::AutoHostEndpoints;
use libcalico::kubernetes::ApiGroup;
use tracing::level_filters::LevelFilter;

/// The place where Calico's objects are stored, which decides what the controllers have to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In etcd. Endpoints, profiles and policies are objects of their own.
    Etcd,
    /// In the Kubernetes API, as custom resources of this group. Endpoints are derived from pods,
    /// Calico's nodes are Kubernetes nodes, and calico-node reads Kubernetes policies itself.
    Kubernetes(ApiGroup),
}

/// The settings that the controllers follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Least severity that is logged.
    pub log_severity: LogSeverity,
    /// Controllers that run.
    pub enabled: BTreeSet<ControllerName>,
    /// Interval at which each etcd controller compares all objects. With an interval of zero, only
    /// the comparison at the start happens.
    pub reconcile_period: BTreeMap<ControllerName, Duration>,
    /// Number of workers of each controller, at least 1.
    pub workers: BTreeMap<ControllerName, usize>,
    /// Time for which an address must look leaked before it is released. `None` and zero disable
    /// the release, except of addresses of deleted nodes and of virtual machines (KC-438).
    pub leak_grace_period: Option<Duration>,
    /// Time for which an endpoint must look orphaned, for example because its pod is missing,
    /// before the endpoint is deleted (etcd only). Zero disables this deletion.
    pub orphan_endpoint_grace_period: Duration,
    /// Whether to copy labels of Kubernetes nodes to Calico's nodes (etcd only).
    pub sync_node_labels: bool,
    /// Whether to delete Calico's nodes whose Kubernetes nodes are gone (etcd only).
    pub delete_nodes: bool,
    /// The automatic host endpoints of nodes. All templates are valid: their names differ, and
    /// their selectors parse.
    pub host_endpoints: AutoHostEndpoints,
    /// The Services that receive addresses. `None` stands for an unknown value: no Service of type
    /// LoadBalancer gains or loses an address then.
    pub assign_ips: Option<AssignIps>,
    /// Whether to store policies under their own names, without the prefix of the tier.
    pub policy_name_migrator: bool,
    /// Interval of etcd's compaction; zero disables it.
    pub compaction_period: Duration,
    /// Whether to check the datastore and the API server for the probes.
    pub health_checks: bool,
    /// TCP port of the metrics, on all addresses; `None` opens no port.
    pub metrics_port: Option<u16>,
    /// TCP port of the profiles, on localhost; `None` opens no port.
    pub debug_profile_port: Option<u16>,
    /// The action on objects that garbage collection finds unused or wrong, on orphaned workload
    /// endpoints, and on nodes that were deleted in Kubernetes.
    pub gc_mode: GcMode,
    /// The request limits of garbage collection.
    pub gc_limits: GcLimits,
}

/// The action on objects that garbage collection finds unused or wrong, on orphaned workload
/// endpoints, and on nodes that were deleted in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GcMode {
    /// Releases, deletes or repairs the objects that are unused or wrong.
    #[default]
    Reclaim,
    /// Only reports the objects that are unused or wrong (`GC_MODE=report`).
    Report,
}

/// Limits on the requests of garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcLimits {
    /// Number of blocks, handles or nodes processed, or of objects read, at the same time
    /// (`GC_PARALLELISM`).
    pub parallelism: usize,
    /// Requests per second (`GC_REQUESTS_PER_SECOND`). 0 leaves only the client's own limit.
    pub requests_per_second: u32,
}

impl Default for GcLimits {
    fn default() -> Self {
        GcLimits {
            parallelism: 8,
            requests_per_second: 0,
        }
    }
}

impl Settings {
    /// Returns the number of workers of a controller.
    pub fn workers_of(&self, name: ControllerName) -> usize {
        self.workers.get(&name).copied().unwrap_or(1)
    }

    /// Returns true if the controllers must be restarted to follow `next`.
    pub fn restarts_for(&self, next: &Settings) -> bool {
        let updated = Settings {
            log_severity: next.log_severity,
            leak_grace_period: next.leak_grace_period,
            host_endpoints: next.host_endpoints.clone(),
            orphan_endpoint_grace_period: next.orphan_endpoint_grace_period,
            compaction_period: next.compaction_period,
            health_checks: next.health_checks,
            metrics_port: next.metrics_port,
            debug_profile_port: next.debug_profile_port,
            ..self.clone()
        };
        updated != *next
    }
}

/// The least severity that is logged, by the names of Calico's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogSeverity {
    /// Errors, as [`LogSeverity::Error`]: the log has no higher severity.
    Panic,
    /// Errors, as [`LogSeverity::Error`].
    Fatal,
    /// Failures.
    Error,
    /// Possible problems.
    Warning,
    /// Normal operation.
    #[default]
    Info,
    /// Decisions of the controllers.
    Debug,
    /// The most detailed messages.
    Trace,
}

impl LogSeverity {
    /// Returns the filter of the log for this severity.
    pub fn filter(self) -> LevelFilter {
        match self {
            LogSeverity::Panic | LogSeverity::Fatal | LogSeverity::Error => LevelFilter::ERROR,
            LogSeverity::Warning => LevelFilter::WARN,
            LogSeverity::Info => LevelFilter::INFO,
            LogSeverity::Debug => LevelFilter::DEBUG,
            LogSeverity::Trace => LevelFilter::TRACE,
        }
    }
}

/// Accepts names in any case, and `warn` for `warning`.
impl FromStr for LogSeverity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "panic" => LogSeverity::Panic,
            "fatal" => LogSeverity::Fatal,
            "error" => LogSeverity::Error,
            "warn" | "warning" => LogSeverity::Warning,
            "info" => LogSeverity::Info,
            "debug" => LogSeverity::Debug,
            "trace" => LogSeverity::Trace,
            _ => return Err(()),
        })
    }
}

/// Writes the name as KubeControllersConfiguration does, such as `Info`.
impl fmt::Display for LogSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
