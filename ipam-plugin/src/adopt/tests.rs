mod endpoints;
mod races;

use libcalico::api::{
    IpamConfiguration, IpamConfigurationSpec, Node, NodeBgp, NodeSpec, ObjectKey,
};
use libcalico::ipam::{AffinityState, Block, BlockAffinity, Handle, Statement};
use libcalico::kubernetes::Pod;
use libcalico::names::{InterfaceAlias, pod_interface};
use libcalico::store::Kind;
use serde_json::{Value, json};

use super::*;
use crate::cri::Sandbox;
use allocation::alloc::one_address::assign_address;
use allocation::testing::{
    Cluster, Fault, MemoryStore, affinity_key, assert_consistent, cidr, held,
};
use dataplane::host_link::{HostLink, HostLinkError, HostLinks};

const BLOCK: &str = "10.65.1.0/26";

/// The interfaces of a node.
#[derive(Debug, Default)]
struct Links(Vec<HostLink>);

impl HostLinks for Links {
    fn find(&self, name: &str) -> Result<Option<HostLink>, HostLinkError> {
        Ok(self.0.iter().find(|link| link.name == name).cloned())
    }
}

/// A cluster with pods on node1.
struct AdoptingNode {
    cluster: Cluster,
    source: ClaimSource,
    links: Links,
    sandboxes: Vec<Sandbox>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pod(name: &str, address: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "ns", "uid": format!("u-{name}") },
        "spec": { "nodeName": "node1" },
        "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] },
    })
}

/// Returns the object with other fields in some of its parts.
fn changed(mut object: Value, change: &Value) -> Value {
    for (part, fields) in change.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            object[part][key] = value.clone();
        }
    }
    object
}

impl AdoptingNode {
    fn on(store: MemoryStore) -> Self {
        let cluster = Cluster::on(store);
        cluster.pool("pool4", "10.65.0.0/16", 26);
        AdoptingNode {
            cluster,
            source: ClaimSource::Pods,
            links: Links::default(),
            sandboxes: Vec::new(),
        }
    }

    fn put_pod(&self, pod: Value) {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let key = ObjectKey::namespaced(pod.metadata.namespace.clone(), pod.metadata.name.clone());
        self.cluster.store.put(&key, &pod);
    }

    fn put_link(&mut self, name: &str, alias: Option<InterfaceAlias>) {
        self.links.0.push(HostLink {
            name: pod_interface("cali", "ns", name),
            alias,
            ..HostLink::default()
        });
    }

    /// Adds a running pod with its interface.
    fn run_pod(&mut self, name: &str, address: &str) {
        self.put_pod(pod(name, address));
        self.put_link(
            name,
            Some(InterfaceAlias::for_pod(
                "net",
                "ns",
                name,
                &format!("c-{name}"),
            )),
        );
    }

    /// Adds ten running pods, whose addresses IPAM allocated.
    async fn run_allocated_pods(&mut self) {
        for number in 0..10 {
            let (name, address) = (format!("web-{number}"), format!("10.65.1.{number}"));
            self.run_pod(&name, &address);
            let mut request = self.cluster.request("node1", &format!("net.c-{name}"));
            request.attributes =
                workload_attributes("node1", Some(("ns", &name)), self.cluster.clock.now());
            let inputs = self.cluster.inputs(&request).await.unwrap();
            let (store, clock) = (&self.cluster.store, &self.cluster.clock);
            assign_address(store, clock, &request, ip(&address), inputs)
                .await
                .unwrap();
        }
    }

    fn remove(&self, path: String) {
        self.cluster.store.edit(|pairs| pairs.remove(&path));
    }

    fn request(&self, dry_run: bool) -> AdoptRequest<'_> {
        let sandboxes = Statement::Known(self.sandboxes.clone());
        let evidence = NodeEvidence {
            network: "net",
            interface_prefix: "cali",
            links: &self.links,
            sandboxes,
        };
        AdoptRequest {
            node: "node1",
            source: self.source,
            evidence,
            lock_file: None,
            dry_run,
        }
    }

    async fn try_adopt(&self, dry_run: bool) -> Result<Adopted, StoreError> {
        let Cluster { store, clock } = &self.cluster;
        adopt(store, Some(store), clock, &self.request(dry_run)).await
    }

    async fn adopt(&self) -> Vec<AdoptOutcome> {
        let Adopted { addresses, notices } = self.try_adopt(false).await.unwrap();
        assert_eq!(notices, [""; 0]);
        addresses
            .into_iter()
            .map(|adopted| adopted.outcome)
            .collect()
    }

    async fn conflict(&self) -> String {
        match &self.adopt().await[..] {
            [AdoptOutcome::Conflict(reason)] => reason.to_string(),
            other => panic!("{other:?}"),
        }
    }
}

fn stores() -> [fn() -> MemoryStore; 2] {
    [MemoryStore::transactional, MemoryStore::sequential]
}

