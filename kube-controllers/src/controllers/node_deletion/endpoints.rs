//! [`Endpoints`]: the endpoints of deleted nodes, found by one list for all waiting nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipam_plugin::forget_node::{endpoint_keys, read_endpoints};
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::store::{Entry, Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time for which a list is used. A missing node gets no new endpoints, but one may have been created just before.
const FRESH: Duration = Duration::from_secs(10);

/// The cached endpoint keys of waiting nodes.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    looked: Mutex<Option<Look>>,
}

#[derive(Debug)]
struct Look {
    at: Instant,
    nodes: BTreeSet<String>,
    keys: BTreeMap<String, Vec<ObjectKey>>,
}

impl Endpoints {
    /// Reads the endpoints of `node`. Their keys may come from an earlier list, made for `orphans`.
    pub(super) async fn of<S: Store>(
        &self,
        store: &S,
        node: &ObjectKey,
        orphans: impl FnOnce() -> Vec<ObjectKey>,
    ) -> Result<Vec<Entry<WorkloadEndpoint>>, StoreError> {
        let mut looked = self.looked.lock().await;
        let fresh = looked.as_ref().is_some_and(|look| look.at.elapsed() < FRESH && look.nodes.contains(&node.name));
        if !fresh {
            let mut nodes: BTreeSet<String> = orphans().into_iter().map(|key| key.name).collect();
            nodes.insert(node.name.clone());
            let at = Instant::now();
            let keys = endpoint_keys(store, |name| nodes.contains(name)).await?;
            *looked = Some(Look { at, nodes, keys });
        }
        // Used once: another attempt makes a new list.
        let keys = looked.as_mut().and_then(|look| {
            look.nodes.remove(&node.name);
            look.keys.remove(&node.name)
        });
        drop(looked);
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
        let endpoints = Endpoints::default();
        let (waiting, never) = (|| vec![a.clone(), b.clone()], || panic!("one look was enough"));
        assert_eq!(endpoints.of(&*store, &a, waiting).await.unwrap().len(), 1);
        assert_eq!(endpoints.of(&*store, &b, never).await.unwrap().len(), 1);
        assert_eq!(endpoints.of(&*store, &b, || vec![b.clone()]).await.unwrap().len(), 1, "a second attempt");
        assert_eq!(endpoints.of(&*store, &c, || vec![c.clone()]).await.unwrap().len(), 1, "not waiting then");
    }
}
