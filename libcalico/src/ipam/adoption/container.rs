//! [`prove_container`]: the container of a running workload, from the evidence on its node.

use crate::failure::Failure;
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

/// Returns the ID of the workload's container. A source that says nothing is passed over, but two
/// sources that differ prove nothing.
pub fn prove_container(evidence: &ContainerEvidence<'_>) -> Result<String, Failure> {
    let interface = evidence.interface;
    let running = match &evidence.sandboxes {
        Statement::Known(sandboxes) if sandboxes.len() > 1 => {
            return Err(
                Failure::new("the runtime has several ready sandboxes of the pod")
                    .because(sandboxes.join(", ")),
            );
        }
        Statement::Known(sandboxes) => sandboxes.first().map(String::as_str),
        Statement::Unknown(_) => None,
    };
    let alias = match &evidence.alias {
        Statement::Known(alias) if !alias.is_of_same_pod(evidence.expected) => {
            return Err(foreign_interface(interface));
        }
        Statement::Known(alias) => Some(alias),
        Statement::Unknown(_) => None,
    };
    let container = match (alias, running) {
        (Some(alias), Some(running)) if !alias.is_of_container(running) => {
            return Err(Failure::new(format_args!(
                "interface {interface} is of container {}, but the runtime runs container \
                 {running}",
                alias.container()
            )));
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
        Some(endpoint) => Err(Failure::new(format_args!(
            "the WorkloadEndpoint names container {endpoint}, but container {container} runs"
        ))
        .way_out("restart the pod")),
        None => Ok(container.to_owned()),
    }
}

/// Returns the failure of an interface that has the workload's name, but is another workload's, or
/// was created on another network.
pub fn foreign_interface(interface: &str) -> Failure {
    Failure::new(format_args!(
        "interface {interface} was created for another pod or on another network"
    ))
    .way_out("--network names the network")
}

/// Returns the failure if no source names the container.
fn unknown(evidence: &ContainerEvidence<'_>) -> Failure {
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
    Failure::new("the container is unknown").because(format_args!("{interface}; {runtime}"))
}
