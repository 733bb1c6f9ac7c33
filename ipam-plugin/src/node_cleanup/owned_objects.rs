//! Objects that exist for one node alone: BGP peers, settings, host endpoints.

use libcalico::api::{
    BgpConfiguration, BgpPeer, FelixConfiguration, HostEndpoint, ObjectKey, ObjectSelect, configuration_of_node,
};
use libcalico::store::{Kind, RawEntry, ReadBatch, Store, StoreError, Write};
use serde::Deserialize;

/// The part that is read of these objects. The plugins need no other fields.
#[derive(Default, Deserialize)]
#[serde(default)]
struct OfNode {
    spec: Named,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    node: String,
}

/// Deletes the objects and returns their number.
pub(super) async fn delete<S: Store>(store: &S, node: &str) -> Result<usize, StoreError> {
    let mut batch = ReadBatch::new();
    let peers = batch.list::<BgpPeer>(&ObjectSelect::default());
    let endpoints = batch.list::<HostEndpoint>(&ObjectSelect::default());
    let answers = store.read(&batch).await?;
    let configuration = ObjectKey::global(configuration_of_node(node));
    let mut writes: Vec<Write> = of_node::<BgpPeer>(answers.pairs(&peers), node).collect();
    writes.push(Write::delete::<FelixConfiguration>(&configuration, None));
    writes.push(Write::delete::<BgpConfiguration>(&configuration, None));
    writes.extend(of_node::<HostEndpoint>(answers.pairs(&endpoints), node));
    let mut deleted = 0;
    for write in writes {
        match store.write_one(write).await {
            Ok(_) => deleted += 1,
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

/// Returns deletions of the objects that name the node. An unreadable object is skipped.
fn of_node<K: Kind>(pairs: &[RawEntry], node: &str) -> impl Iterator<Item = Write> {
    let names_it = move |pair: &&RawEntry| {
        serde_json::from_slice::<OfNode>(&pair.value).is_ok_and(|object| object.spec.node == node)
    };
    pairs
        .iter()
        .filter(names_it)
        .filter_map(|pair| Some(Write::delete::<K>(&K::parse_path(&pair.path)?, Some(&pair.revision))))
}
