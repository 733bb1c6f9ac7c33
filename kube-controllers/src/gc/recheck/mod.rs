//! The last check before a release: reads the owners of leaked addresses from the API, never from a cache.
//!
//! If many pods of a node are in question, they are read with one list of the node's pods. Everything else is read with
//! a request each, concurrently over one connection.

mod api;
mod kubevirt;
mod pods;

pub(super) use self::kubevirt::KubeVirt;

use std::collections::{BTreeMap, BTreeSet};

use datastore::Datastore;
use futures::StreamExt;
use futures::stream;
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::ipam::gc::{GoneNode, LiveFacts, Suspect};
use libcalico::ipam::{Evidence, MachineSight, PodState, Sight};
use libcalico::kubernetes::{NODES, SERVICES};
use libcalico::store::{Store, StoreError};

use self::api::Api;
use super::gate::LeaderGate;
use super::projections::pod_facts;
use crate::watched::Pod;

/// The objects that were read for one pass.
#[derive(Debug, Default)]
pub(super) struct CurrentState {
    pods: BTreeMap<ObjectKey, Sight<Pod>>,
    machines: BTreeMap<ObjectKey, MachineSight>,
    others: BTreeMap<OtherObject, Sight<()>>,
}

/// An object of which only the existence matters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum OtherObject {
    Service(ObjectKey),
    KubernetesNode(ObjectKey),
    CalicoNode(ObjectKey),
}

/// The servers to read from, and the number of concurrent requests.
pub(super) struct ApiReader<'a> {
    pub(super) kubernetes: &'a kube::Client,
    pub(super) calico: &'a Datastore,
    pub(super) gate: &'a LeaderGate,
    pub(super) parallel: usize,
}

impl ApiReader<'_> {
    /// Reads every object that the suspects depend on, each object once. The result of a failed read is unknown, and
    /// addresses that depend on it stay. `pods` is the approximate number of pods in the cluster.
    pub(super) async fn read(&self, suspects: &[Suspect], pods: usize) -> CurrentState {
        let queries: BTreeSet<OtherObject> = suspects.iter().flat_map(others).collect();
        let lookups = queries.into_iter().map(|other| self.look_up(other));
        CurrentState {
            pods: pods::read_all(&self.api(), suspects, pods, self.parallel).await,
            machines: self.read_machines(suspects).await,
            others: stream::iter(lookups).buffer_unordered(self.parallel).collect().await,
        }
    }

    /// Reads the virtual machines. A single discovery serves all machines for which the index found KubeVirt missing.
    async fn read_machines(&self, suspects: &[Suspect]) -> BTreeMap<ObjectKey, MachineSight> {
        let named = suspects.iter().filter_map(|suspect| Some((suspect.evidence, key(suspect.questions().machine?))));
        let (orphans, named): (BTreeSet<_>, BTreeSet<_>) =
            named.partition(|(evidence, _)| *evidence == Evidence::NoKubeVirt);
        let mut found = BTreeMap::new();
        if !orphans.is_empty() {
            let lookup = self.without_kubevirt().await;
            found.extend(orphans.into_iter().map(|(_, key)| (key, lookup)));
        }
        let lookups = named.into_iter().map(|(_, key)| async move {
            let lookup = kubevirt::look_up_vm(&self.api(), &key).await;
            (key, lookup)
        });
        let lookups: Vec<_> = stream::iter(lookups).buffer_unordered(self.parallel).collect().await;
        found.extend(lookups);
        found
    }

    fn api(&self) -> Api<'_> {
        Api { client: self.kubernetes, gate: self.gate }
    }

    async fn look_up(&self, other: OtherObject) -> (OtherObject, Sight<()>) {
        let lookup = match &other {
            OtherObject::Service(key) => self.api().exists(SERVICES, key).await,
            OtherObject::KubernetesNode(key) => self.api().exists(NODES, key).await,
            OtherObject::CalicoNode(key) => self.calico_node(&key.name).await,
        };
        (other, lookup)
    }

    /// Checks if KubeVirt is missing.
    pub(super) async fn without_kubevirt(&self) -> MachineSight {
        kubevirt::without_kubevirt(&self.api()).await
    }

    /// Reads the present state of a pod.
    pub(super) async fn pod(&self, key: &ObjectKey) -> Sight<Pod> {
        pods::read_one(&self.api(), key).await
    }

    /// Looks up a node in Calico and in Kubernetes.
    pub(super) async fn node(&self, node: &GoneNode) -> (Sight<()>, Sight<()>) {
        let Some(name) = &node.kubernetes else { return (self.calico_node(&node.calico).await, Sight::Unknown) };
        (Sight::Unknown, self.api().exists(NODES, &ObjectKey::global(name)).await)
    }

    async fn calico_node(&self, name: &str) -> Sight<()> {
        self.gate.pace(1).await;
        match self.calico.get::<CalicoNode>(&ObjectKey::global(name)).await {
            Ok(_) => Sight::Present(()),
            Err(StoreError::NotFound { .. }) => Sight::Absent,
            Err(error) => {
                tracing::warn!(node = name, %error, "cannot look whether a node of Calico is there");
                Sight::Unknown
            }
        }
    }
}

impl CurrentState {
    /// Returns the objects that a suspect depends on, as far as they were read.
    pub(super) fn facts(&self, suspect: &Suspect) -> LiveFacts<'_> {
        let queries = suspect.questions();
        let of = |other: Option<OtherObject>| {
            let found = other.and_then(|other| self.others.get(&other));
            found.copied().unwrap_or(Sight::Unknown)
        };
        LiveFacts {
            pod: self.pod(queries.pod),
            machine: self.machine(queries.machine),
            owners: queries.owners.iter().map(|(namespace, name)| self.pod(Some((namespace, name)))).collect(),
            service: of(queries.service.map(key).map(OtherObject::Service)),
            kubernetes_node: of(queries.kubernetes_node.map(ObjectKey::global).map(OtherObject::KubernetesNode)),
            calico_node: of(queries.calico_node.map(ObjectKey::global).map(OtherObject::CalicoNode)),
        }
    }

    fn machine(&self, names: Option<(&str, &str)>) -> MachineSight {
        let found = names.and_then(|names| self.machines.get(&key(names)));
        found.copied().unwrap_or(MachineSight::Unknown)
    }

    fn pod(&self, names: Option<(&str, &str)>) -> Sight<PodState<'_>> {
        let found = names.and_then(|names| self.pods.get(&key(names)));
        match found {
            Some(Sight::Present(pod)) => Sight::Present(pod_facts(pod)),
            Some(Sight::Absent) => Sight::Absent,
            Some(Sight::Unknown) | None => Sight::Unknown,
        }
    }
}

fn key((namespace, name): (&str, &str)) -> ObjectKey {
    ObjectKey::namespaced(namespace, name)
}

fn others(suspect: &Suspect) -> Vec<OtherObject> {
    let queries = suspect.questions();
    let service = queries.service.map(key).map(OtherObject::Service);
    let kubernetes_node = queries.kubernetes_node.map(ObjectKey::global).map(OtherObject::KubernetesNode);
    let calico_node = queries.calico_node.map(ObjectKey::global).map(OtherObject::CalicoNode);
    [service, kubernetes_node, calico_node].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
