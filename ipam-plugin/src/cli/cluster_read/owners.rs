//! Reads the owners other than endpoints: nodes, Services and virtual machines. An owner that
//! cannot be read keeps its addresses, and a text says that it was not compared.

use std::collections::{BTreeMap, BTreeSet};

use datastore::Datastore;
use futures::future::{join, join3};
use libcalico::api::{KubeControllersConfiguration, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{
    Allocation, AllocationOwner, HandleId, PackedBlock, VmiLookup, load_balancer_handle,
};
use libcalico::kubernetes::{AssignIps, Service, VirtualMachine, VirtualMachineInstance};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use super::ClusterRead;
use crate::cli::services_api::ServicesApi;
use allocation::reads::find;

/// All Services, each with its name. A Service that cannot be read exists all the same.
pub(super) type FoundServices = Vec<(ObjectKey, Result<Entry<Service>, StoreError>)>;

impl ClusterRead {
    /// Reads the owners after the blocks, which say whether there are virtual machines.
    pub(super) async fn read_owners(&mut self, store: &Datastore, api: &ServicesApi) {
        let services = match store {
            Datastore::Kubernetes(_) => {
                let machines = self.named_machines();
                let key = ObjectKey::global("default");
                let configuration = find::<KubeControllersConfiguration>(store, &key);
                let (nodes, configuration, (services, found)) = join3(
                    nodes(store),
                    configuration,
                    join(services(store), look_up(store, &machines)),
                )
                .await;
                self.nodes = nodes;
                match found {
                    Ok(found) => self.owners.machines = found,
                    Err(error) => self
                        .unchecked
                        .push(format!("virtual machines are not checked: {error}")),
                }
                match configuration {
                    Ok(configuration) => {
                        self.configuration = configuration;
                        Some(services)
                    }
                    Err(error) => Some(Err(error)),
                }
            }
            Datastore::Etcd(_) | Datastore::Local(_) => match api {
                ServicesApi::Separate(api) => Some(
                    services(api)
                        .await
                        .and_then(|found| self.of_this_cluster(found)),
                ),
                ServicesApi::Invalid(reason) => Some(Err(StoreError::Other(reason.clone()))),
                ServicesApi::NotConfigured => None,
            },
        };
        self.add_tunnels();
        self.add_services(services);
    }

    fn add_tunnels(&mut self) {
        for node in &self.nodes {
            match node {
                Ok(node) => self.owners.add_tunnels(&node.value),
                Err(error) => self
                    .unchecked
                    .push(format!("the tunnels of nodes are not checked: {error}")),
            }
        }
    }

    /// `services` is `None` if no API server is configured.
    pub(super) fn add_services(&mut self, services: Option<Result<FoundServices, StoreError>>) {
        let load_balancer = self
            .configuration
            .as_ref()
            .and_then(|entry| entry.value.spec.controllers.load_balancer.as_ref());
        let assign = match load_balancer {
            None => None,
            Some(section) => match AssignIps::of(section.assign_ips.as_deref()) {
                Some(assign) => Some(assign),
                None => {
                    let value = section.assign_ips.as_deref().unwrap_or_default();
                    self.unchecked.push(format!(
                        "addresses of Services without allocation are not checked: \
                         loadBalancer.assignIPs of KubeControllersConfiguration default is \
                         `{value}`"
                    ));
                    None
                }
            },
        };
        match services {
            Some(Ok(services)) => {
                let readable = services
                    .iter()
                    .filter_map(|(_, service)| service.as_ref().ok());
                self.owners
                    .set_services(readable.map(|entry| &entry.value), assign);
                for (key, service) in services {
                    if let Err(error) = service {
                        self.unchecked
                            .push(format!("Service {key} is not checked: {error}"));
                        self.owners.add_unreadable_service(key);
                    }
                }
            }
            Some(Err(error)) => self
                .unchecked
                .push(format!("Services are not checked: {error}")),
            // A cluster without Kubernetes has no Services.
            None if load_balancer.is_some() || self.may_serve_services() => {
                self.unchecked.push(
                    "Services are not checked: no API server is configured; name it with \
                     KUBECONFIG or --kubeconfig"
                        .into(),
                );
            }
            None => {}
        }
    }

    /// Returns the Services of an API server beside the datastore, or an error if none of them has
    /// an allocated address although Services have some. With the Services of another cluster, all
    /// these addresses would be leaks. The handles contain the uid of the Service, which names
    /// alone do not prove.
    pub(super) fn of_this_cluster(
        &self,
        services: FoundServices,
    ) -> Result<FoundServices, StoreError> {
        let readable = services
            .iter()
            .filter_map(|(_, service)| service.as_ref().ok());
        let known: BTreeSet<HandleId> = readable
            .map(
                |Entry {
                     value: Service { metadata, .. },
                     ..
                 }| {
                    load_balancer_handle(&metadata.namespace, &metadata.name, &metadata.uid)
                },
            )
            .collect();
        let allocations = self.blocks.iter().flat_map(PackedBlock::allocated);
        let of_services = allocations
            .filter(|allocation| !allocation.is_cooling() && allocation.read(is_of_service));
        let held: BTreeSet<HandleId> = of_services
            .filter_map(|allocation| allocation.handle())
            .collect();
        if held.is_empty() || !held.is_disjoint(&known) {
            return Ok(services);
        }
        Err(StoreError::Other(
            "the API server has none of the Services to which addresses are allocated, and may be \
             that of another cluster; name the right one with --kubeconfig"
                .into(),
        ))
    }

    /// Returns the VMIs that allocations name.
    fn named_machines(&self) -> BTreeSet<ObjectKey> {
        let machine = |held: &Allocation<'_>| {
            let owner = AllocationOwner::of(held.attribute?).0;
            let (namespace, name) = owner
                .names()
                .filter(|_| matches!(owner, AllocationOwner::Vmi { .. }))?;
            Some(ObjectKey::namespaced(namespace, name))
        };
        self.blocks
            .iter()
            .flat_map(PackedBlock::allocated)
            .filter_map(|allocation| allocation.read(machine))
            .collect()
    }

    fn may_serve_services(&self) -> bool {
        self.blocks
            .iter()
            .any(|block| self.serves_services(block.cidr, block.owner().as_ref()))
    }
}

