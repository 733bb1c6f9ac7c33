//! [`CollectedCluster`]: a cluster with Calico's data, whose leaks a garbage collection in a thread
//! of the test releases.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use datastore::bootstrap::InitialObjects;
use integration_tests::Place;
pub(crate) use integration_tests::controllers::garbage_collector::{
    GRACE, GarbageCollector, SOON, settings,
};
use integration_tests::controllers::{
    ControllersCluster, Proxied, REPLICAS, TypedObjects, beside_plugins,
};
pub(crate) use integration_tests::controllers::{NAMESPACE, within};
pub(crate) use integration_tests::on;
use kube_controllers::settings::Settings;
use libcalico::api::{
    ClusterInformation, IpPool, IpPoolSpec, Node, NodeSpec, ObjectKey, ObjectSelect, OrchRef,
    WorkloadEndpoint, WorkloadEndpointSpec,
};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, BlockRequest,
    Handle, HandleId,
};
use libcalico::names::EndpointIdentifiers;
use libcalico::net::Cidr;
use libcalico::store::Entry;
use serde_json::{Value, json};
use time::OffsetDateTime;

/// A grace period that passes only if a test advances the clock.
pub(crate) const LONG_GRACE: Duration = Duration::from_secs(24 * 3600);
/// The user of the garbage collection.
pub(crate) const COLLECTOR: &str = "system:serviceaccount:kube-system:one";

pub(crate) struct CollectedCluster<'k> {
    pub(crate) servers: ControllersCluster<'k>,
    objects: TypedObjects,
    kubeconfig: PathBuf,
}

/// Runs a test on a cluster with the objects of an empty datastore.
pub(crate) fn on(place: Place, test: fn(&CollectedCluster<'_>)) {
    beside_plugins(place, |servers| {
        let (api, group) = (servers.api, servers.group);
        let account = Proxied::account(api, REPLICAS[0]).unwrap();
        let objects = TypedObjects::new(group, api.admin_kubeconfig());
        let initial = objects
            .store
            .ensure_initialized_for_kubernetes(InitialObjects::All);
        objects.wait_on(initial).unwrap();
        test(&CollectedCluster {
            servers: *servers,
            objects,
            kubeconfig: api.kubeconfig("collector", &account.identity).unwrap(),
        });
    });
}

// === content ===

#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) handle: String,
    pub(crate) attributes: BTreeMap<String, String>,
}

pub(crate) fn to_pod(node: &str, pod: &str) -> Given {
    let words = [("node", node), ("pod", pod), ("namespace", NAMESPACE)];
    Given {
        handle: format!("k8s-pod-network.{pod}"),
        attributes: words.map(owned).into(),
    }
}

pub(crate) fn to_tunnel(node: &str) -> Given {
    let words = [("node", node), ("type", "ipipTunnelAddress")];
    Given {
        handle: format!("ipip-tunnel-addr-{node}"),
        attributes: words.map(owned).into(),
    }
}

pub(crate) fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

