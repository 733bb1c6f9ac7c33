//! Claims that a release from before the labels wrote in Kubernetes get them, once per start of the node (IPAM-47,
//! IPAM-152). Without labels a node does not find its own blocks when it lists them.

use std::fs;
use std::path::Path;

use libcalico::ipam::{AffinitySelect, BlockAffinity, Owner};
use libcalico::store::{Store, StoreError};

/// Sees to it that `owner`'s claims have labels. Only a store that lists by label needs it. The file `marker`, if given,
/// is there when it was done since the node started.
pub async fn ensure_labels<S: Store>(store: &S, owner: &Owner, marker: Option<&Path>) -> Result<(), StoreError> {
    if store.has_transactions() || marker.is_some_and(Path::exists) {
        return Ok(());
    }
    add_labels(store, owner).await?;
    // Without it the next ADD of an asked-for address looks again.
    if let Some((marker, Err(error))) = marker.map(|marker| (marker, leave_marker(marker))) {
        tracing::warn!(file = %marker.display(), %error, "cannot note that old affinities have labels");
    }
    Ok(())
}

/// Writes each of them as it is: the store adds the labels.
async fn add_labels<S: Store>(store: &S, owner: &Owner) -> Result<(), StoreError> {
    for entry in store.list::<BlockAffinity>(&AffinitySelect::without_labels()).await? {
        if entry.key.owner != *owner {
            continue;
        }
        tracing::info!(affinity = %entry.key, "adding labels");
        match store.update::<BlockAffinity>(&entry.key, &entry.value, &entry.revision).await {
            // Whoever was faster wrote labels too.
            Err(error) if error.is_race() => {}
            outcome => _ = outcome?,
        }
    }
    Ok(())
}

fn leave_marker(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, MemoryStore};

    #[tokio::test]
    async fn once_per_start_of_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let marker = directory.path().join("cni/marker");
        let cluster = Cluster::on(MemoryStore::sequential());
        let owner = Owner::Host("node1".into());
        for (marker, reads) in [(None, 1), (Some(marker.as_path()), 1), (Some(&marker), 0)] {
            cluster.store.take_counts();
            ensure_labels(&cluster.store, &owner, marker).await.unwrap();
            assert_eq!(cluster.store.take_counts().0, reads, "{marker:?}");
        }
        assert!(marker.exists());
    }
}
