//! [`NodeNameCache`]: the names of the Kubernetes nodes and the Calico nodes. [`EndpointKeyCache`]: the endpoints of
//! deleted nodes, found by one list for all waiting nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam_plugin::node_cleanup::{endpoint_keys, read_endpoints};
use libcalico::api::{Node as CalicoNode, ObjectKey, WorkloadEndpoint};
use libcalico::store::{Entry, Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::controllers::node_names::NodeNames;
use crate::watched::Node;
use crate::watches::{Cache, Event};

/// The cached names of nodes.
#[derive(Debug, Default)]
pub struct NodeNameCache {
    kubernetes: Cache<ObjectKey, ()>,
    calico: NodeNames,
}

impl NodeNameCache {
    /// Applies an event. Returns the Calico nodes whose Kubernetes nodes are gone.
    pub(super) fn apply_kubernetes_node(&mut self, event: &Event<'_, Node>) -> Vec<ObjectKey> {
        let was_synced = self.kubernetes.is_synced();
        let changed = self.kubernetes.apply(event, |_| Some(()));
        if !was_synced {
            return if self.kubernetes.is_synced() { self.orphans() } else { Vec::new() };
        }
        let gone = changed.iter().filter(|key| self.kubernetes.get(key).is_none());
        gone.flat_map(|key| self.calico.names.members(key)).cloned().collect()
    }

    /// Applies an event. Returns the changed Calico nodes whose Kubernetes nodes are known to be missing.
    pub(super) fn apply_calico_node(&mut self, event: &Event<'_, Entry<CalicoNode>>) -> Vec<ObjectKey> {
        let changed = self.calico.apply(event);
        changed.into_iter().filter(|key| self.orphaned(key).is_some()).collect()
    }

    /// Returns every Calico node whose Kubernetes node is missing; none before all Kubernetes nodes have been listed.
    pub(super) fn orphans(&self) -> Vec<ObjectKey> {
        self.calico.names.all_members().filter(|key| self.orphaned(key).is_some()).cloned().collect()
    }

    /// Returns the name of a Calico node's Kubernetes node, if that node is known to be missing.
    pub(super) fn orphaned(&self, calico: &ObjectKey) -> Option<ObjectKey> {
        let kubernetes = self.calico.names.group(calico)?;
        (self.kubernetes.is_synced() && self.kubernetes.get(kubernetes).is_none()).then(|| kubernetes.clone())
    }
}

/// Time for which a list is used. A missing node gets no new endpoints, but one may have been created just before.
const FRESH: Duration = Duration::from_secs(10);

/// The cached endpoint keys of waiting nodes.
#[derive(Debug, Default)]
pub(super) struct EndpointKeyCache {
    list: Mutex<Option<KeyList>>,
}

#[derive(Debug)]
struct KeyList {
    at: Instant,
    nodes: BTreeSet<String>,
    keys: BTreeMap<String, Vec<ObjectKey>>,
}

impl EndpointKeyCache {
    /// Reads the endpoints of `node`. Their keys may come from an earlier list, made for `orphans`.
    pub(super) async fn read<S: Store>(
        &self,
        store: &S,
        node: &ObjectKey,
        orphans: impl FnOnce() -> Vec<ObjectKey>,
    ) -> Result<Vec<Entry<WorkloadEndpoint>>, StoreError> {
        let mut list = self.list.lock().await;
        let fresh = list.as_ref().is_some_and(|list| list.at.elapsed() < FRESH && list.nodes.contains(&node.name));
        if !fresh {
            let mut nodes: BTreeSet<String> = orphans().into_iter().map(|key| key.name).collect();
            nodes.insert(node.name.clone());
            let at = Instant::now();
            let keys = endpoint_keys(store, |name| nodes.contains(name)).await?;
            *list = Some(KeyList { at, nodes, keys });
        }
        // Used once: another attempt makes a new list.
        let keys = list.as_mut().and_then(|list| {
            list.nodes.remove(&node.name);
            list.keys.remove(&node.name)
        });
        drop(list);
        read_endpoints(store, &node.name, &keys.unwrap_or_default()).await
    }
}

#[cfg(test)]
mod tests {
    use libcalico::api::WorkloadEndpointSpec;

    use super::*;
    use crate::controllers::testing::embedded;

    #[tokio::test(start_paused = true)]
    async fn one_look_serves_all_that_wait() {
        let (_dir, store) = embedded();
        for node in ["a", "b", "c"] {
            let spec = WorkloadEndpointSpec { node: node.into(), ..WorkloadEndpointSpec::default() };
            let mut endpoint = WorkloadEndpoint::new(format!("{node}-k8s-web-eth0"), spec);
            endpoint.metadata.namespace = "default".into();
            store.create(&endpoint.key(), &endpoint).await.unwrap();
        }
        let [a, b, c] = ["a", "b", "c"].map(ObjectKey::global);
        let endpoints = EndpointKeyCache::default();
        let (waiting, never) = (|| vec![a.clone(), b.clone()], || panic!("one look was enough"));
        assert_eq!(endpoints.read(&*store, &a, waiting).await.unwrap().len(), 1);
        assert_eq!(endpoints.read(&*store, &b, never).await.unwrap().len(), 1);
        assert_eq!(endpoints.read(&*store, &b, || vec![b.clone()]).await.unwrap().len(), 1, "a second attempt");
        assert_eq!(endpoints.read(&*store, &c, || vec![c.clone()]).await.unwrap().len(), 1, "not waiting then");
    }
}