#[tokio::test]
async fn addresses_of_a_deleted_block_are_adopted_and_released() {
    for store in stores() {
        let mut adopting = AdoptingNode::on(store());
        adopting.run_allocated_pods().await;
        let before = held(&adopting.cluster.store.pairs());
        adopting.remove(Block::path(&cidr(BLOCK)));
        let dry = adopting.try_adopt(true).await.unwrap().addresses;
        assert!(
            dry.iter()
                .all(|adopted| adopted.outcome == AdoptOutcome::Adopted(cidr(BLOCK))),
            "{dry:?}"
        );
        assert!(
            adopting.cluster.block(BLOCK).is_none(),
            "the dry run writes nothing"
        );
        assert_eq!(
            adopting.adopt().await,
            vec![AdoptOutcome::Adopted(cidr(BLOCK)); 10]
        );
        assert_eq!(held(&adopting.cluster.store.pairs()), before);
        assert_consistent(&adopting.cluster.store.pairs(), true);
        adopting.cluster.store.take_counts();
        assert_eq!(
            adopting.adopt().await,
            vec![AdoptOutcome::Held(cidr(BLOCK)); 10]
        );
        assert_eq!(
            adopting.cluster.store.take_counts().1,
            0,
            "a second run writes nothing"
        );
        let next = adopting.cluster.one("node1", "net.next").await.unwrap();
        assert!(!before.values().flatten().any(|address| *address == next));
        adopting.cluster.release("net.c-web-3").await.unwrap();
        assert!(!held(&adopting.cluster.store.pairs()).contains_key(&HandleId::new("net.c-web-3")));
        assert_consistent(&adopting.cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn annotated_address_is_no_claim() {
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    let mut tenant = pod("web", "10.65.1.1");
    tenant["metadata"]["annotations"] = json!({
        "cni.projectcalico.org/podIP": "10.65.1.9/32",
        "cni.projectcalico.org/podIPs": "10.65.1.9/32",
        "cni.projectcalico.org/containerID": "c-victim",
        "k8s.v1.cni.cncf.io/network-status": r#"[{"ips":["10.65.1.8"]}]"#,
    });
    adopting.put_pod(tenant);
    adopting.put_link(
        "web",
        Some(InterfaceAlias::for_pod("net", "ns", "web", "c-web")),
    );
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
    let expected = [(HandleId::new("net.c-web"), vec![ip("10.65.1.1")])];
    assert_eq!(held(&adopting.cluster.store.pairs()), expected.into());
}

#[tokio::test]
async fn address_of_pods_on_two_nodes_is_a_conflict() {
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    adopting.run_pod("web", "10.65.1.1");
    let mut other = pod("other", "10.65.1.1");
    other["spec"]["nodeName"] = "node2".into();
    for (phase, deletion, is_user) in [
        ("Running", None, true),
        ("Running", Some("2026-08-22T01:00:00Z"), true),
        ("Pending", None, true),
        ("Succeeded", None, false),
    ] {
        other["status"]["phase"] = phase.into();
        other["metadata"]["deletionTimestamp"] = deletion.into();
        adopting.put_pod(other.clone());
        if is_user {
            assert_eq!(
                adopting.conflict().await,
                "pod ns/other uses it too; delete one of the pods"
            );
        } else {
            assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
        }
    }
}

/// The kubelet reports the address of a new sandbox a moment after its ADD.
#[tokio::test]
async fn address_without_route_beside_others_is_a_conflict() {
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    adopting.run_pod("web", "10.65.1.1");
    adopting.links.0[0].routes = vec!["fe80::/64".into(), "10.65.1.7/32".into()];
    assert!(
        adopting
            .conflict()
            .await
            .starts_with("the node routes other addresses to interface cali")
    );
    adopting.links.0[0].routes.push("10.65.1.1/32".into());
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
}

#[tokio::test]
async fn address_of_a_tunnel_is_a_conflict() {
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    adopting.run_pod("web", "10.65.1.1");
    let bgp = NodeBgp {
        ipv4_ipip_tunnel_addr: "10.65.1.1".into(),
        ..NodeBgp::default()
    };
    let node = Node::new(
        "node2",
        NodeSpec {
            bgp: Some(bgp),
            ..NodeSpec::default()
        },
    );
    adopting.cluster.store.put(&node.key(), &node);
    assert!(
        adopting
            .conflict()
            .await
            .starts_with("the tunnel of node node2 uses it too")
    );
}

#[tokio::test]
async fn pods_without_a_sandbox_here_claim_nothing() {
    let adopting = AdoptingNode::on(MemoryStore::sequential());
    for (number, change) in [
        json!({ "status": { "phase": "Pending", "podIP": "", "podIPs": [] } }),
        json!({ "status": { "phase": "Failed" } }),
        json!({ "metadata": { "deletionTimestamp": "2026-08-22T01:00:00Z" } }),
        json!({ "spec": { "hostNetwork": true } }),
        json!({ "spec": { "nodeName": "node2" } }),
    ]
    .iter()
    .enumerate()
    {
        adopting.put_pod(changed(pod(&format!("web-{number}"), "10.65.1.1"), change));
    }
    assert_eq!(adopting.adopt().await, []);
}

/// A pod has its sandbox while it waits for an image or an init container, and while it is being
/// deleted.
#[tokio::test]
async fn starting_and_stopping_pods_claim_their_addresses() {
    let pending = json!({ "status": { "phase": "Pending" } });
    let stopping = json!({ "metadata": { "deletionTimestamp": "2026-08-22T01:00:00Z" } });
    for change in [
        &pending,
        &json!({ "status": { "phase": "Unknown" } }),
        &stopping,
    ] {
        let mut adopting = AdoptingNode::on(MemoryStore::sequential());
        adopting.run_pod("web", "10.65.1.1");
        adopting.put_pod(changed(pod("web", "10.65.1.1"), change));
        assert_eq!(
            adopting.adopt().await,
            [AdoptOutcome::Adopted(cidr(BLOCK))],
            "{change}"
        );
    }
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    adopting.put_pod(changed(pod("web", "10.65.1.1"), &pending));
    assert!(
        adopting
            .conflict()
            .await
            .starts_with("the container is unknown"),
        "its address may be in use"
    );
    adopting.put_pod(changed(pod("web", "10.65.1.1"), &stopping));
    assert_eq!(adopting.adopt().await, []);
    adopting.sandboxes = vec![Sandbox {
        id: "c7".into(),
        namespace: "ns".into(),
        pod: "web".into(),
        uid: "u-web".into(),
    }];
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
}

#[tokio::test]
async fn container_comes_from_the_runtime_if_the_interface_has_no_alias() {
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    adopting.put_pod(pod("web", "10.65.1.1"));
    adopting.put_link("web", None);
    assert!(
        adopting
            .conflict()
            .await
            .starts_with("the container is unknown")
    );
    let sandbox = |uid: &str| Sandbox {
        id: "c7".into(),
        namespace: "ns".into(),
        pod: "web".into(),
        uid: uid.into(),
    };
    adopting.sandboxes = vec![sandbox("u-of-the-former-pod")];
    assert!(
        adopting
            .conflict()
            .await
            .starts_with("the container is unknown")
    );
    // Two sockets of one runtime list each sandbox twice.
    adopting
        .sandboxes
        .extend([sandbox("u-web"), sandbox("u-web")]);
    assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
    assert!(adopting.cluster.handle("net.c7").is_some());
}

/// Pool, strict affinity and reservation would refuse the address to an ADD.
#[tokio::test]
async fn adopt_in_a_disabled_pool_succeeds() {
    for store in stores() {
        let mut adopting = AdoptingNode::on(store());
        adopting.run_pod("web", "10.65.1.1");
        adopting
            .cluster
            .pool_with("pool4", "10.65.0.0/16", 26, |spec| {
                spec.disabled = true;
                spec.namespace_selector = "name == 'other'".into();
            });
        adopting.cluster.reserve(&["10.65.1.0/24"]);
        adopting
            .cluster
            .configure(|config| config.strict_affinity = true);
        assert_eq!(adopting.adopt().await, [AdoptOutcome::Adopted(cidr(BLOCK))]);
        assert_consistent(&adopting.cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn adopted_block_belongs_to_the_confirmed_affinity() {
    for store in stores() {
        let mut adopting = AdoptingNode::on(store());
        adopting.run_pod("web-1", "10.65.1.1");
        adopting.run_pod("web-2", "10.65.1.2");
        adopting
            .cluster
            .configure(|config| config.strict_affinity = true);
        let confirmed = BlockAffinity {
            state: AffinityState::Confirmed,
            ..BlockAffinity::default()
        };
        adopting
            .cluster
            .store
            .put(&affinity_key("node2", BLOCK), &confirmed);
        assert_eq!(
            adopting.adopt().await,
            vec![AdoptOutcome::Adopted(cidr(BLOCK)); 2]
        );
        assert_eq!(
            adopting.cluster.block(BLOCK).unwrap().affinity.as_deref(),
            Some("host:node2")
        );
        assert_eq!(adopting.cluster.affinity("node1", BLOCK), None);
        assert_consistent(&adopting.cluster.store.pairs(), true);
    }
}

#[tokio::test]
async fn launcher_of_a_missing_virtual_machine_is_a_conflict() {
    let mut adopting = AdoptingNode::on(MemoryStore::sequential());
    let mut launcher = pod("virt-launcher-vm1-x", "10.65.1.1");
    launcher["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "name": "vm1", "uid": "i-1", "controller": true,
    }]);
    adopting.put_pod(launcher);
    adopting.put_link(
        "virt-launcher-vm1-x",
        Some(InterfaceAlias::for_pod(
            "net",
            "ns",
            "virt-launcher-vm1-x",
            "c1",
        )),
    );
    assert!(
        adopting
            .conflict()
            .await
            .contains("VirtualMachineInstance ns/vm1 with uid i-1 does not exist")
    );
    let spec = IpamConfigurationSpec {
        kube_virt_vm_address_persistence: Some("Disabled".into()),
        ..IpamConfigurationSpec::default()
    };
    let disabled = IpamConfiguration::new("default", spec);
    adopting
        .cluster
        .store
        .put(&ObjectKey::global("default"), &disabled);
    assert!(
        adopting.conflict().await.contains("does not exist"),
        "as its ADD would fail"
    );
}
