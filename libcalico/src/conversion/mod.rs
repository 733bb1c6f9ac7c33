//! Calico's objects made from what a runtime or an orchestrator knows.

mod facts;
mod profile;
#[cfg(test)]
mod recordings;
mod workload_endpoint;

pub use facts::{ContainerFacts, EndpointFacts, NAMESPACE_LABEL, ORCHESTRATOR_LABEL, Orchestrator, PodFacts};
pub use profile::{ProfileReach, default_profile};
