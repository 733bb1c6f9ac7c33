//! What is in force: environment over KubeControllersConfiguration over defaults (KC-130).

use std::collections::BTreeSet;
use std::time::Duration;

use libcalico::host_endpoints::AutoHostEndpoints;

/// The names under which controllers are enabled (KC-004).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ControllerName {
    /// Addresses, blocks, labels and host endpoints of nodes.
    Node,
    /// Kubernetes network policies (etcd).
    Policy,
    /// Profiles of namespaces (etcd).
    Namespace,
    /// Profiles of service accounts (etcd).
    ServiceAccount,
    /// Labels of endpoints, and endpoints whose pod is gone (etcd).
    WorkloadEndpoint,
    /// Addresses of Services.
    LoadBalancer,
}

/// Everything that decides what the process does. Durations of zero mean off where upstream has it so.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Which controllers run.
    pub enabled: BTreeSet<ControllerName>,
    /// How often each etcd controller compares everything.
    pub reconcile_period: std::collections::BTreeMap<ControllerName, Duration>,
    /// How many workers each controller has.
    pub workers: std::collections::BTreeMap<ControllerName, usize>,
    /// How long an address must have looked leaked before it is released; `None` or zero: never (KC-438).
    pub leak_grace_period: Option<Duration>,
    /// Whether labels of nodes are copied to Calico's nodes (etcd).
    pub sync_node_labels: bool,
    /// Which HostEndpoints nodes get by themselves.
    pub host_endpoints: AutoHostEndpoints,
    /// Which Services get addresses.
    pub assign_ips: AssignIps,
    /// How the garbage collection treats what it finds.
    pub gc: Gc,
}

/// Which Services of type LoadBalancer get addresses from our pools (KC-501).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AssignIps {
    /// All, but for those of another class.
    #[default]
    AllServices,
    /// Those that ask for it.
    RequestedServicesOnly,
    /// None: a value that is not known here.
    None,
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
