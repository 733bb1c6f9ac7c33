//! The check in the API before a release: reads the owners of leaked addresses, not from the cache
//! of a watch.

mod kubevirt;
mod pods;

pub(super) use self::kubevirt::KubeVirtDiscovery;

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::ipam::gc::{CurrentFacts, DeletedNode, Suspect};
use libcalico::ipam::{LeakReason, Lookup, PodState, VmiLookup};
use libcalico::kubernetes::{NODES, Resource, SERVICES};
use libcalico::store::{Store, StoreError};

use super::cache::pod_state;
use super::world::{ClusterApi, PassGate, World};
use crate::runtime::ReconcileError;
use crate::watched::Pod;

#[derive(Debug, Default)]
pub(super) struct CurrentState {
    pods: BTreeMap<ObjectKey, Lookup<Pod>>,
    vms: BTreeMap<ObjectKey, VmiLookup>,
    others: BTreeMap<OtherObject, Lookup<()>>,
}

/// An object of which only the existence matters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum OtherObject {
    Service(ObjectKey),
    KubernetesNode(ObjectKey),
    CalicoNode(ObjectKey),
}

/// The servers to read from, and the number of concurrent requests.
pub(super) struct ApiReader<'a, W: World> {
    pub(super) api: &'a W::Api,
    pub(super) calico: &'a W::Store,
    pub(super) gate: &'a W::Gate,
    pub(super) parallel: usize,
}

impl<W: World> ApiReader<'_, W> {
    /// Reads the objects that the suspects depend on. The result of a failed read is unknown, and
    /// addresses that depend on it stay. `pods` is the approximate number of pods in the cluster.
    pub(super) async fn read(&self, suspects: &[Suspect], pods: usize) -> CurrentState {
        let queries: BTreeSet<OtherObject> =
            suspects.iter().flat_map(other_objects).flatten().collect();
        let lookups = queries.into_iter().map(|other| self.look_up(other));
        CurrentState {
            pods: self.read_pods(suspects, pods).await,
            vms: self.read_vms(suspects).await,
            others: stream::iter(lookups)
                .buffer_unordered(self.parallel)
                .collect()
                .await,
        }
    }

    /// Reads the virtual machines. A single discovery serves all machines for which the index found
    /// KubeVirt missing.
    async fn read_vms(&self, suspects: &[Suspect]) -> BTreeMap<ObjectKey, VmiLookup> {
        let named = suspects
            .iter()
            .filter_map(|suspect| Some((suspect.reason, key(suspect.required_lookups().vmi?))));
        let (orphans, named): (BTreeSet<_>, BTreeSet<_>) =
            named.partition(|(reason, _)| *reason == LeakReason::NoKubeVirt);
        let mut vms = BTreeMap::new();
        if !orphans.is_empty() {
            let lookup = self.look_up_kubevirt().await;
            vms.extend(orphans.into_iter().map(|(_, key)| (key, lookup)));
        }
        let lookups = named
            .into_iter()
            .map(|(_, key)| async move { (key.clone(), self.virtual_machine(&key).await) });
        let lookups: Vec<_> = stream::iter(lookups)
            .buffer_unordered(self.parallel)
            .collect()
            .await;
        vms.extend(lookups);
        vms
    }

    async fn look_up(&self, other: OtherObject) -> (OtherObject, Lookup<()>) {
        let lookup = match &other {
            OtherObject::Service(key) => self.exists(SERVICES, key).await,
            OtherObject::KubernetesNode(key) => self.exists(NODES, key).await,
            OtherObject::CalicoNode(key) => self.calico_node(&key.name).await,
        };
        (other, lookup)
    }

    /// Looks up a node, and returns the results for Calico and for Kubernetes. Looks up the
    /// Kubernetes node if its name is known, and otherwise the Calico node. The other result is
    /// unknown.
    pub(super) async fn node(&self, node: &DeletedNode) -> (Lookup<()>, Lookup<()>) {
        let Some(name) = &node.kubernetes else {
            return (self.calico_node(&node.calico).await, Lookup::Unknown);
        };
        (
            Lookup::Unknown,
            self.exists(NODES, &ObjectKey::global(name)).await,
        )
    }

    async fn exists(&self, resource: Resource, key: &ObjectKey) -> Lookup<()> {
        self.gate.pace(1).await;
        to_lookup(
            self.api
                .exists(resource, key)
                .await
                .map(|there| there.then_some(())),
        )
    }

    /// Looks up if the API server serves at least one of these kinds.
    async fn serves(&self, group: &str, plurals: &[&str]) -> Lookup<()> {
        self.gate.pace(1).await;
        to_lookup(
            self.api
                .serves(group, plurals)
                .await
                .map(|serves| serves.then_some(())),
        )
    }

    async fn calico_node(&self, name: &str) -> Lookup<()> {
        self.gate.pace(1).await;
        match self
            .calico
            .get::<CalicoNode>(&ObjectKey::global(name))
            .await
        {
            Ok(_) => Lookup::Present(()),
            Err(StoreError::NotFound { .. }) => Lookup::Absent,
            Err(error) => {
                tracing::warn!(
                    node = name, %error,
                    "cannot look up a Calico node; keeping what depends on it"
                );
                Lookup::Unknown
            }
        }
    }
}

/// Converts a result; a failed read counts as unknown.
fn to_lookup<T>(read: Result<Option<T>, ReconcileError>) -> Lookup<T> {
    match read {
        Ok(Some(object)) => Lookup::Present(object),
        Ok(None) => Lookup::Absent,
        Err(failure) => {
            tracing::warn!(
                error = %failure,
                "cannot look up an object; keeping what depends on it"
            );
            Lookup::Unknown
        }
    }
}

impl CurrentState {
    /// Returns the objects that a suspect depends on, as far as they were read.
    pub(super) fn current_facts(&self, suspect: &Suspect) -> CurrentFacts<'_> {
        let queries = suspect.required_lookups();
        let [service, kubernetes_node, calico_node] = other_objects(suspect).map(|other| {
            let lookup = other.and_then(|other| self.others.get(&other));
            lookup.copied().unwrap_or(Lookup::Unknown)
        });
        let vmi = queries
            .vmi
            .and_then(|names| self.vms.get(&key(names)))
            .copied()
            .unwrap_or(VmiLookup::Unknown);
        CurrentFacts {
            pod: self.pod(queries.pod),
            vmi,
            owners: queries
                .owners
                .iter()
                .map(|(namespace, name)| self.pod(Some((namespace, name))))
                .collect(),
            service,
            kubernetes_node,
            calico_node,
        }
    }

    fn pod(&self, names: Option<(&str, &str)>) -> Lookup<PodState<'_>> {
        let lookup = names.and_then(|names| self.pods.get(&key(names)));
        lookup.map_or(Lookup::Unknown, |lookup| lookup.map(pod_state))
    }
}

fn key((namespace, name): (&str, &str)) -> ObjectKey {
    ObjectKey::namespaced(namespace, name)
}

fn other_objects(suspect: &Suspect) -> [Option<OtherObject>; 3] {
    let queries = suspect.required_lookups();
    [
        queries.service.map(key).map(OtherObject::Service),
        queries
            .kubernetes_node
            .map(ObjectKey::global)
            .map(OtherObject::KubernetesNode),
        queries
            .calico_node
            .map(ObjectKey::global)
            .map(OtherObject::CalicoNode),
    ]
}

#[cfg(test)]
mod tests;
