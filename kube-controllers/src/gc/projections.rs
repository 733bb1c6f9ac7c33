//! Converts watched objects into the form of the index, and puts them into it.

use libcalico::api::{IpPool, ObjectKey};
use libcalico::ipam::Block;
use libcalico::ipam::gc::Index;
use libcalico::ipam::{PodState, PodWords};
use libcalico::kubernetes::{AddressAnnotations, PodAddresses};
use libcalico::net::Cidr;
use libcalico::store::Entry;

use crate::watched::{Node, Pod, Service};

/// Label of a node whose pods are being migrated from flannel, unless its value is `calico` (KC-457).
const MIGRATION_LABEL: &str = "projectcalico.org/node-network-during-migration";

/// Returns the state of a pod: its node, its addresses, and if it has ended.
pub(super) fn pod_facts(pod: &Pod) -> PodState<'_> {
    let said = &pod.annotations;
    let pod_ips: Vec<&str> = pod.pod_ips.iter().map(|ip| &**ip).collect();
    let addresses = PodAddresses {
        phase: &pod.phase,
        deleting: pod.deleting,
        pod_ip: pod.pod_ip.as_deref().unwrap_or_default(),
        pod_ips: &pod_ips,
        annotations: AddressAnnotations {
            pod_ip: said.pod_ip.as_deref(),
            pod_ips: said.pod_ips.as_deref(),
            aws_pod_ips: said.aws_pod_ips.as_deref(),
        },
    };
    let network_status = said.network_status.as_deref();
    let (node, reason, host_network) = (&*pod.node, &*pod.reason, pod.host_network);
    PodState::read(&PodWords { node, reason, host_network, network_status, addresses })
}

/// Returns true if the node still uses flannel's network.
pub(super) fn is_migrating(node: &Node) -> bool {
    node.labels.get(MIGRATION_LABEL).is_some_and(|network| network != "calico")
}

fn names(key: &ObjectKey) -> (&str, &str) {
    (key.namespace.as_deref().unwrap_or_default(), &key.name)
}

pub(super) fn put_block(index: &mut Index, block: &Entry<Block>) {
    if let Err(problem) = index.put_block(&block.value) {
        tracing::error!(block = %block.key, %problem, "a block is left out; `calico-ipam check` tells more");
    }
}

pub(super) fn put_pod(index: &mut Index, pod: &Pod) {
    let (namespace, name) = names(&pod.name);
    // The index also contains pods on the host network. Their addresses are the host's and belong to no pool.
    index.put_pod(namespace, name, &pod_facts(pod));
}

pub(super) fn put_service(index: &mut Index, service: &Service) {
    let (namespace, name) = names(&service.name);
    match service.spec.type_.as_deref() {
        Some("LoadBalancer") => index.put_service(namespace, name),
        _ => index.service_gone(namespace, name),
    }
}

pub(super) fn put_pool(index: &mut Index, pool: &Entry<IpPool>) {
    let name = &pool.key.name;
    match pool.value.spec.cidr.parse::<Cidr>() {
        Ok(cidr) if pool.value.metadata.deletion_timestamp.is_none() => index.put_pool(name, cidr),
        Ok(_) => index.pool_gone(name),
        Err(error) => {
            tracing::warn!(pool = name, %error, "a pool is left out of the metrics");
            index.pool_gone(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use libcalico::ipam::Ended;
    use serde_json::{Value, json};

    use super::*;
    use crate::watched::{Projection, ProjectionOptions, StringInterner};

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {}},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        change(&mut pod);
        Pod::project(&pod.to_string(), &mut StringInterner::default(), ProjectionOptions::default()).unwrap()
    }

    fn has(pod: &Pod, address: &str) -> Option<bool> {
        pod_facts(pod).sight(address.parse().unwrap()).has
    }

    #[test]
    fn what_a_pod_says_of_an_address() {
        let running = pod(|_| {});
        assert_eq!((has(&running, "10.0.0.1"), has(&running, "10.0.0.2")), (Some(true), Some(false)));
        assert_eq!(pod_facts(&running).node, "n1");
        assert_eq!(has(&pod(|pod| pod["status"] = json!({})), "10.0.0.2"), None);
        let more = pod(|pod| {
            let status = r#"[{"name":"second","ips":["10.0.0.7"]}]"#;
            pod["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/network-status": status});
        });
        assert_eq!((has(&more, "10.0.0.7"), has(&more, "10.0.0.8")), (Some(true), Some(false)));
    }

    #[test]
    fn a_pod_ends_by_its_phase_and_not_by_its_annotations() {
        for emptied in ["cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"] {
            for (phase, ended) in [("Running", None), ("Failed", Some(Ended::Finished))] {
                let down = pod(|pod| {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T21:00:00Z");
                    pod["metadata"]["annotations"] = json!({emptied: ""});
                    pod["status"]["phase"] = json!(phase);
                });
                assert_eq!((pod_facts(&down).ended, has(&down, "10.0.0.1")), (ended, Some(true)), "{emptied}");
            }
        }
    }

    #[test]
    fn annotations_of_other_addresses_keep_what_the_status_reports() {
        for (key, text) in [
            ("cni.projectcalico.org/podIPs", "10.0.0.7/32"),
            ("cni.projectcalico.org/podIPs", "no address"),
            ("vpc.amazonaws.com/pod-ips", "10.0.0.7"),
            ("k8s.v1.cni.cncf.io/network-status", "{"),
        ] {
            let noted = pod(|pod| pod["metadata"]["annotations"] = json!({key: text}));
            assert_eq!(has(&noted, "10.0.0.1"), Some(true), "{key}: {text}");
        }
    }
}
