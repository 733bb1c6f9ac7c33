//! Reads all pairs of etcd or of the embedded datastore.

use datastore::Datastore;
use libcalico::api::{ClusterInformation, KubeControllersConfiguration, Node, WorkloadEndpoint};
use libcalico::ipam::{PackedEndpoint, PackedHandle};
use libcalico::store::{Entry, Kind, RawEntry, StoreError, decode_entry};

use super::{ClusterRead, UnreadableObject, audited_endpoint};
use crate::cli::app::Progress;

impl ClusterRead {
    pub(super) async fn read_pairs(
        store: &Datastore,
        progress: &Progress,
    ) -> Result<Self, StoreError> {
        let mut cluster = ClusterRead::default();
        let (mut information, mut configuration, mut completed) = (Vec::new(), Vec::new(), 0);
        let mut insert = |pair: &RawEntry| {
            completed += 1;
            progress.set(completed, 0);
            let unreadable = &mut cluster.unreadable;
            insert_if_kind(pair, &mut cluster.pools, unreadable);
            let (mut blocks, mut handles, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
            insert_if_kind(pair, &mut blocks, unreadable);
            insert_if_kind(pair, &mut handles, unreadable);
            insert_if_kind(pair, &mut endpoints, unreadable);
            insert_if_kind(pair, &mut cluster.affinities, unreadable);
            insert_if_kind::<ClusterInformation>(pair, &mut information, unreadable);
            insert_if_kind::<KubeControllersConfiguration>(pair, &mut configuration, unreadable);
            // At most one of them, which is packed before the next pair is read.
            blocks
                .into_iter()
                .for_each(|entry| cluster.add_block(entry));
            cluster.handles.extend(handles.iter().map(PackedHandle::of));
            let packed = |entry: &Entry<WorkloadEndpoint>| {
                PackedEndpoint::of(&audited_endpoint(&entry.value))
            };
            cluster.endpoints.extend(endpoints.iter().map(packed));
            if Node::parse_path(&pair.path).is_some() {
                cluster.nodes.push(decode_entry(pair));
            }
        };
        store.for_each_pair("/calico/", &mut insert).await?;
        cluster.information = information
            .into_iter()
            .find(|entry| entry.key.name == "default");
        cluster.configuration = configuration
            .into_iter()
            .find(|entry| entry.key.name == "default");
        Ok(cluster)
    }
}

/// Adds `pair` to `of_kind` if its path is of kind `K`, or to `unreadable` if its value cannot be
/// decoded.
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
        Err(error) => unreadable.push(UnreadableObject {
            key: pair.path.clone(),
            reason: error.to_string(),
        }),
    }
}