pub(super) fn is_of_service(held: &Allocation<'_>) -> bool {
    let owner = held
        .attribute
        .map(|attribute| AllocationOwner::of(attribute).0);
    matches!(owner, Some(AllocationOwner::Service { .. }))
}

async fn nodes(store: &Datastore) -> Vec<Result<Entry<Node>, StoreError>> {
    let mut batch = ReadBatch::new();
    let nodes = batch.list::<Node>(&ObjectSelect::default());
    match store.read(&batch).await {
        Ok(answers) => answers.each(&nodes).map(|(_, node)| node).collect(),
        Err(error) => vec![Err(error)],
    }
}

async fn services(store: &Datastore) -> Result<FoundServices, StoreError> {
    let mut batch = ReadBatch::new();
    let services = batch.list::<Service>(&ObjectSelect::default());
    let answers = store.read(&batch).await?;
    let found = answers.each(&services).collect();
    Ok(found)
}

/// Looks up VMIs, if any are wanted. A VMI counts as absent only if the lists show that KubeVirt is
/// installed: without KubeVirt, an address is released only after a grace period, which garbage
/// collection measures.
async fn look_up(
    store: &Datastore,
    wanted: &BTreeSet<ObjectKey>,
) -> Result<BTreeMap<ObjectKey, VmiLookup>, StoreError> {
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut batch = ReadBatch::new();
    let (instances, machines) = (
        batch.list::<VirtualMachineInstance>(&()),
        batch.list::<VirtualMachine>(&()),
    );
    let answers = store.read(&batch).await?;
    let existing: BTreeSet<ObjectKey> = answers
        .each(&instances)
        .map(|(key, _)| key)
        .chain(answers.each(&machines).map(|(key, _)| key))
        .collect();
    let absent = if existing.is_empty() {
        VmiLookup::Unknown
    } else {
        VmiLookup::Absent
    };
    let lookup = |key: &ObjectKey| {
        if existing.contains(key) {
            VmiLookup::Present
        } else {
            absent
        }
    };
    Ok(wanted
        .iter()
        .map(|key| (key.clone(), lookup(key)))
        .collect())
}
