//! Endpoints in etcd whose pod is gone (O-1).

use std::fmt;

use crate::ipam::Sight;

/// A stored endpoint, as far as it tells whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredEndpoint<'a> {
    /// `spec.orchestrator`.
    pub orchestrator: &'a str,
    /// The uid of its pod, if it says so.
    pub pod_uid: Option<&'a str>,
    /// The node of Kubernetes that it is on: that of the Calico node in `spec.node`. Unknown when there is none.
    pub kubernetes_node: Option<&'a str>,
}

/// The pod that an endpoint names, as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointPod<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `spec.nodeName`; empty when on none.
    pub node: &'a str,
}

/// Why an endpoint is nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointEvidence {
    /// Its pod is gone.
    PodGone,
    /// There is another pod of the same name.
    AnotherPod,
    /// The pod is on another node.
    PodElsewhere,
}

impl fmt::Display for EndpointEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndpointEvidence::PodGone => "its pod is gone",
            EndpointEvidence::AnotherPod => "its pod is another one now",
            EndpointEvidence::PodElsewhere => "its pod is on another node",
        })
    }
}

/// Whether nobody's, by what is known of its pod: from a cache to begin with, from the live API before it is deleted. Use
/// a [`super::Watchlist`] with its revision for the grace period. Other orchestrators' endpoints are never orphaned.
pub fn orphaned(endpoint: &StoredEndpoint<'_>, pod: &Sight<EndpointPod<'_>>) -> Option<EndpointEvidence> {
    if endpoint.orchestrator != "k8s" {
        return None;
    }
    match pod {
        Sight::Unknown => None,
        Sight::Absent => Some(EndpointEvidence::PodGone),
        Sight::Present(pod) => {
            if endpoint.pod_uid.is_some_and(|uid| uid != pod.uid) {
                return Some(EndpointEvidence::AnotherPod);
            }
            let elsewhere = endpoint.kubernetes_node.is_some_and(|node| !pod.node.is_empty() && node != pod.node);
            elsewhere.then_some(EndpointEvidence::PodElsewhere)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_goes_with_its_pod() {
        use EndpointEvidence::{AnotherPod, PodElsewhere, PodGone};
        let endpoint = StoredEndpoint { orchestrator: "k8s", pod_uid: Some("1"), kubernetes_node: Some("n1") };
        let pod = |uid, node| Sight::Present(EndpointPod { uid, node });
        for (endpoint, pod, expected) in [
            (endpoint, Sight::Absent, Some(PodGone)),
            (endpoint, Sight::Unknown, None),
            (endpoint, pod("1", "n1"), None),
            (endpoint, pod("1", ""), None),
            (endpoint, pod("2", "n1"), Some(AnotherPod)),
            (endpoint, pod("1", "n2"), Some(PodElsewhere)),
            (StoredEndpoint { pod_uid: None, ..endpoint }, pod("2", "n1"), None),
            (StoredEndpoint { kubernetes_node: None, ..endpoint }, pod("1", "n2"), None),
            (StoredEndpoint { orchestrator: "cni", ..endpoint }, Sight::Absent, None),
        ] {
            assert_eq!(orphaned(&endpoint, &pod), expected, "{endpoint:?} {pod:?}");
        }
    }
}
