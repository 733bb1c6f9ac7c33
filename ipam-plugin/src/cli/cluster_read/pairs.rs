//! Reads all pairs of etcd or of the embedded datastore.

use datastore::Datastore;
use libcalico::api::{ClusterInformation, KubeControllersConfiguration, Node};
use libcalico::store::{Entry, Kind, RawEntry, StoreError, decode_entry};

use super::{ClusterRead, UnreadableObject, audited_endpoint};
use crate::cli::app::Progress;

impl ClusterRead {
    pub(super) async fn read_pairs(store: &Datastore, progress: &Progress) -> Result<Self, StoreError> {
        let mut cluster = ClusterRead::default();
        let (mut information, mut configuration, mut completed) = (Vec::new(), Vec::new(), 0);
        let mut insert = |pair: &RawEntry| {
            completed += 1;
            progress.set(completed, 0);
            let unreadable = &mut cluster.unreadable;
            insert_if_kind(pair, &mut cluster.pools, unreadable);
            insert_if_kind(pair, &mut cluster.blocks, unreadable);
            insert_if_kind(pair, &mut cluster.handles, unreadable);
            insert_if_kind(pair, &mut cluster.affinities, unreadable);
            insert_if_kind::<ClusterInformation>(pair, &mut information, unreadable);
            insert_if_kind::<KubeControllersConfiguration>(pair, &mut configuration, unreadable);
            let mut endpoints = Vec::new();
            insert_if_kind(pair, &mut endpoints, unreadable);
            cluster.endpoints.extend(endpoints.iter().map(|entry| audited_endpoint(&entry.value)));
            if Node::parse_path(&pair.path).is_some() {
                cluster.nodes.push(decode_entry(pair));
            }
        };
        store.for_each_pair("/calico/", &mut insert).await?;
        cluster.information = information.into_iter().find(|entry| entry.key.name == "default");
        cluster.configuration = configuration.into_iter().find(|entry| entry.key.name == "default");
        Ok(cluster)
    }
}

/// Adds `pair` to `of_kind` if its path is of kind `K`, or to `unreadable` if its value cannot be decoded.
pub(super) fn insert_if_kind<K: Kind>(
    pair: &RawEntry,
    of_kind: &mut Vec<Entry<K>>,
    unreadable: &mut Vec<UnreadableObject>,
) {
    if K::parse_path(&pair.path).is_none() {
        return;
    }
    match decode_entry(pair) {
        Ok(entry) => of_kind.push(entry),
        Err(error) => unreadable.push(UnreadableObject { key: pair.path.clone(), reason: error.to_string() }),
    }
}
