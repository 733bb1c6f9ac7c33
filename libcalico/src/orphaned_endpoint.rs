//! Whether an endpoint has outlived its pod (etcd, O-1). In Kubernetes an endpoint is its pod, and the question does not
//! arise.

use std::fmt;
use std::net::IpAddr;

use crate::net::Cidr;

/// What is known of the pod that an endpoint is named after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodSight<'a> {
    /// The node it was scheduled to, as Kubernetes calls it; empty before.
    pub node: &'a str,
    /// Its addresses, as far as they are known.
    pub addresses: &'a [IpAddr],
}

/// What is known of the node that an endpoint is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSight<'a> {
    /// Its name in Kubernetes.
    pub name: &'a str,
    /// Whether Kubernetes has it.
    pub exists: bool,
}

/// Why an endpoint is an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Orphaned {
    /// There is no pod of that name.
    PodGone,
    /// The pod of that name is on another node, and has none of the endpoint's addresses.
    PodElsewhere,
    /// The node is gone, and the pod is still said to be on it.
    NodeGone,
}

/// Judges an endpoint with these addresses by what is known at this moment. `None` for one that is in use, or may be: a
/// pod that still holds an address of the endpoint, and one that is yet to be scheduled, keep it.
pub fn orphaned(addresses: &[Cidr], pod: Option<PodSight<'_>>, node: NodeSight<'_>) -> Option<Orphaned> {
    let Some(pod) = pod else { return Some(Orphaned::PodGone) };
    let is_held = pod.addresses.iter().any(|held| addresses.iter().any(|network| network.contains(*held)));
    if pod.node == node.name {
        return (!node.exists).then_some(Orphaned::NodeGone);
    }
    (!is_held && !pod.node.is_empty()).then_some(Orphaned::PodElsewhere)
}

impl fmt::Display for Orphaned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Orphaned::PodGone => "its pod is gone",
            Orphaned::PodElsewhere => "its pod is on another node",
            Orphaned::NodeGone => "its node is gone",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: &str = "10.0.0.1";

    fn judge(pod: Option<(&str, &[&str])>, exists: bool) -> Option<Orphaned> {
        let held: Vec<IpAddr> = pod.iter().flat_map(|(_, held)| held.iter()).map(|ip| ip.parse().unwrap()).collect();
        let pod = pod.map(|(node, _)| PodSight { node, addresses: &held });
        orphaned(&[format!("{ADDRESS}/32").parse().unwrap()], pod, NodeSight { name: "n1", exists })
    }

    #[test]
    fn each_verdict() {
        assert_eq!(judge(None, true), Some(Orphaned::PodGone));
        assert_eq!(judge(None, false), Some(Orphaned::PodGone));
        assert_eq!(judge(Some(("n1", &[ADDRESS])), true), None);
        assert_eq!(judge(Some(("n1", &[])), true), None);
        assert_eq!(judge(Some(("n1", &[ADDRESS])), false), Some(Orphaned::NodeGone));
        assert_eq!(judge(Some(("n2", &["10.0.0.2"])), true), Some(Orphaned::PodElsewhere));
        assert_eq!(judge(Some(("n2", &["fd00::1", ADDRESS])), true), None, "Calico has another name for n2");
        assert_eq!(judge(Some(("", &[])), true), None);
    }

    proptest! {
        #[test]
        fn a_pod_on_a_node_that_is_there_keeps_its_endpoint(node in "n[1-3]", held in any::<bool>(), at in "n[1-3]") {
            let address: IpAddr = ADDRESS.parse().unwrap();
            let addresses: &[IpAddr] = if held { &[address] } else { &[] };
            let verdict = orphaned(
                &[Cidr::host(address)],
                Some(PodSight { node: &node, addresses }),
                NodeSight { name: &at, exists: true },
            );
            prop_assert_eq!(verdict.is_some(), node != at && !held);
        }
    }
}
