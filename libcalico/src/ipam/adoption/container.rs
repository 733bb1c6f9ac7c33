//! [`prove_container`]: the container of a running workload, from the evidence on its node.

use crate::names::InterfaceAlias;

/// The statement of a source of evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement<T> {
    /// The source answered.
    Known(T),
    /// The source says nothing, for this reason.
    Unknown(String),
}

/// The evidence on a node for the container of a workload.
#[derive(Debug, Clone)]
pub struct ContainerEvidence<'a> {
    /// The name of the workload's host interface.
    pub interface: &'a str,
    /// An alias of the workload on its network, with any container.
    pub expected: &'a InterfaceAlias,
    /// The alias of the host interface.
    pub alias: Statement<InterfaceAlias>,
    /// The IDs of the workload's sandboxes that are ready, according to the container runtime.
    /// Empty if the runtime does not know the workload, as for another runtime's socket.
    pub sandboxes: Statement<Vec<String>>,
    /// The container that the stored WorkloadEndpoint names, where the plugin writes it. A restored
    /// one may be old, so it is no evidence by itself.
    pub endpoint: Option<&'a str>,
}

/// The reason why the owner of a used address is not proven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnprovenOwner {
    /// No source names the container.
    #[error("the container is unknown: {interface}; {runtime}")]
    NoContainer {
        /// The result of the look at the interface.
        interface: String,
        /// The answer of the runtime.
        runtime: String,
    },
    /// The interface with the workload's name is another workload's, or was created on another
    /// network.
    #[error(
        "interface {0} was created for another pod or on another network; --network names the \
         network"
    )]
    ForeignInterface(String),
    /// The interface is not of the sandbox that runs.
    #[error(
        "interface {interface} is of container {of_interface}, but the runtime runs container \
         {running}"
    )]
    DifferentContainers {
        /// The interface.
        interface: String,
        /// The container, or a digest of it, in the alias of the interface.
        of_interface: String,
        /// The container that the runtime runs.
        running: String,
    },
    /// The stored endpoint is of another container than the running one.
    #[error(
        "the WorkloadEndpoint names container {endpoint}, but container {running} runs; restart \
         the pod"
    )]
    DifferentEndpoint {
        /// The container in the endpoint.
        endpoint: String,
        /// The container that runs.
        running: String,
    },
    /// The runtime runs several sandboxes of the pod.
    #[error("the runtime has several ready sandboxes of the pod: {}", .0.join(", "))]
    SeveralSandboxes(Vec<String>),
    /// The pod has no stored endpoint, where the plugin writes one.
    #[error("the pod has no WorkloadEndpoint; restart the pod")]
    NoEndpoint,
    /// The status of the pod contradicts the stored endpoint.
    #[error("the WorkloadEndpoint lists the address, but the status of the pod does not")]
    NotInStatus,
    /// The kernel contradicts the stored endpoint.
    #[error(
        "the WorkloadEndpoint lists the address, but the node has no route to it through interface \
         {0}"
    )]
    NoRoute(String),
    /// The kernel contradicts the status of the pod, which may be that of an earlier sandbox.
    #[error(
        "the node routes other addresses to interface {0}; the pod's status may be outdated, adopt \
         again"
    )]
    OtherRoutes(String),
    /// The virtual machine of the pod cannot be used.
    #[error("{0}")]
    VirtualMachine(String),
}

/// Returns the ID of the workload's container. A source that says nothing is passed over, but two
/// sources that differ prove nothing.
pub fn prove_container(evidence: &ContainerEvidence<'_>) -> Result<String, UnprovenOwner> {
    let interface = evidence.interface.to_owned();
    let running = match &evidence.sandboxes {
        Statement::Known(sandboxes) if sandboxes.len() > 1 => {
            return Err(UnprovenOwner::SeveralSandboxes(sandboxes.clone()));
        }
        Statement::Known(sandboxes) => sandboxes.first().map(String::as_str),
        Statement::Unknown(_) => None,
    };
    let alias = match &evidence.alias {
        Statement::Known(alias) if !alias.is_of_same_pod(evidence.expected) => {
            return Err(UnprovenOwner::ForeignInterface(interface));
        }
        Statement::Known(alias) => Some(alias),
        Statement::Unknown(_) => None,
    };
    let container = match (alias, running) {
        (Some(alias), Some(running)) if !alias.is_of_container(running) => {
            let of_interface = alias.container().to_owned();
            return Err(UnprovenOwner::DifferentContainers {
                interface,
                of_interface,
                running: running.into(),
            });
        }
        (_, Some(running)) => running,
        // The stored endpoint has the ID that the alias contains as a digest.
        (Some(alias), None) => alias
            .container_id()
            .or_else(|| {
                evidence
                    .endpoint
                    .filter(|endpoint| alias.is_of_container(endpoint))
            })
            .ok_or_else(|| unknown(evidence))?,
        (None, None) => return Err(unknown(evidence)),
    };
    match evidence.endpoint.filter(|endpoint| *endpoint != container) {
        Some(endpoint) => Err(UnprovenOwner::DifferentEndpoint {
            endpoint: endpoint.into(),
            running: container.into(),
        }),
        None => Ok(container.to_owned()),
    }
}

fn unknown(evidence: &ContainerEvidence<'_>) -> UnprovenOwner {
    let interface = match &evidence.alias {
        Statement::Known(_) => format!(
            "the alias of interface {} has only a digest",
            evidence.interface
        ),
        Statement::Unknown(reason) => reason.clone(),
    };
    let runtime = match &evidence.sandboxes {
        Statement::Known(_) => "the runtime has no ready sandbox of the workload".into(),
        Statement::Unknown(reason) => reason.clone(),
    };
    UnprovenOwner::NoContainer { interface, runtime }
}
