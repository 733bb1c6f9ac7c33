//! [`ClusterRead`]: all objects that `check` compares and `release` verifies.

mod addressed;
mod objects;
mod owners;
mod pairs;
mod recorded;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{
    AllowedUse, ClusterInformation, IpPool, IpPoolSpec, KubeControllersConfiguration, Node,
    ObjectKey, WorkloadEndpoint,
};
use libcalico::ipam::{
    AffinityOwner, AllocatedAddress, AuditedEndpoint, Block, BlockAffinity, Finding, InUseReason,
    Inventory, Lookup, Owners, PackedAllocation, PackedBlock, PackedEndpoint, PackedHandle, Pods,
    audit, pod_in_use_reason,
};
use libcalico::net::Cidr;
use libcalico::store::{Entry, Kind, StoreError};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

use super::app::Progress;
use super::endpoints;
use super::services_api::ServicesApi;

#[derive(Debug, Default)]
pub(super) struct ClusterRead {
    pub(super) information: Option<Entry<ClusterInformation>>,
    pub(super) pools: Vec<Entry<IpPool>>,
    pub(super) blocks: Vec<PackedBlock>,
    /// The whole blocks whose parts contradict each other, for their repair.
    pub(super) inconsistent: Vec<Entry<Block>>,
    pub(super) handles: Vec<PackedHandle>,
    affinities: Vec<Entry<BlockAffinity>>,
    pub(super) endpoints: Vec<PackedEndpoint>,
    /// The pods, if the datastore keeps the addresses of endpoints in their annotations.
    pub(super) pods: Pods,
    /// The nodes, whose tunnels have addresses.
    pub(super) nodes: Vec<Result<Entry<Node>, StoreError>>,
    /// The settings of kube-controllers, `None` if they are missing.
    configuration: Option<Entry<KubeControllersConfiguration>>,
    /// The tunnels, Services and virtual machines.
    pub(super) owners: Owners,
    pub(super) unreadable: Vec<UnreadableObject>,
    /// Sentences about the objects that were not compared, with the reason.
    pub(super) unchecked: Vec<String>,
}

/// A stored value that cannot be read. Allocation skips such values in lists without an error
/// (DS-42).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct UnreadableObject {
    pub(super) key: String,
    pub(super) reason: String,
}

impl ClusterRead {
    /// Reads the objects from `store`, and the Services from `services` unless `store` is an API
    /// server.
    pub(super) async fn read(
        store: &Datastore,
        services: &ServicesApi,
    ) -> Result<Self, StoreError> {
        let progress = Progress::new("reading the datastore", 0);
        let mut cluster = match store {
            Datastore::Kubernetes(_) => Self::read_objects(store).await?,
            Datastore::Etcd(_) | Datastore::Local(_) => Self::read_pairs(store, &progress).await?,
        };
        cluster.read_owners(store, services).await;
        Ok(cluster)
    }

    /// An address without endpoint that is younger than `in_flight` is treated as part of an ADD in
    /// progress.
    pub(super) fn audit(&self, in_flight: Duration) -> Vec<Finding> {
        self.with_inventory(in_flight, audit)
    }

