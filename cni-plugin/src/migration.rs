//! Upstream's migration of Calico's objects to `projectcalico.org/v3`. The old API group is locked permanently,
//! possibly while a call reads it.

use datastore::Datastore;
use libcalico::store::StoreError;
use netconf::{CniError, Code};

/// Returns true if the objects are in v3 while the group that `store` uses is locked or empty.
pub(crate) async fn has_moved(store: &Datastore) -> bool {
    store.has_moved().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot look whether Calico's objects moved to projectcalico.org/v3");
        false
    })
}

/// Makes `store` use v3 from now on.
pub(crate) async fn go_on(store: &Datastore) -> Result<(), StoreError> {
    store.switch_to_v3().await?;
    tracing::info!("Calico's objects moved to projectcalico.org/v3: this call goes on there");
    Ok(())
}

/// Returns the error for a configuration that names the locked group.
pub(crate) fn way_out() -> CniError {
    let msg =
        "Calico's objects moved to projectcalico.org/v3, and the network configuration names crd.projectcalico.org/v1";
    CniError::new(Code::TRY_AGAIN, msg).with_details(
        "set calico_api_group of the network configuration to projectcalico.org/v3, or leave it out; with the manifests of deploy/ \
         set calico_api_group of the ConfigMap calico-config and restart the pods of calico-cni",
    )
}
