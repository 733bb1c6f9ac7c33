use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use libcalico::api::ObjectKey;
use libcalico::ipam::gc::Suspect;
use libcalico::ipam::{LeakReason, Lookup};

use super::{ApiReader, to_lookup};
use crate::gc::world::{ClusterApi, PassGate, PodPage, World};
use crate::runtime::ReconcileError;
use crate::watched::{Pod, Projection, ProjectionOptions, Watched};

/// Number of pods on one node from which on a list of the node's pods is cheaper than single
/// requests.
pub(super) const MIN_LISTED_PODS: usize = 16;
/// Measured number of pods that an API server filters in the time of one request. With an etcd
/// older than 3.5.13, the API server filters all pods of the cluster for each list of one node.
const PODS_FILTERED_PER_REQUEST: usize = 128;
/// Number of concurrent lists. Each holds all pods of a node in memory.
const MAX_CONCURRENT_LISTS: usize = 8;

impl<W: World> ApiReader<'_, W> {
    /// Reads the pods of the suspects. `pods` is the approximate number of pods in the cluster.
    pub(super) async fn read_pods(
        &self,
        suspects: &[Suspect],
        pods: usize,
    ) -> BTreeMap<ObjectKey, Lookup<Pod>> {
        let (lists, gets) = split_reads(
            suspects,
            MIN_LISTED_PODS.max(pods / PODS_FILTERED_PER_REQUEST),
        );
        let mut lookups = BTreeMap::new();
        let listed = lists
            .into_iter()
            .map(|(node, keys)| async move { (self.pods_of_node(&node).await, node, keys) });
        let mut listed =
            stream::iter(listed).buffer_unordered(self.parallel.min(MAX_CONCURRENT_LISTS));
        let mut gets: Vec<ObjectKey> = gets.into_iter().collect();
        while let Some((on_node, node, keys)) = listed.next().await {
            match on_node {
                Ok(mut on_node) => lookups.extend(keys.into_iter().map(|key| {
                    let lookup = on_node.remove(&key).map_or(Lookup::Absent, Lookup::Present);
                    (key, lookup)
                })),
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(
                        node,
                        error,
                        "cannot list the pods of a node; reading each suspect's pod"
                    );
                    gets.extend(keys);
                }
            }
        }
        let gets = gets
            .into_iter()
            .map(|key| async move { (key.clone(), self.pod(&key).await) });
        let got: Vec<_> = stream::iter(gets)
            .buffer_unordered(self.parallel)
            .collect()
            .await;
        lookups.extend(got);
        lookups
    }

    pub(in crate::gc) async fn pod(&self, key: &ObjectKey) -> Lookup<Pod> {
        self.gate.pace(1).await;
        match to_lookup(self.api.pod(key).await) {
            Lookup::Absent => Lookup::Absent,
            Lookup::Unknown => Lookup::Unknown,
            Lookup::Present(json) => match Pod::project(json.get(), ProjectionOptions::default()) {
                Ok(pod) => Lookup::Present(pod),
                Err(error) => {
                    tracing::warn!(
                        pod = %key, %error, "cannot read a pod; the pod counts as unknown",
                    );
                    Lookup::Unknown
                }
            },
        }
    }

    /// Lists all pods of a node. An unreadable pod is an error, because the result would count it
    /// as missing.
    async fn pods_of_node(&self, node: &str) -> Result<BTreeMap<ObjectKey, Pod>, ReconcileError> {
        let mut on_node = BTreeMap::new();
        let mut token = None;
        loop {
            self.gate.pace(1).await;
            let PodPage { pods, next } = self.api.pods_of_node(node, token.as_deref()).await?;
            on_node.extend(pods.into_iter().map(|pod| (pod.key(), pod)));
            if next.is_none() {
                return Ok(on_node);
            }
            token = next;
        }
    }
}

type PodsByNode = BTreeMap<String, BTreeSet<ObjectKey>>;

/// Decides which pods are read by a list of their node, and which by single requests. A list proves
/// that a pod is gone only if the cache does not know the pod either: a known pod may be on another
/// node.
fn split_reads(suspects: &[Suspect], many: usize) -> (PodsByNode, BTreeSet<ObjectKey>) {
    let (mut lists, mut gets) = (PodsByNode::new(), BTreeSet::new());
    for suspect in suspects {
        let queries = suspect.required_lookups();
        gets.extend(
            queries
                .owners
                .iter()
                .map(|(namespace, name)| ObjectKey::namespaced(namespace, name)),
        );
        let Some((namespace, name)) = queries.pod else {
            continue;
        };
        let key = ObjectKey::namespaced(namespace, name);
        match suspect
            .kubernetes_node
            .as_deref()
            .filter(|_| suspect.reason == LeakReason::PodGone)
        {
            Some(node) => _ = lists.entry(node.to_owned()).or_default().insert(key),
            None => _ = gets.insert(key),
        }
    }
    for (_, keys) in lists.extract_if(.., |_, keys| keys.len() < many) {
        gets.extend(keys);
    }
    (lists, gets)
}
