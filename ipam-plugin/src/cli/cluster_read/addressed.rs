//! Reads the objects that decide about the release of single addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use datastore::Datastore;
use libcalico::api::{
    IpPool, KubeControllersConfiguration, Node, ObjectKey, ObjectSelect, WorkloadEndpoint,
};
use libcalico::ipam::{
    AffinityOwner, AffinitySelect, AllocationOwner, AuditedEndpoint, BlockAffinity, HandleId,
    Lookup, PackedBlock, PackedEndpoint,
};
use libcalico::kubernetes::Pod;
use libcalico::store::{EndpointForm, RawEntry, ReadBatch, Store, StoreError};

use super::owners::is_of_service;
use super::pairs::insert_if_kind;
use super::{ClusterRead, audited_endpoint};
use crate::cli::app::Progress;
use crate::cli::services_api::ServicesApi;
use allocation::reads::{blocks_of, read_blocks};

impl ClusterRead {
    /// Reads the blocks of `addresses`, and all that may have one of them: endpoints, pods,
    /// tunnels, Services and virtual machines. The result lacks other blocks and endpoints, and all
    /// handles. Any endpoint may have an address, so all are examined, one by one.
    pub(in crate::cli) async fn read_for(
        store: &Datastore,
        services: &ServicesApi,
        addresses: &[IpAddr],
    ) -> Result<Self, StoreError> {
        let _progress = Progress::new("reading the datastore", 0);
        let mut batch = ReadBatch::new();
        let pools = batch.list::<IpPool>(&ObjectSelect::default());
        let others = match store {
            Datastore::Etcd(_) | Datastore::Local(_) => {
                let configuration =
                    batch.get::<KubeControllersConfiguration>(&ObjectKey::global("default"));
                Some((configuration, batch.list::<Node>(&ObjectSelect::default())))
            }
            // `read_owners` reads both.
            Datastore::Kubernetes(_) => None,
        };
        let answers = store.read(&batch).await?;
        let mut cluster = ClusterRead {
            pools: answers.list(&pools),
            ..ClusterRead::default()
        };
        if let Some((configuration, nodes)) = others {
            cluster.configuration = answers.get(&configuration)?;
            cluster.nodes = answers.each(&nodes).map(|(_, node)| node).collect();
        }
        let pools: Vec<IpPool> = cluster
            .pools
            .iter()
            .map(|entry| entry.value.clone())
            .collect();
        let blocks = blocks_of(store, &pools, addresses, BTreeSet::new()).await?;
        blocks
            .into_iter()
            .for_each(|entry| cluster.add_block(entry));

        let holders = PossibleHolders::of(&cluster, addresses);
        let (mut endpoints, mut unreadable) = (Vec::new(), Vec::new());
        let mut examine = |pair: &RawEntry| {
            let mut found = Vec::new();
            insert_if_kind::<WorkloadEndpoint>(pair, &mut found, &mut unreadable);
            let found = found.iter().map(|entry| audited_endpoint(&entry.value));
            endpoints.extend(
                found
                    .filter(|endpoint| holders.include(endpoint))
                    .map(|found| PackedEndpoint::of(&found)),
            );
        };
        store
            .for_each_object::<WorkloadEndpoint>(&ObjectSelect::default(), &mut examine)
            .await?;
        cluster.endpoints = endpoints;
        match store.endpoint_form() {
            EndpointForm::Object => cluster.unreadable = unreadable,
            EndpointForm::PodAnnotations => cluster.read_pods(store, &holders.pods).await?,
        }
        // A container in use keeps its addresses of other networks, as the blocks of the addresses
        // in use show.
        let located: BTreeSet<IpAddr> = cluster
            .endpoints
            .iter()
            .flat_map(|found| found.addresses().to_vec())
            .collect();
        let located: Vec<IpAddr> = located
            .into_iter()
            .filter(|ip| !cluster.blocks.iter().any(|block| block.cidr.contains(*ip)))
            .collect();
        let more = blocks_of(store, &pools, &located, BTreeSet::new()).await?;
        more.into_iter().for_each(|entry| cluster.add_block(entry));
        if matches!(services, ServicesApi::Separate(_)) && cluster.names_a_service() {
            cluster.read_blocks_of_services(store).await?;
        }
        cluster.read_owners(store, services).await;
        Ok(cluster)
    }

    /// Reads the pods. An unreadable one is [`Lookup::Unknown`].
    async fn read_pods(
        &mut self,
        store: &Datastore,
        pods: &BTreeSet<ObjectKey>,
    ) -> Result<(), StoreError> {
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = pods
            .iter()
            .map(|key| (key, batch.get::<Pod>(key)))
            .collect();
        let answers = store.read(&batch).await?;
        for (key, ticket) in tickets {
            let pod = match answers.get(&ticket) {
                Ok(Some(pod)) => Lookup::Present(pod.value),
                Ok(None) => continue,
                Err(StoreError::Corrupt { .. }) => Lookup::Unknown,
                Err(error) => return Err(error),
            };
            self.pods.insert(key.clone(), pod);
        }
        Ok(())
    }

    fn names_a_service(&self) -> bool {
        let mut allocations = self.blocks.iter().flat_map(PackedBlock::allocated);
        allocations.any(|allocation| allocation.read(is_of_service))
    }

    /// Adds the blocks of all Services, which show that an API server is the one of this cluster.
    async fn read_blocks_of_services(&mut self, store: &Datastore) -> Result<(), StoreError> {
        let select = AffinitySelect::of(AffinityOwner::of_services());
        let affinities = store.list::<BlockAffinity>(&select).await?;
        let is_read = |cidr| self.blocks.iter().any(|block| block.cidr == cidr);
        let missing = affinities
            .into_iter()
            .map(|entry| entry.key.cidr)
            .filter(|cidr| !is_read(*cidr))
            .collect();
        let more = read_blocks(store, missing).await?;
        more.into_iter().for_each(|entry| self.add_block(entry));
        Ok(())
    }
}

/// The endpoints that may have one of the addresses, or be of a container that has one.
struct PossibleHolders {
    addresses: BTreeSet<IpAddr>,
    /// The pods that the allocations name.
    pods: BTreeSet<ObjectKey>,
    handles: BTreeSet<HandleId>,
}

impl PossibleHolders {
    fn of(cluster: &ClusterRead, addresses: &[IpAddr]) -> Self {
        let (mut pods, mut handles) = (BTreeSet::new(), BTreeSet::new());
        let blocks = || cluster.blocks.iter();
        for allocation in addresses
            .iter()
            .flat_map(|ip| blocks().filter_map(|block| block.allocation(*ip)))
        {
            handles.extend(allocation.handle());
            allocation.read(|held| {
                let named = held.attribute.into_iter().flat_map(AllocationOwner::owners);
                pods.extend(named.map(|(namespace, name)| ObjectKey::namespaced(namespace, name)));
            });
        }
        PossibleHolders {
            addresses: addresses.iter().copied().collect(),
            pods,
            handles,
        }
    }

    fn include(&self, endpoint: &AuditedEndpoint) -> bool {
        endpoint
            .addresses
            .iter()
            .any(|address| self.addresses.contains(address))
            || endpoint
                .pod
                .as_ref()
                .is_some_and(|pod| self.pods.contains(pod))
            || endpoint.container_id.as_ref().is_some_and(|container| {
                self.handles
                    .iter()
                    .any(|handle| handle.is_of_container(container))
            })
    }
}
