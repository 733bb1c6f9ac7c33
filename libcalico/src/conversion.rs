//! Builds Calico's objects from the data of a container runtime or of Kubernetes.

#[cfg(test)]
mod golden_controllers;
#[cfg(test)]
mod golden_endpoints;
mod network_policy;
mod profile;
mod workload_endpoint;

pub use network_policy::{
    ConvertedPolicy, Direction, POLICY_PREFIX, RejectedRule, RuleProblem, network_policy,
    simplify_ports,
};
pub use profile::{
    ConvertedProfile, NAMESPACE_PROFILE_PREFIX, ProfileReach, RejectedLabel,
    SERVICE_ACCOUNT_PROFILE_PREFIX, default_profile, namespace_profile, service_account_profile,
};
pub use workload_endpoint::pod_labels;
