//! The claims of endpoints, as on etcd.

use libcalico::api::{WorkloadEndpoint, WorkloadEndpointSpec};

use super::*;

impl AdoptingNode {
    fn with_endpoint(namespace: &str, spec: WorkloadEndpointSpec) -> Self {
        let adopting = AdoptingNode {
            source: ClaimSource::Endpoints,
            ..AdoptingNode::on(MemoryStore::transactional())
        };
        adopting.put_endpoint(namespace, spec);
        adopting
    }

    fn put_endpoint(&self, namespace: &str, spec: WorkloadEndpointSpec) {
        let (node, name) = ("node1".into(), format!("endpoint{}", spec.pod));
        let mut endpoint = WorkloadEndpoint::new(&name, WorkloadEndpointSpec { node, ..spec });
        endpoint.metadata.namespace = namespace.into();
        self.cluster
            .store
            .put(&ObjectKey::namespaced(namespace, name), &endpoint);
    }
}

/// The alias of a container's interface does not contain the network, but the handle does.
#[tokio::test]
async fn container_of_another_network_is_a_conflict() {
    let spec = |network: &str| WorkloadEndpointSpec {
        orchestrator: "cni".into(),
        container_id: "c1".into(),
        endpoint: "eth0".into(),
        interface_name: "calic1".into(),
        ip_networks: vec!["10.65.1.1/32".into()],
        profiles: vec![network.into()],
        ..WorkloadEndpointSpec::default()
    };
    let mut adopting = AdoptingNode::with_endpoint("default", spec("other"));
    let (alias, routes) = (
        Some(InterfaceAlias::for_container("c1")),
        vec!["10.65.1.1/32".into()],
    );
    adopting.links.0.push(HostLink {
        name: "calic1".into(),
        alias,
        routes,
        ..HostLink::default()
    });
    assert!(
        adopting
            .conflict()
            .await
            .starts_with("interface calic1 was created for another pod or on another network")
    );
    adopting.put_endpoint("default", spec("net"));
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
    assert!(adopting.cluster.handle("net.c1").is_some());
}

fn of_pod(pod: &str) -> WorkloadEndpointSpec {
    WorkloadEndpointSpec {
        orchestrator: "k8s".into(),
        pod: pod.into(),
        container_id: format!("c-{pod}"),
        endpoint: "eth0".into(),
        interface_name: pod_interface("cali", "ns", pod),
        ip_networks: vec!["10.65.1.1/32".into()],
        ..WorkloadEndpointSpec::default()
    }
}

/// The restore brings back the endpoint of a completed job, whose address another pod has since.
#[tokio::test]
async fn endpoint_of_an_ended_pod_uses_no_address() {
    let mut adopting = AdoptingNode::with_endpoint("ns", of_pod("web"));
    adopting.run_pod("web", "10.65.1.1");
    adopting.put_endpoint("ns", of_pod("job"));
    let job = |phase: &str| {
        changed(
            pod("job", "10.65.1.2"),
            &json!({ "status": { "phase": phase } }),
        )
    };
    adopting.put_pod(job("Running"));
    assert!(
        adopting
            .adopt()
            .await
            .iter()
            .all(|outcome| matches!(outcome, AdoptOutcome::Conflict(_)))
    );
    adopting.put_pod(job("Succeeded"));
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
}

#[tokio::test]
async fn endpoint_of_a_starting_pod_claims_its_address() {
    let mut adopting = AdoptingNode::with_endpoint("ns", of_pod("web"));
    adopting.run_pod("web", "10.65.1.1");
    let unreported = json!({ "status": { "phase": "Pending", "podIP": "", "podIPs": [] } });
    adopting.put_pod(changed(pod("web", "10.65.1.1"), &unreported));
    assert_eq!(adopting.adopt().await, [], "its ADD may be under way");
    adopting.put_pod(changed(
        pod("web", "10.65.1.1"),
        &json!({ "status": { "phase": "Pending" } }),
    ));
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
    let stopping = json!({ "metadata": { "deletionTimestamp": "2026-08-22T01:00:00Z" } });
    adopting.put_pod(changed(pod("web", "10.65.1.1"), &stopping));
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Held(cidr(BLOCK))]);
    adopting.links.0.clear();
    assert_eq!(
        adopting.adopt().await,
        [],
        "its DEL has removed the interface"
    );
}
