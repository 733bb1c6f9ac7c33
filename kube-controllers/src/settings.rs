//! What is in force: environment over KubeControllersConfiguration over defaults (KC-130). No I/O: the environment is a
//! lookup, the object is given.

mod controllers;
mod default;
mod environment;
mod error;
mod log_severity;
mod merge;
mod running;
mod value;
pub mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use libcalico::host_endpoints::AutoHostEndpoints;

pub use controllers::ControllerName;
pub use default::default_configuration;
pub use environment::{Environment, LeaderElection, Lease, StatusLiveness};
pub use error::SettingsError;
pub use log_severity::LogSeverity;
pub use merge::{Merged, merge};

/// Everything that decides what the controllers do. A period of zero means off.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What is logged.
    pub log_severity: LogSeverity,
    /// Which controllers run.
    pub enabled: BTreeSet<ControllerName>,
    /// How often each etcd controller compares everything, beside the first time, which is always.
    pub reconcile_period: BTreeMap<ControllerName, Duration>,
    /// How many workers each controller has; at least 1.
    pub workers: BTreeMap<ControllerName, usize>,
    /// How long an address must have looked leaked before it is released; `None` or zero: never (KC-438).
    pub leak_grace_period: Option<Duration>,
    /// How long an endpoint must have been without its pod before it is deleted (etcd); zero: never (O-1).
    pub orphan_endpoint_grace_period: Duration,
    /// Whether labels of nodes are copied to Calico's nodes (etcd).
    pub sync_node_labels: bool,
    /// Whether Calico's nodes go when those of Kubernetes are gone (etcd).
    pub delete_nodes: bool,
    /// Which HostEndpoints nodes get by themselves. All templates are usable: their names differ, their selectors
    /// parse.
    pub host_endpoints: AutoHostEndpoints,
    /// The Services that get addresses; `None` for a word that is not known: no Service gets or loses an address then.
    pub assign_ips: Option<AssignIps>,
    /// Whether policies are stored under their own names (KC-280).
    pub policy_name_migrator: bool,
    /// How often etcd is compacted; zero: never.
    pub compaction_period: Duration,
    /// Whether the datastore and the API server are looked at for the probes.
    pub health_checks: bool,
    /// TCP port of the metrics, on all addresses.
    pub metrics_port: Option<u16>,
    /// TCP port of profiles, on localhost.
    pub debug_profile_port: Option<u16>,
    /// How the garbage collection treats what it finds.
    pub gc: Gc,
    /// How fast it may be.
    pub gc_limits: GcLimits,
}

/// Which Services of type LoadBalancer get addresses from our pools (KC-501).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AssignIps {
    /// All, but for those of another class.
    #[default]
    AllServices,
    /// Those that ask for it.
    RequestedServicesOnly,
}

/// What garbage collection does with its findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gc {
    /// Takes them back.
    #[default]
    Reclaim,
    /// Says what it would take back (`GC_MODE=report`).
    Report,
}

/// What garbage collection may ask of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcLimits {
    /// How many blocks or handles are worked on, and pods read, at once (`GC_PARALLELISM`).
    pub parallelism: usize,
    /// Requests per second (`GC_REQUESTS_PER_SECOND`); 0: no limit but that of the client.
    pub requests_per_second: u32,
}

impl Default for GcLimits {
    fn default() -> Self {
        GcLimits { parallelism: 8, requests_per_second: 0 }
    }
}

impl Settings {
    /// Returns how many workers a controller has.
    pub fn workers_of(&self, name: ControllerName) -> usize {
        self.workers.get(&name).copied().unwrap_or(1)
    }

    /// Whether the controllers must begin anew to follow `next`. What is read at each use, and what the process itself
    /// follows, changes under them.
    pub fn restarts_for(&self, next: &Settings) -> bool {
        let followed = Settings {
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
        followed != *next
    }
}

#[cfg(test)]
mod tests;
