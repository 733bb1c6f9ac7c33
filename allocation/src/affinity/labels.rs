//! Adds labels to affinities that old releases wrote to an API server. Without labels a node does not
//! find its own blocks in a list (IPAM-152).

use std::fs;
use std::path::Path;

use libcalico::ipam::{AffinityOwner, AffinitySelect, BlockAffinity};
use libcalico::store::{Store, StoreError, WriteModel};

use crate::write_gate::{OpenGate, WriteGate};

/// Returns true if the store may have affinities without labels, which a list by owner omits
/// (DS-70). A store with transactions finds an owner's affinities by their paths.
pub fn may_lack_labels(store: &impl Store) -> bool {
    match store.write_model() {
        WriteModel::Transactional => false,
        WriteModel::PerObject => true,
    }
}

/// Ensures that `owner`'s affinities have labels. The file `marker` shows that this was done since
/// the node's boot.
pub async fn ensure_labels(
    store: &impl Store,
    owner: &AffinityOwner,
    marker: Option<&Path>,
) -> Result<(), StoreError> {
    if !may_lack_labels(store) || marker.is_some_and(Path::exists) {
        return Ok(());
    }
    add_labels(store, owner, &OpenGate).await?;
    let Some(marker) = marker else { return Ok(()) };
    let written = marker
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(marker, ""));
    if let Err(error) = written {
        tracing::warn!(
            file = %marker.display(), %error,
            "cannot create the marker for labeled affinities"
        );
    }
    Ok(())
}

/// Rewrites `owner`'s affinities without labels, to which the store adds the labels. Returns false
/// if `gate` refused a write.
pub async fn add_labels(
    store: &impl Store,
    owner: &AffinityOwner,
    gate: &impl WriteGate,
) -> Result<bool, StoreError> {
    if !may_lack_labels(store) {
        return Ok(true);
    }
    for entry in store
        .list::<BlockAffinity>(&AffinitySelect::without_labels())
        .await?
    {
        if entry.key.owner != *owner {
            continue;
        }
        if !gate.admit(1).await {
            return Ok(false);
        }
        tracing::info!(affinity = %entry.key, "adding labels to the block affinity");
        match store
            .update::<BlockAffinity>(&entry.key, &entry.value, &entry.revision)
            .await
        {
            // A concurrent write usually adds the labels too, and a deleted affinity needs none.
            Err(error) if error.is_race() => {}
            outcome => _ = outcome?,
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use libcalico::ipam::AffinityState;

    use super::*;
    use crate::testing::{Cluster, MemoryStore, affinity_key};

    #[tokio::test]
    async fn labels_are_ensured_once_per_boot_of_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let marker = directory.path().join("cni/marker");
        let cluster = Cluster::on(MemoryStore::sequential());
        let owner = AffinityOwner::Host("node1".into());
        for (marker, reads) in [(None, 1), (Some(marker.as_path()), 1), (Some(&marker), 0)] {
            cluster.store.take_counts();
            ensure_labels(&cluster.store, &owner, marker).await.unwrap();
            assert_eq!(cluster.store.take_counts().0, reads, "{marker:?}");
        }
        assert!(marker.exists());
    }

    struct Closing(AtomicUsize);

    impl WriteGate for Closing {
        async fn admit(&self, writes: usize) -> bool {
            self.0
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(writes))
                .is_ok()
        }
    }

    #[tokio::test]
    async fn labels_are_not_added_behind_a_closed_gate() {
        let store = MemoryStore::without_labels();
        for (node, block) in [
            ("a", "10.0.0.0/26"),
            ("b", "10.0.1.0/26"),
            ("a", "10.0.2.0/26"),
        ] {
            let key = affinity_key(node, block);
            store.put(
                &key,
                &BlockAffinity {
                    state: AffinityState::Confirmed,
                    ..BlockAffinity::default()
                },
            );
        }
        let owner = AffinityOwner::Host("a".into());
        for (admitted, finished, writes) in [(0, false, 0), (1, false, 1), (2, true, 2)] {
            store.take_counts();
            let gate = Closing(AtomicUsize::new(admitted));
            assert_eq!(
                add_labels(&store, &owner, &gate).await,
                Ok(finished),
                "{admitted}"
            );
            assert_eq!(store.take_counts().1, writes, "{admitted}");
        }
    }
}
