//! Builds Calico's objects from the data of a container runtime or of Kubernetes.
//!
//! Start with `facts`, the identity of an attachment; `workload_endpoint` builds its endpoint. The other modules
//! convert namespaces, service accounts and network policies.

#[cfg(test)]
mod controllers_recording;
mod namespace;
mod network_policy;
mod profile;
#[cfg(test)]
mod recordings;
mod workload_endpoint;

pub use crate::workload::{
    ContainerFacts, EndpointFacts, KUBERNETES, NAMESPACE_LABEL, ORCHESTRATOR_LABEL, Orchestrator, PodFacts,
};
pub use namespace::{
    NAMESPACE_PROFILE_PREFIX, SERVICE_ACCOUNT_PROFILE_PREFIX, namespace_profile, service_account_profile,
};
pub use network_policy::{
    Converted, Direction, POLICY_PREFIX, RefusedRule, RuleProblem, network_policy, simplify_ports,
};
pub use profile::{ProfileReach, default_profile};
pub use workload_endpoint::pod_labels;