    pub(super) fn with_inventory<T>(
        &self,
        in_flight: Duration,
        read: impl FnOnce(&Inventory<'_>) -> T,
    ) -> T {
        let ranges = |is_included: fn(&IpPoolSpec) -> bool| -> Vec<Cidr> {
            let specs = self
                .pools
                .iter()
                .map(|pool| &pool.value.spec)
                .filter(|spec| is_included(spec));
            specs.filter_map(|spec| spec.range().ok()).collect()
        };
        read(&Inventory {
            pools: &ranges(|_| true),
            active_pools: &ranges(|spec| !spec.disabled),
            blocks: &self.blocks,
            handles: &self.handles,
            affinities: &self.affinities,
            endpoints: &self.endpoints,
            pods: &self.pods,
            owners: &self.owners,
            now: OffsetDateTime::now_utc(),
            in_flight,
        })
    }

    /// Returns the allocation of `address`, or `None` if the address is free or cooling down.
    pub(super) fn allocation<'a>(
        &'a self,
        address: IpAddr,
    ) -> Option<(Cidr, PackedAllocation<'a>)> {
        let in_use = |block: &'a PackedBlock| {
            block
                .allocation(address)
                .filter(|found| !found.is_cooling())
        };
        self.blocks
            .iter()
            .find_map(|block| Some((block.cidr, in_use(block)?)))
    }

    /// Does the same for one of the blocks that have the address. Overlapping blocks may allocate
    /// it twice.
    pub(super) fn allocation_in(
        &self,
        block: Cidr,
        address: IpAddr,
    ) -> Option<PackedAllocation<'_>> {
        let mut blocks = self.blocks.iter().filter(|found| found.cidr == block);
        blocks
            .find_map(|found| found.allocation(address))
            .filter(|allocation| !allocation.is_cooling())
    }

    /// Returns the reason why the pod in this allocation still needs the address, if it does.
    pub(super) fn keeping_pod(&self, held: &AllocatedAddress) -> Option<InUseReason> {
        self.allocation_in(held.block, held.address)?
            .read(|held| pod_in_use_reason(held, &self.pods))
    }

    /// Returns true if addresses of the block may be those of Services.
    pub(super) fn serves_services(&self, block: Cidr, owner: Option<&AffinityOwner>) -> bool {
        let is_of_services = matches!(owner, Some(AffinityOwner::Virtual(_)));
        let mut pools = self.pools.iter().map(|pool| &pool.value.spec);
        let is_allowed = |pool: &IpPoolSpec| {
            pool.allows(AllowedUse::LoadBalancer)
                && pool.range().is_ok_and(|range| range.overlaps(&block))
        };
        is_of_services || pools.any(is_allowed)
    }

    /// Returns an unreadable pod, which may have any address.
    pub(super) fn unreadable_pod(&self) -> Option<&ObjectKey> {
        self.pods
            .iter()
            .find(|(_, pod)| matches!(pod, Lookup::Unknown))
            .map(|(key, _)| key)
    }

    /// Returns the path of an endpoint that cannot be read, which may have any address.
    pub(super) fn unreadable_endpoint(&self) -> Option<&str> {
        let mut paths = self.unreadable.iter().map(|object| object.key.as_str());
        paths.find(|path| WorkloadEndpoint::parse_path(path).is_some())
    }

    pub(super) fn endpoints_of(&self, address: IpAddr) -> impl Iterator<Item = &PackedEndpoint> {
        self.endpoints
            .iter()
            .filter(move |endpoint| endpoint.addresses().contains(&address))
    }
}

impl ClusterRead {
    fn add_block(&mut self, entry: Entry<Block>) {
        if entry.value.contradiction().is_some() {
            self.inconsistent.push(entry.clone());
        }
        self.blocks.push(PackedBlock::of(entry.value));
    }
}

pub(super) fn audited_endpoint(endpoint: &WorkloadEndpoint) -> AuditedEndpoint {
    let (spec, namespace) = (&endpoint.spec, &endpoint.metadata.namespace);
    let address = |text: &String| {
        text.split('/')
            .next()
            .and_then(|address| address.parse().ok())
    };
    AuditedEndpoint {
        name: format!("{namespace}/{}", endpoints::workload(endpoint)),
        object: format!("{namespace}/{}", endpoint.metadata.name),
        node: spec.node.clone(),
        pod: (!spec.pod.is_empty()).then(|| ObjectKey::namespaced(namespace, &spec.pod)),
        addresses: spec.ip_networks.iter().filter_map(address).collect(),
        container_id: (!spec.container_id.is_empty()).then(|| spec.container_id.clone()),
    }
}
