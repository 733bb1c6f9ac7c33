//! Decides whether a WorkloadEndpoint in etcd has outlived its pod. With the Kubernetes datastore
//! an endpoint is a view of its pod and cannot outlive it.

use std::net::IpAddr;

use uuid::Uuid;

use crate::net::Cidr;

/// The facts about an endpoint that the decision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExaminedEndpoint<'a> {
    /// The endpoint's addresses.
    pub addresses: &'a [Cidr],
    /// The node of the endpoint.
    pub node: ExaminedNode<'a>,
    /// The uid of the pod that the endpoint was created for; `None` if it is not known. The stored
    /// endpoint has only the name of the pod.
    pub pod_uid: Option<Uuid>,
}

/// The facts about the pod that an endpoint is named after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExaminedPod<'a> {
    /// The pod's uid, if known.
    pub uid: Option<Uuid>,
    /// True if the pod uses the host network and therefore never has an endpoint.
    pub host_network: bool,
    /// The Kubernetes name of the pod's node; empty until the pod is scheduled.
    pub node: &'a str,
    /// The known addresses of the pod.
    pub addresses: &'a [IpAddr],
}

/// The facts about the node of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExaminedNode<'a> {
    /// The node's name in Kubernetes.
    pub name: &'a str,
    /// True if the Node object exists in Kubernetes.
    pub exists: bool,
}

/// The reason why an endpoint is an orphan. Except for [`OrphanReason::PodGone`], the pod has none
/// of the endpoint's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum OrphanReason {
    /// No pod has the name in the endpoint.
    #[error("the endpoint's pod no longer exists")]
    PodGone,
    /// The pod with that name is not the pod that the endpoint was created for, or uses the host
    /// network.
    #[error("another pod has the name of the endpoint's pod")]
    AnotherPod,
    /// The pod with that name is on another node.
    #[error("the endpoint's pod is on another node")]
    PodElsewhere,
    /// The endpoint's node does not exist in Kubernetes, although the pod is assigned to it.
    #[error("the endpoint's node no longer exists")]
    NodeGone,
}

/// Returns the reason why an endpoint is an orphan; `None` if it is or may be in use. `pod` is the
/// pod that now has the name in the endpoint.
pub fn orphaned(
    endpoint: &ExaminedEndpoint<'_>,
    pod: Option<ExaminedPod<'_>>,
) -> Option<OrphanReason> {
    let Some(pod) = pod else {
        return Some(OrphanReason::PodGone);
    };
    let node = endpoint.node;
    let is_held = pod.addresses.iter().any(|held| {
        endpoint
            .addresses
            .iter()
            .any(|network| network.contains(*held))
    });
    let is_another = pod.host_network
        || endpoint
            .pod_uid
            .zip(pod.uid)
            .is_some_and(|(one, other)| one != other);
    if is_another && !is_held {
        return Some(OrphanReason::AnotherPod);
    }
    if pod.node == node.name {
        // kubelet may still run and register the node again, so a pod that has an address of the
        // endpoint keeps it.
        return (!node.exists && !is_held).then_some(OrphanReason::NodeGone);
    }
    (!is_held && !pod.node.is_empty()).then_some(OrphanReason::PodElsewhere)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: &str = "10.0.0.1";

    fn judge(pod: Option<(&str, &[&str])>, exists: bool) -> Option<OrphanReason> {
        let held: Vec<IpAddr> = pod
            .iter()
            .flat_map(|(_, held)| held.iter())
            .map(|ip| ip.parse().unwrap())
            .collect();
        let pod = pod.map(|(node, _)| ExaminedPod {
            uid: None,
            host_network: false,
            node,
            addresses: &held,
        });
        let node = ExaminedNode { name: "n1", exists };
        let addresses = &[format!("{ADDRESS}/32").parse().unwrap()];
        orphaned(
            &ExaminedEndpoint {
                addresses,
                node,
                pod_uid: None,
            },
            pod,
        )
    }

    fn judge_uid(
        pod_uid: Option<u128>,
        uid: Option<u128>,
        host_network: bool,
        held: &str,
    ) -> Option<OrphanReason> {
        let addresses = &[Cidr::host(ADDRESS.parse().unwrap())];
        let node = ExaminedNode {
            name: "n1",
            exists: true,
        };
        let held: Vec<IpAddr> = held.parse().into_iter().collect();
        let pod = ExaminedPod {
            uid: uid.map(Uuid::from_u128),
            host_network,
            node: "n1",
            addresses: &held,
        };
        orphaned(
            &ExaminedEndpoint {
                addresses,
                node,
                pod_uid: pod_uid.map(Uuid::from_u128),
            },
            Some(pod),
        )
    }

    #[test]
    fn endpoint_of_another_pod_with_the_same_name_is_orphaned() {
        for (pod_uid, uid, host_network, held, expected) in [
            (Some(1), Some(1), false, "", None),
            (Some(1), Some(2), false, "", Some(OrphanReason::AnotherPod)),
            (
                Some(1),
                Some(2),
                false,
                "10.0.0.2",
                Some(OrphanReason::AnotherPod),
            ),
            (Some(1), Some(2), false, ADDRESS, None),
            (None, Some(2), false, "", None),
            (Some(1), None, false, "", None),
            (
                None,
                None,
                true,
                "192.0.2.1",
                Some(OrphanReason::AnotherPod),
            ),
        ] {
            let verdict = judge_uid(pod_uid, uid, host_network, held);
            assert_eq!(
                verdict, expected,
                "{pod_uid:?} {uid:?} {host_network} {held}"
            );
        }
    }

    #[test]
    fn orphan_verdict_names_the_missing_pod_or_node() {
        assert_eq!(judge(None, true), Some(OrphanReason::PodGone));
        assert_eq!(judge(None, false), Some(OrphanReason::PodGone));
        assert_eq!(judge(Some(("n1", &[ADDRESS])), true), None);
        assert_eq!(judge(Some(("n1", &[])), true), None);
        assert_eq!(
            judge(Some(("n1", &[ADDRESS])), false),
            None,
            "kubelet runs without its Node"
        );
        assert_eq!(
            judge(Some(("n1", &["10.0.0.2"])), false),
            Some(OrphanReason::NodeGone)
        );
        assert_eq!(
            judge(Some(("n1", &[])), false),
            Some(OrphanReason::NodeGone)
        );
        assert_eq!(
            judge(Some(("n2", &["10.0.0.2"])), true),
            Some(OrphanReason::PodElsewhere)
        );
        assert_eq!(
            judge(Some(("n2", &["fd00::1", ADDRESS])), true),
            None,
            "Calico has another name for n2"
        );
        assert_eq!(judge(Some(("", &[])), true), None);
    }

    proptest! {
        #[test]
        fn pod_on_an_existing_node_retains_its_endpoint(node in "n[1-3]", held in any::<bool>(), at in "n[1-3]") {
            let address: IpAddr = ADDRESS.parse().unwrap();
            let addresses: &[IpAddr] = if held { &[address] } else { &[] };
            let at_node = ExaminedNode {
                name: &at,
                exists: true,
            };
            let verdict = orphaned(
                &ExaminedEndpoint {
                    addresses: &[Cidr::host(address)],
                    node: at_node,
                    pod_uid: None,
                },
                Some(ExaminedPod {
                    uid: None,
                    host_network: false,
                    node: &node,
                    addresses,
                }),
            );
            prop_assert_eq!(verdict.is_some(), node != at && !held);
        }
    }
}
