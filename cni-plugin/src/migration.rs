//! Upstream's migration of Calico's objects to `projectcalico.org/v3`, as a call meets it: the group that the call read
//! is locked for good.

use datastore::Datastore;
use ipam_plugin::ahead;
use ipam_plugin::clock::SystemClock;
use libcalico::store::StoreError;
use netconf::{CniError, Code};

use crate::session::{Known, Question};

/// Lets `store` go on in v3 where the migration has opened v3, and returns whether everything is to be read again
/// there. `known` is what `question` found in the other group, which is locked or empty; where the configuration names
/// that group, `known` says that the objects moved.
pub(crate) async fn follow(store: &Datastore, question: Question<'_>, known: &mut Known) -> Result<bool, StoreError> {
    let has_moved = store.has_moved().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot look whether Calico's objects moved to projectcalico.org/v3");
        false
    });
    if !has_moved || store.has_configured_group() {
        known.has_moved = has_moved;
        return Ok(false);
    }
    if let (Question::Assign(call, Some(_)), Some(prelude)) = (question, known.assign.as_mut()) {
        // A handle that was made in the other group counts for no block of v3.
        ahead::forget(store, &SystemClock::start(), call, prelude).await;
    }
    store.go_on_in_v3().await?;
    tracing::info!("Calico's objects moved to projectcalico.org/v3: this call goes on there");
    Ok(true)
}

/// The error of a call whose configuration names the group that is locked.
pub(crate) fn way_out() -> CniError {
    let msg =
        "Calico's objects moved to projectcalico.org/v3, and the network configuration names crd.projectcalico.org/v1";
    CniError::new(Code::TRY_AGAIN, msg).with_details(
        "set calico_api_group of the network configuration to projectcalico.org/v3, or leave it out; with the manifests of deploy/ \
         set calico_api_group of the ConfigMap calico-config and restart the pods of calico-cni",
    )
}
