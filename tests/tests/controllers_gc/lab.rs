//! A control plane with Calico's data, and garbage collection in a separate thread.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use datastore::Datastore;
use datastore::bootstrap::InitialObjects;
use integration_tests::controllers::collecting::calico;
pub(crate) use integration_tests::controllers::collecting::{
    Collecting, GRACE, SOON, settings, within,
};
use integration_tests::kubernetes::{
    ApiServer, Client, Kubernetes, ServiceAccount, on_prepared_kubernetes,
};
use kube_controllers::settings::Settings;
use libcalico::api::{
    ClusterInformation, IpPool, IpPoolSpec, Node, NodeSpec, ObjectKey, ObjectSelect, OrchRef,
    WorkloadEndpoint, WorkloadEndpointSpec,
};
use libcalico::ipam::{
    AffinityKey, AffinityOwner, AffinitySelect, AffinityState, Block, BlockAffinity, BlockRequest,
    Handle, HandleId,
};
use libcalico::kubernetes::ApiGroup;
use libcalico::names::EndpointIdentifiers;
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, Store};
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::runtime::Runtime;

/// A grace period that passes only if a test advances the clock.
pub(crate) const LONG_GRACE: Duration = Duration::from_secs(24 * 3600);
pub(crate) const NAMESPACE: &str = "suite";
pub(crate) const COLLECTOR: &str = "system:serviceaccount:kube-system:collector";
/// Name of the account of a garbage collection whose requests pass a proxy.
pub(crate) const BEHIND_PROXY: &str = "behind-proxy";

pub(crate) struct Lab<'k> {
    pub(crate) servers: &'k Kubernetes,
    pub(crate) group: Option<ApiGroup>,
    store: Datastore,
    runtime: Runtime,
    kubeconfig: PathBuf,
}

