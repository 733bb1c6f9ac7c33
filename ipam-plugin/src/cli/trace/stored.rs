//! The datastore's objects for one pod: its endpoint on this node, and the addresses whose allocations name the pod.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{IpPool, ObjectSelect, WorkloadEndpoint};
use libcalico::ipam::{Allocation, Block, any_pool_of};
use libcalico::net::Cidr;
use libcalico::store::{ReadBatch, Store};
use libcalico::workload::{EndpointFacts, Orchestrator, PodFacts};
use serde::Serialize;

/// The objects found.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) addresses: Vec<Address>,
}

/// The pod's endpoint.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Endpoint {
    pub(super) name: String,
    pub(super) container_id: String,
    pub(super) networks: Vec<String>,
    pub(super) interface: String,
}

/// An address that is allocated to the pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Address {
    pub(super) address: IpAddr,
    pub(super) block: Cidr,
    pub(super) pool: Option<String>,
    pub(super) handle: Option<String>,
    pub(super) node: Option<String>,
    pub(super) since: Option<String>,
}

impl Stored {
    /// Reads the objects of a pod, which is given as namespace and name, and of these containers of it.
    pub(super) async fn read(
        store: &Datastore,
        node: &str,
        (namespace, pod): (&str, &str),
        mut containers: BTreeSet<String>,
    ) -> Result<Stored, Box<dyn Error>> {
        let names = PodFacts { namespace: namespace.into(), name: pod.into(), ..PodFacts::default() };
        let facts = EndpointFacts {
            node: node.into(),
            container_id: String::new(),
            endpoint: String::new(),
            orchestrator: Orchestrator::Kubernetes(names),
        };
        let select = facts.select()?;
        let mut batch = ReadBatch::new();
        let endpoints = batch.list::<WorkloadEndpoint>(&select);
        let pools = batch.list::<IpPool>(&ObjectSelect::default());
        let blocks = batch.list::<Block>(&None);
        let answers = store.read(&batch).await?;

        let mut found = answers.list(&endpoints);
        found.retain(|entry| facts.owns(&entry.key.name));
        let endpoint = found.into_iter().next().map(|entry| Endpoint {
            name: entry.key.name,
            container_id: entry.value.spec.container_id,
            networks: entry.value.spec.ip_networks,
            interface: entry.value.spec.interface_name,
        });
        containers.extend(endpoint.iter().map(|endpoint| endpoint.container_id.clone()));

        let pools: Vec<IpPool> = answers.list(&pools).into_iter().map(|entry| entry.value).collect();
        let mut addresses = Vec::new();
        for block in answers.list(&blocks) {
            let held = block.value.allocated().filter(|held| !held.is_cooling());
            let held = held.filter(|held| is_of(held, namespace, pod) || is_of_container(held, &containers));
            addresses.extend(held.map(|held| Address::new(&held, block.key, &pools)));
        }
        addresses.sort_by_key(|found| found.address);
        Ok(Stored { endpoint, addresses })
    }
}

impl Address {
    fn new(held: &Allocation<'_>, block: Cidr, pools: &[IpPool]) -> Self {
        let noted = |key: &str| held.attributes().and_then(|attributes| attributes.get(key)).cloned();
        Address {
            address: held.ip,
            block,
            pool: any_pool_of(pools, held.ip).map(|pool| pool.name),
            handle: held.handle().map(|handle| handle.to_string()),
            node: noted("node"),
            since: noted("timestamp"),
        }
    }
}

/// Returns true if the pod is an owner. A VMI's address may have two owners.
fn is_of(held: &Allocation<'_>, namespace: &str, pod: &str) -> bool {
    let Some(attribute) = held.attribute else { return false };
    [&attribute.active_owner, &attribute.alternate_owner].into_iter().any(|owner| {
        let says = |key: &str, wanted: &str| owner.get(key).is_some_and(|value| value == wanted);
        says("namespace", namespace) && says("pod", pod)
    })
}

fn is_of_container(held: &Allocation<'_>, containers: &BTreeSet<String>) -> bool {
    held.handle().is_some_and(|handle| containers.iter().any(|id| handle.is_of_container(id)))
}
