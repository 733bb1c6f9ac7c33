//! Reads the owners other than endpoints: nodes, Services and virtual machines. An owner that cannot be read keeps its
//! addresses, and a text says that it was not compared.

use std::collections::{BTreeMap, BTreeSet};

use datastore::Datastore;
use futures::future::{join, join3};
use libcalico::api::{KubeControllersConfiguration, Node, ObjectKey, ObjectSelect};
use libcalico::ipam::{AllocationOwner, VmiLookup};
use libcalico::kubernetes::{AssignIps, Service, VirtualMachine, VirtualMachineInstance};
use libcalico::store::{Entry, ReadBatch, Store, StoreError};

use super::ClusterRead;
use crate::cli::services_api::ServicesApi;
use crate::reads::find;

impl ClusterRead {
    /// Reads the owners after the blocks, which say whether there are virtual machines.
    pub(super) async fn read_owners(&mut self, store: &Datastore, api: &ServicesApi) {
        let services = match store {
            Datastore::Kubernetes(_) => {
                let machines = self.named_machines();
                let key = ObjectKey::global("default");
                let configuration = find::<KubeControllersConfiguration>(store, &key);
                let all = ObjectSelect::default();
                let services = store.list::<Service>(&all);
                let (nodes, configuration, (services, found)) =
                    join3(nodes(store), configuration, join(services, look_up(store, &machines))).await;
                self.nodes = nodes;
                self.owners.machines = found;
                match configuration {
                    Ok(configuration) => {
                        self.configuration = configuration;
                        Some(services)
                    }
                    Err(error) => Some(Err(error)),
                }
            }
            Datastore::Etcd(_) | Datastore::Local(_) => match api {
                ServicesApi::Separate(api) => Some(api.list::<Service>(&ObjectSelect::default()).await),
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
                Err(error) => self.unchecked.push(format!("the tunnels of nodes are not checked: {error}")),
            }
        }
    }

    /// `services` is `None` if no API server is configured.
    fn add_services(&mut self, services: Option<Result<Vec<Entry<Service>>, StoreError>>) {
        let load_balancer =
            self.configuration.as_ref().and_then(|entry| entry.value.spec.controllers.load_balancer.as_ref());
        let assign = match load_balancer {
            None => None,
            Some(section) => match AssignIps::of(section.assign_ips.as_deref()) {
                Some(assign) => Some(assign),
                None => {
                    let value = section.assign_ips.as_deref().unwrap_or_default();
                    self.unchecked.push(format!(
                        "addresses of Services without allocation are not checked: loadBalancer.assignIPs of \
                         KubeControllersConfiguration default is `{value}`"
                    ));
                    None
                }
            },
        };
        match services {
            Some(Ok(services)) => self.owners.set_services(services.iter().map(|entry| &entry.value), assign),
            Some(Err(error)) => self.unchecked.push(format!("Services are not checked: {error}")),
            // A cluster without Kubernetes has no Services.
            None if load_balancer.is_some() || self.blocks.iter().any(|block| self.serves_services(&block.value)) => {
                self.unchecked.push(
                    "Services are not checked: no API server is configured; name it with KUBECONFIG or --kubeconfig"
                        .into(),
                );
            }
            None => {}
        }
    }

    /// Returns the VMIs that allocations name.
    fn named_machines(&self) -> BTreeSet<ObjectKey> {
        let allocations = self.blocks.iter().flat_map(|block| block.value.allocated());
        let owners = allocations.filter_map(|allocation| Some(AllocationOwner::of(allocation.attribute?).0));
        let machines = owners.filter(|owner| matches!(owner, AllocationOwner::Vmi { .. }));
        let names = machines.filter_map(|owner| owner.names());
        names.map(|(namespace, name)| ObjectKey::namespaced(namespace, name)).collect()
    }
}

async fn nodes(store: &Datastore) -> Vec<Result<Entry<Node>, StoreError>> {
    let mut batch = ReadBatch::new();
    let nodes = batch.list::<Node>(&ObjectSelect::default());
    match store.read(&batch).await {
        Ok(answers) => answers.each(&nodes).map(|(_, node)| node).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// Looks up VMIs, if any are wanted. A VMI counts as absent only if the lists show that KubeVirt is installed: without
/// KubeVirt, an address is released only after a grace period, which garbage collection measures.
async fn look_up(store: &Datastore, wanted: &BTreeSet<ObjectKey>) -> BTreeMap<ObjectKey, VmiLookup> {
    if wanted.is_empty() {
        return BTreeMap::new();
    }
    let mut batch = ReadBatch::new();
    let (instances, machines) = (batch.list::<VirtualMachineInstance>(&()), batch.list::<VirtualMachine>(&()));
    let Ok(answers) = store.read(&batch).await else { return BTreeMap::new() };
    let existing: BTreeSet<ObjectKey> =
        answers.each(&instances).map(|(key, _)| key).chain(answers.each(&machines).map(|(key, _)| key)).collect();
    let absent = if existing.is_empty() { VmiLookup::Unknown } else { VmiLookup::Absent };
    let lookup = |key: &ObjectKey| if existing.contains(key) { VmiLookup::Present } else { absent };
    wanted.iter().map(|key| (key.clone(), lookup(key))).collect()
}