/// Runs a test with Calico's objects in etcd if `group` is `None`, otherwise as custom resources.
pub(crate) fn on(group: Option<ApiGroup>, test: fn(&Lab<'_>)) {
    let prepare = move |api: &ApiServer| {
        if let Some(group) = group {
            api.define(group.api_version())?;
        }
        ["collector", BEHIND_PROXY]
            .into_iter()
            .try_for_each(|name| account(api, name).map(drop))
    };
    on_prepared_kubernetes(&format!("collector, {group:?}"), prepare, |_, servers| {
        let api = &servers.api;
        let account = account(api, "collector").unwrap();
        let lab = Lab {
            servers,
            group,
            store: Datastore::open(&calico(group, &api.admin_kubeconfig())).unwrap(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            kubeconfig: api.kubeconfig("collector", &account.identity).unwrap(),
        };
        lab.runtime
            .block_on(
                lab.store
                    .ensure_initialized_for_kubernetes(InitialObjects::All),
            )
            .unwrap();
        test(&lab);
    });
}

/// Creates an account that may do everything, and the namespace of the pods. Writes nothing if they
/// exist.
pub(crate) fn account(api: &ApiServer, name: &str) -> anyhow::Result<ServiceAccount> {
    api.namespace(NAMESPACE)?;
    let account = api.service_account("kube-system", name)?;
    api.bind(&account, "cluster-admin")?;
    Ok(account)
}

pub(crate) fn with_a_long_grace_period(lab: &Lab<'_>) -> Settings {
    Settings {
        leak_grace_period: Some(LONG_GRACE),
        ..lab.settings()
    }
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

impl Lab<'_> {
    pub(crate) fn admin(&self) -> &Client {
        self.servers.api.admin()
    }

    fn put<K: Kind>(&self, key: &K::Key, value: &K) {
        self.runtime
            .block_on(self.store.create::<K>(key, value))
            .unwrap();
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        let key = ObjectKey::global("default");
        self.runtime.block_on(async {
            let mut found = self.store.get::<ClusterInformation>(&key).await.unwrap();
            found.value.spec.datastore_ready = Some(ready);
            self.store
                .update(&key, &found.value, &found.revision)
                .await
                .unwrap();
        });
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
        self.put(&pool.key(), &pool);
    }

    /// Creates a Kubernetes Node and, in etcd, a Calico Node of the same name.
    pub(crate) fn node(&self, name: &str) {
        self.kubernetes_node(name);
        if self.group.is_none() {
            self.calico_node(name, Some(name));
        }
    }

    pub(crate) fn kubernetes_node(&self, name: &str) {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        self.admin()
            .create("/api/v1/nodes", &node)
            .unwrap()
            .success()
            .unwrap();
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
        self.put(&node.key(), &node);
    }

    pub(crate) fn delete_node(&self, name: &str) {
        self.admin()
            .delete(&format!("/api/v1/nodes/{name}"))
            .unwrap()
            .success()
            .unwrap();
        if self.group.is_none() {
            let key = Node::new(name, NodeSpec::default()).key();
            self.runtime
                .block_on(self.store.delete::<Node>(&key, None))
                .unwrap();
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
        self.admin().create(&pods, &pod).unwrap().success().unwrap();
        if let [first, ..] = addresses {
            let ips: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
            let status = json!({ "status": { "phase": "Running", "podIP": first, "podIPs": ips } });
            self.admin()
                .patch(&format!("{pods}/{name}/status"), &status)
                .unwrap()
                .success()
                .unwrap();
        }
    }

    pub(crate) fn delete_pod(&self, name: &str) {
        self.admin()
            .delete(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}"))
            .unwrap()
            .success()
            .unwrap();
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
            Some(_) => {
                let claim = BlockAffinity {
                    state: AffinityState::Confirmed,
                    ..BlockAffinity::default()
                };
                self.put(&AffinityKey { owner: host, cidr }, &claim);
            }
            None => block.clear_affinity(),
        }
        self.put(&cidr, &block);
        addresses
    }

    /// Deletes a block of a node with its affinity, and leaves the handles as they are.
    pub(crate) fn delete_block(&self, cidr: &str, node: &str) {
        let cidr: Cidr = cidr.parse().unwrap();
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr,
        };
        self.runtime.block_on(async {
            self.store.delete::<Block>(&cidr, None).await.unwrap();
            self.store
                .delete::<BlockAffinity>(&key, None)
                .await
                .unwrap();
        });
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
        self.put(&endpoint.key(), &endpoint);
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        let endpoints = self
            .runtime
            .block_on(
                self.store
                    .list::<WorkloadEndpoint>(&ObjectSelect::default()),
            )
            .unwrap();
        endpoints.into_iter().map(|entry| entry.key.name).collect()
    }

    pub(crate) fn count(&self, id: &HandleId, cidr: Cidr) {
        self.runtime.block_on(async {
            match self.store.get::<Handle>(id).await {
                Ok(mut found) => {
                    found.value.increment(cidr, 1);
                    self.store
                        .update(id, &found.value, &found.revision)
                        .await
                        .unwrap();
                }
                Err(_) => {
                    let mut handle = Handle::default();
                    handle.increment(cidr, 1);
                    self.store.create(id, &handle).await.unwrap();
                }
            }
        });
    }

    /// Returns the allocated addresses, except those in their cooldown, with their handles.
    pub(crate) fn held(&self) -> BTreeMap<IpAddr, String> {
        let blocks = self
            .runtime
            .block_on(self.store.list::<Block>(&None))
            .unwrap();
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
        let blocks = self
            .runtime
            .block_on(self.store.list::<Block>(&None))
            .unwrap();
        blocks
            .iter()
            .map(|entry| (entry.key.to_string(), entry.value.affinity.clone()))
            .collect()
    }

    /// Returns a block as it is stored, with its revision.
    pub(crate) fn stored_block(&self, cidr: &str) -> Entry<Block> {
        self.runtime
            .block_on(self.store.get::<Block>(&cidr.parse().unwrap()))
            .unwrap()
    }

    /// Returns the handles with the number of their addresses.
    pub(crate) fn handles(&self) -> BTreeMap<String, i64> {
        let handles = self
            .runtime
            .block_on(self.store.list::<Handle>(&()))
            .unwrap();
        handles
            .iter()
            .map(|entry| (entry.key.to_string(), entry.value.block.values().sum()))
            .collect()
    }

    /// Creates an affinity of Services, independently of the block.
    pub(crate) fn claim_for_services(&self, cidr: &str, state: AffinityState) {
        let key = AffinityKey {
            owner: AffinityOwner::of_services(),
            cidr: cidr.parse().unwrap(),
        };
        self.put(
            &key,
            &BlockAffinity {
                state,
                ..BlockAffinity::default()
            },
        );
    }

    /// Creates an affinity, independently of the block.
    pub(crate) fn claim(&self, node: &str, cidr: &str, state: AffinityState) {
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr: cidr.parse().unwrap(),
        };
        self.put(
            &key,
            &BlockAffinity {
                state,
                ..BlockAffinity::default()
            },
        );
    }

    pub(crate) fn set_claim(&self, node: &str, cidr: &str, state: AffinityState) {
        let key = AffinityKey {
            owner: AffinityOwner::Host(node.into()),
            cidr: cidr.parse().unwrap(),
        };
        self.runtime.block_on(async {
            let found = self.store.get::<BlockAffinity>(&key).await.unwrap();
            let value = BlockAffinity {
                state,
                ..found.value
            };
            self.store
                .update(&key, &value, &found.revision)
                .await
                .unwrap();
        });
    }

    /// Returns the state of each affinity, by the CIDR of its block.
    pub(crate) fn claims(&self) -> BTreeMap<String, AffinityState> {
        let list = |select: AffinitySelect| {
            self.runtime
                .block_on(self.store.list::<BlockAffinity>(&select))
                .unwrap()
        };
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
            .runtime
            .block_on(self.store.list::<BlockAffinity>(&AffinitySelect::default()))
            .unwrap();
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

    pub(crate) fn settings(&self) -> Settings {
        settings(self.group)
    }

    pub(crate) fn collect(&self, settings: Settings) -> Collecting {
        Collecting::start(self.group, self.kubeconfig.clone(), settings)
    }
}