impl CollectedCluster<'_> {
    pub(crate) fn set_ready(&self, ready: bool) {
        let key = ObjectKey::global("default");
        let mut found = self.objects.get::<ClusterInformation>(&key).unwrap();
        found.value.spec.datastore_ready = Some(ready);
        self.objects.update(&found);
    }

    pub(crate) fn pool(&self, name: &str, cidr: &str, block_size: u8) {
        self.put_pool(name, cidr, block_size, false);
    }

    pub(crate) fn disabled_pool(&self, name: &str, cidr: &str, block_size: u8) {
        self.put_pool(name, cidr, block_size, true);
    }

    fn put_pool(&self, name: &str, cidr: &str, block_size: u8, disabled: bool) {
        let spec = IpPoolSpec {
            cidr: cidr.into(),
            block_size: Some(block_size),
            disabled,
            ..IpPoolSpec::default()
        };
        let pool = IpPool::new(name, spec);
        self.objects.create(&pool.key(), &pool);
    }

    /// Creates a Kubernetes Node and, in etcd, a Calico Node of the same name.
    pub(crate) fn node(&self, name: &str) {
        self.kubernetes_node(name);
        if self.servers.group.is_none() {
            self.calico_node(name, Some(name));
        }
    }

    pub(crate) fn kubernetes_node(&self, name: &str) {
        self.servers.admin().node(name).unwrap();
    }

    /// Creates a Calico Node in etcd.
    pub(crate) fn calico_node(&self, name: &str, kubernetes: Option<&str>) {
        let reference = |name: &str| OrchRef {
            node_name: name.into(),
            orchestrator: "k8s".into(),
            ..OrchRef::default()
        };
        let spec = NodeSpec {
            orch_refs: kubernetes.map(reference).into_iter().collect(),
            ..NodeSpec::default()
        };
        let node = Node::new(name, spec);
        self.objects.create(&node.key(), &node);
    }

    pub(crate) fn delete_node(&self, name: &str) {
        self.servers.remove(&format!("/api/v1/nodes/{name}"));
        if self.servers.group.is_none() {
            let key = Node::new(name, NodeSpec::default()).key();
            self.objects.delete::<Node>(&key);
        }
    }

    /// Creates a pod, which is Running if it has addresses.
    pub(crate) fn pod(&self, name: &str, node: &str, addresses: &[IpAddr]) {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node, "containers": [{ "name": "c", "image": "i" }],
                "automountServiceAccountToken": false,
            },
        });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.servers.create(&pods, &pod);
        if let [first, ..] = addresses {
            let ips: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
            let status = json!({ "status": { "phase": "Running", "podIP": first, "podIPs": ips } });
            self.servers
                .merge(&format!("{pods}/{name}/status"), &status);
        }
    }

    pub(crate) fn delete_pod(&self, name: &str) {
        self.servers
            .remove(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}"));
    }

    /// Creates a block and the handles of its addresses. Returns the addresses.
    pub(crate) fn block(&self, cidr: &str, owner: Option<&str>, given: &[Given]) -> Vec<IpAddr> {
        let cidr: Cidr = cidr.parse().unwrap();
        let host = AffinityOwner::Host(owner.unwrap_or("nobody").into());
        let mut block = Block::new(cidr, &host, OffsetDateTime::now_utc()).unwrap();
        let mut addresses = Vec::new();
        for (n, given) in (0..).zip(given) {
            let id = HandleId::new(&given.handle);
            let request = BlockRequest {
                handle: Some(&id),
                attributes: &given.attributes,
                requester: &host,
                check_affinity: false,
            };
            let address = cidr.nth(n).unwrap();
            block.assign_address(address, &request).unwrap();
            block.count_write();
            addresses.push(address);
            self.count(&id, cidr);
        }
        // Stored handle IDs may have a suffix that the names of handles lack.
        for (attribute, given) in block.attributes.iter_mut().zip(given) {
            attribute.handle_id = Some(given.handle.clone());
        }
        match owner {
            Some(_) => self.claim_for(host, &cidr.to_string(), AffinityState::Confirmed),
            None => block.clear_affinity(),
        }
        self.objects.create(&cidr, &block);
        addresses
    }

    /// Deletes a block of a node with its affinity, and leaves the handles as they are.
    pub(crate) fn delete_block(&self, cidr: &str, node: &str) {
        let cidr: Cidr = cidr.parse().unwrap();
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr,
        };
        self.objects.delete::<Block>(&cidr);
        self.objects.delete::<BlockAffinity>(&key);
    }

    pub(crate) fn endpoint(&self, node: &str, pod: &str, container: &str, address: IpAddr) {
        let spec = WorkloadEndpointSpec {
            orchestrator: "k8s".into(),
            node: node.into(),
            pod: pod.into(),
            endpoint: "eth0".into(),
            container_id: container.into(),
            ip_networks: vec![Cidr::host(address).to_string()],
            ..WorkloadEndpointSpec::default()
        };
        let name = EndpointIdentifiers::of(&spec).name().unwrap();
        let mut endpoint = WorkloadEndpoint::new(&name, spec);
        endpoint.metadata.namespace = NAMESPACE.into();
        self.objects.create(&endpoint.key(), &endpoint);
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        let endpoints = self
            .objects
            .list::<WorkloadEndpoint>(&ObjectSelect::default());
        endpoints.into_iter().map(|entry| entry.key.name).collect()
    }

    /// Counts an address of a handle in a block.
    pub(crate) fn count(&self, id: &HandleId, cidr: Cidr) {
        if let Some(mut found) = self.objects.get::<Handle>(id) {
            found.value.increment(cidr, 1);
            return self.objects.update(&found);
        }
        let mut handle = Handle::default();
        handle.increment(cidr, 1);
        self.objects.create(id, &handle);
    }

    /// Returns the allocated addresses, except those in their cooldown, with their handles.
    pub(crate) fn held(&self) -> BTreeMap<IpAddr, String> {
        let blocks = self.objects.list::<Block>(&None);
        let held = |block: &Block| -> Vec<(IpAddr, String)> {
            let allocated = block.allocated().filter(|held| !held.is_cooling());
            allocated
                .map(|held| {
                    (
                        held.ip,
                        held.handle().map(|id| id.to_string()).unwrap_or_default(),
                    )
                })
                .collect()
        };
        blocks.iter().flat_map(|entry| held(&entry.value)).collect()
    }

    /// Returns the blocks with their affinities.
    pub(crate) fn blocks(&self) -> BTreeMap<String, Option<String>> {
        let blocks = self.objects.list::<Block>(&None);
        blocks
            .iter()
            .map(|entry| (entry.key.to_string(), entry.value.affinity.clone()))
            .collect()
    }

    /// Returns a block as it is stored, with its revision.
    pub(crate) fn stored_block(&self, cidr: &str) -> Entry<Block> {
        self.objects.get(&cidr.parse().unwrap()).unwrap()
    }

    /// Returns the handles with the number of their addresses.
    pub(crate) fn handles(&self) -> BTreeMap<String, i64> {
        let handles = self.objects.list::<Handle>(&());
        handles
            .iter()
            .map(|entry| (entry.key.to_string(), entry.value.block.values().sum()))
            .collect()
    }

    /// Creates an affinity, independently of the block.
    pub(crate) fn claim(&self, node: &str, cidr: &str, state: AffinityState) {
        self.claim_for(AffinityOwner::Host(node.into()), cidr, state);
    }

    /// Creates an affinity of Services, independently of the block.
    pub(crate) fn claim_for_services(&self, cidr: &str, state: AffinityState) {
        self.claim_for(AffinityOwner::of_services(), cidr, state);
    }

    fn claim_for(&self, owner: AffinityOwner, cidr: &str, state: AffinityState) {
        let cidr = cidr.parse().unwrap();
        let claim = BlockAffinity {
            state,
            ..BlockAffinity::default()
        };
        self.objects.create(&AffinityKey { owner, cidr }, &claim);
    }

    pub(crate) fn set_claim(&self, node: &str, cidr: &str, state: AffinityState) {
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr: cidr.parse().unwrap(),
        };
        let mut found = self.objects.get::<BlockAffinity>(&key).unwrap();
        found.value.state = state;
        self.objects.update(&found);
    }

    /// Returns the state of each affinity, by the CIDR of its block.
    pub(crate) fn claims(&self) -> BTreeMap<String, AffinityState> {
        let list = |select: AffinitySelect| self.objects.list::<BlockAffinity>(&select);
        let claims = [
            AffinitySelect::default(),
            AffinitySelect::of(AffinityOwner::of_services()),
        ]
        .into_iter()
        .flat_map(list);
        claims
            .map(|claim| (claim.key.cidr.to_string(), claim.value.state))
            .collect()
    }

    pub(crate) fn affinities(&self) -> Vec<(String, String)> {
        let claims = self
            .objects
            .list::<BlockAffinity>(&AffinitySelect::default());
        claims
            .iter()
            .map(|claim| {
                (
                    claim.key.owner.name().to_owned(),
                    claim.key.cidr.to_string(),
                )
            })
            .collect()
    }

    // === garbage collection ===

    /// Starts garbage collection with the grace period [`GRACE`] and other changes of the settings.
    pub(crate) fn collect(&self, change: impl FnOnce(&mut Settings)) -> GarbageCollector {
        let mut settings = settings(self.servers.group);
        change(&mut settings);
        GarbageCollector::start(self.servers.group, self.kubeconfig.clone(), settings)
    }

    /// Starts garbage collection with this grace period.
    pub(crate) fn collect_after(&self, grace: Duration) -> GarbageCollector {
        self.collect(|settings| settings.leak_grace_period = Some(grace))
    }
}
