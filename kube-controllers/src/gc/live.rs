//! The last look before something goes: whoever a leaked address was for, read fresh from the API, never from a cache.
//!
//! Pods of a node of which many are in question are read with one list of that node; everything else with a request each,
//! side by side over the one connection.

mod api;
mod machines;
mod pods;

use std::collections::{BTreeMap, BTreeSet};

use datastore::Datastore;
use futures::StreamExt;
use futures::stream;
use libcalico::api::{Node as CalicoNode, ObjectKey};
use libcalico::ipam::Sight;
use libcalico::ipam::gc::{GoneNode, LiveFacts, PodFacts, Suspect};
use libcalico::kubernetes::NODES;
use libcalico::store::{Store, StoreError};

use self::api::Api;
use super::facts::pod_facts;
use super::gate::Gate;
use crate::watched::Pod;

/// What was read for one pass.
#[derive(Debug, Default)]
pub(super) struct Live {
    pods: BTreeMap<ObjectKey, Sight<Pod>>,
    machines: BTreeMap<ObjectKey, Sight<()>>,
    services: BTreeMap<ObjectKey, Sight<()>>,
    kubernetes_nodes: BTreeMap<String, Sight<()>>,
    calico_nodes: BTreeMap<String, Sight<()>>,
}

/// From whom to read, and how much at once.
pub(super) struct Reader<'a> {
    pub(super) kubernetes: &'a kube::Client,
    pub(super) calico: &'a Datastore,
    pub(super) gate: &'a Gate,
    pub(super) parallel: usize,
}

impl Reader<'_> {
    /// Reads everything that the suspects ask for, each thing once. What cannot be read is unknown, and whoever depends on
    /// it stays.
    pub(super) async fn read(&self, suspects: &[Suspect]) -> Live {
        let api = Api { client: self.kubernetes, gate: self.gate };
        let asked: Vec<_> = suspects.iter().map(Suspect::questions).collect();
        let keys = |names: Vec<(&str, &str)>| -> BTreeSet<ObjectKey> {
            names.into_iter().map(|(namespace, name)| ObjectKey::namespaced(namespace, name)).collect()
        };
        let machines = keys(asked.iter().filter_map(|questions| questions.machine).collect());
        let services = keys(asked.iter().filter_map(|questions| questions.service).collect());
        let kubernetes_nodes: BTreeSet<&str> = asked.iter().filter_map(|questions| questions.kubernetes_node).collect();
        let calico_nodes: BTreeSet<&str> = asked.iter().filter_map(|questions| questions.calico_node).collect();
        Live {
            pods: pods::read(&api, suspects, self.parallel).await,
            machines: self.each(machines, async |key| machines::sight(&api, key).await).await,
            services: self.each(services, async |key| api.exists(api::SERVICES, key).await).await,
            kubernetes_nodes: self
                .each(kubernetes_nodes.into_iter().map(str::to_owned), async |name| {
                    let key = ObjectKey::global(name.clone());
                    api.exists(NODES, &key).await
                })
                .await,
            calico_nodes: self
                .each(calico_nodes.into_iter().map(str::to_owned), async |name| self.calico_node(name).await)
                .await,
        }
    }

    /// Whether a node is there, in Calico and in Kubernetes.
    pub(super) async fn node(&self, node: &GoneNode) -> (Sight<()>, Sight<()>) {
        let Some(name) = &node.kubernetes else { return (self.calico_node(&node.calico).await, Sight::Unknown) };
        let api = Api { client: self.kubernetes, gate: self.gate };
        let key = ObjectKey::global(name);
        (Sight::Unknown, api.exists(NODES, &key).await)
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

    async fn each<K: Ord, V>(
        &self,
        keys: impl IntoIterator<Item = K>,
        read: impl AsyncFn(&K) -> V,
    ) -> BTreeMap<K, V> {
        let read = &read;
        let reads = keys.into_iter().map(|key| async move {
            let value = read(&key).await;
            (key, value)
        });
        stream::iter(reads).buffer_unordered(self.parallel).collect().await
    }
}

impl Live {
    /// What was read for a suspect.
    pub(super) fn facts(&self, suspect: &Suspect) -> LiveFacts<'_> {
        let asked = suspect.questions();
        let of = |map: &BTreeMap<ObjectKey, Sight<()>>, names: Option<(&str, &str)>| {
            let found = names.and_then(|(namespace, name)| map.get(&ObjectKey::namespaced(namespace, name)));
            found.copied().unwrap_or(Sight::Unknown)
        };
        let node = |map: &BTreeMap<String, Sight<()>>, name: Option<&str>| {
            name.and_then(|name| map.get(name)).copied().unwrap_or(Sight::Unknown)
        };
        LiveFacts {
            pod: self.pod(asked.pod),
            machine: of(&self.machines, asked.machine),
            service: of(&self.services, asked.service),
            kubernetes_node: node(&self.kubernetes_nodes, asked.kubernetes_node),
            calico_node: node(&self.calico_nodes, asked.calico_node),
        }
    }

    fn pod(&self, names: Option<(&str, &str)>) -> Sight<PodFacts<'_>> {
        let found = names.and_then(|(namespace, name)| self.pods.get(&ObjectKey::namespaced(namespace, name)));
        match found {
            Some(Sight::Present(pod)) => Sight::Present(pod_facts(pod)),
            Some(Sight::Absent) => Sight::Absent,
            Some(Sight::Unknown) | None => Sight::Unknown,
        }
    }
}
