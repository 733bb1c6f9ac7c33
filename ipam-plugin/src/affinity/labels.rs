//! Claims that a release from before the labels wrote in Kubernetes get them, once per start of the node (IPAM-47,
//! IPAM-152). Without labels a node does not find its own blocks when it lists them.

use std::fs;
use std::path::Path;

use libcalico::ipam::{AffinitySelect, BlockAffinity, Owner};
use libcalico::store::{Store, StoreError};

/// There when it was done since the node started.
const MARKER: &str = "/var/run/calico/cni/ipam_upgraded";

/// Sees to it that `owner`'s claims have labels. Only a store that lists by label needs it.
pub(crate) async fn ensure_labels<S: Store>(store: &S, owner: &Owner) -> Result<(), StoreError> {
    if store.has_transactions() || Path::new(MARKER).exists() {
        return Ok(());
    }
    add_labels(store, owner).await?;
    // Without it the next ADD of an asked-for address looks again.
    if let Err(error) = leave_marker(Path::new(MARKER)) {
        tracing::warn!(file = MARKER, %error, "cannot note that old affinities have labels");
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
