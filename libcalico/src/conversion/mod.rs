//! Calico's objects made from what a runtime or an orchestrator knows.

mod endpoint;
mod profile;
#[cfg(test)]
mod recordings;

pub use endpoint::{ContainerFacts, EndpointFacts, NAMESPACE_LABEL, ORCHESTRATOR_LABEL, Orchestrator, PodFacts};
pub use profile::{ProfileReach, default_profile};
