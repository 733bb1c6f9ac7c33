//! Whether an endpoint has outlived its pod (etcd, O-1). In Kubernetes an endpoint is its pod, and the question does not
//! arise.

use std::fmt;
use std::net::IpAddr;

use uuid::Uuid;

use crate::net::Cidr;

/// What is known of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointSight<'a> {
    /// Its addresses.
    pub addresses: &'a [Cidr],
    /// The node it is on.
    pub node: NodeSight<'a>,
    /// The pod that it was made for, if that is known. Nothing that is stored in etcd tells it: neither the endpoint nor the
    /// attributes of its addresses have the uid of a pod, only its name.
    pub pod_uid: Option<Uuid>,
}

/// What is known of the pod that an endpoint is named after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodSight<'a> {
    /// Its uid, if it is known.
    pub uid: Option<Uuid>,
    /// It uses the network of its node, and so never has an endpoint.
    pub host_network: bool,
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
    /// The pod of that name is not the one that the endpoint was made for, and has none of its addresses.
    AnotherPod,
    /// The pod of that name is on another node, and has none of the endpoint's addresses.
    PodElsewhere,
    /// The node is gone, and the pod is still said to be on it, without an address of the endpoint.
    NodeGone,
}

/// Judges an endpoint by what is known at this moment. `None` for one that is in use, or may be: a
/// pod that still holds an address of the endpoint, and one that is yet to be scheduled, keep it.
pub fn orphaned(endpoint: &EndpointSight<'_>, pod: Option<PodSight<'_>>) -> Option<Orphaned> {
    let Some(pod) = pod else { return Some(Orphaned::PodGone) };
    let node = endpoint.node;
    let is_held = pod.addresses.iter().any(|held| endpoint.addresses.iter().any(|network| network.contains(*held)));
    let is_another = pod.host_network || endpoint.pod_uid.zip(pod.uid).is_some_and(|(one, other)| one != other);
    if is_another && !is_held {
        return Some(Orphaned::AnotherPod);
    }
    if pod.node == node.name {
        // Kubernetes deletes the pods of a node that is gone. Until then kubelet may run, and register the node again.
        return (!node.exists && !is_held).then_some(Orphaned::NodeGone);
    }
    (!is_held && !pod.node.is_empty()).then_some(Orphaned::PodElsewhere)
}

impl fmt::Display for Orphaned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Orphaned::PodGone => "its pod is gone",
            Orphaned::AnotherPod => "its pod is gone, and another has its name",
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
        let pod = pod.map(|(node, _)| PodSight { uid: None, host_network: false, node, addresses: &held });
        let node = NodeSight { name: "n1", exists };
        let addresses = &[format!("{ADDRESS}/32").parse().unwrap()];
        orphaned(&EndpointSight { addresses, node, pod_uid: None }, pod)
    }

    /// On the node of the endpoint, which is there.
    fn judge_uid(pod_uid: Option<u128>, uid: Option<u128>, host_network: bool, held: &str) -> Option<Orphaned> {
        let addresses = &[Cidr::host(ADDRESS.parse().unwrap())];
        let node = NodeSight { name: "n1", exists: true };
        let held: Vec<IpAddr> = held.parse().into_iter().collect();
        let pod = PodSight { uid: uid.map(Uuid::from_u128), host_network, node: "n1", addresses: &held };
        orphaned(&EndpointSight { addresses, node, pod_uid: pod_uid.map(Uuid::from_u128) }, Some(pod))
    }

    #[test]
    fn another_pod_of_the_same_name() {
        for (pod_uid, uid, host_network, held, expected) in [
            (Some(1), Some(1), false, "", None),
            (Some(1), Some(2), false, "", Some(Orphaned::AnotherPod)),
            (Some(1), Some(2), false, "10.0.0.2", Some(Orphaned::AnotherPod)),
            (Some(1), Some(2), false, ADDRESS, None),
            (None, Some(2), false, "", None),
            (Some(1), None, false, "", None),
            (None, None, true, "192.0.2.1", Some(Orphaned::AnotherPod)),
        ] {
            let verdict = judge_uid(pod_uid, uid, host_network, held);
            assert_eq!(verdict, expected, "{pod_uid:?} {uid:?} {host_network} {held}");
        }
    }

    #[test]
    fn each_verdict() {
        assert_eq!(judge(None, true), Some(Orphaned::PodGone));
        assert_eq!(judge(None, false), Some(Orphaned::PodGone));
        assert_eq!(judge(Some(("n1", &[ADDRESS])), true), None);
        assert_eq!(judge(Some(("n1", &[])), true), None);
        assert_eq!(judge(Some(("n1", &[ADDRESS])), false), None, "kubelet runs without its Node");
        assert_eq!(judge(Some(("n1", &["10.0.0.2"])), false), Some(Orphaned::NodeGone));
        assert_eq!(judge(Some(("n1", &[])), false), Some(Orphaned::NodeGone));
        assert_eq!(judge(Some(("n2", &["10.0.0.2"])), true), Some(Orphaned::PodElsewhere));
        assert_eq!(judge(Some(("n2", &["fd00::1", ADDRESS])), true), None, "Calico has another name for n2");
        assert_eq!(judge(Some(("", &[])), true), None);
    }

    proptest! {
        #[test]
        fn a_pod_on_a_node_that_is_there_keeps_its_endpoint(node in "n[1-3]", held in any::<bool>(), at in "n[1-3]") {
            let address: IpAddr = ADDRESS.parse().unwrap();
            let addresses: &[IpAddr] = if held { &[address] } else { &[] };
            let at_node = NodeSight { name: &at, exists: true };
            let verdict = orphaned(
                &EndpointSight { addresses: &[Cidr::host(address)], node: at_node, pod_uid: None },
                Some(PodSight { uid: None, host_network: false, node: &node, addresses }),
            );
            prop_assert_eq!(verdict.is_some(), node != at && !held);
        }
    }
}
