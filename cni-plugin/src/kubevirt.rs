//! Pods with a virtual machine of KubeVirt: whether the machine keeps its addresses, found out before they are looked
//! at.

use datastore::Datastore;
use ipam_plugin::clock::SystemClock;
use ipam_plugin::cni::cni_error;
use ipam_plugin::exhausted::Releasing;
use ipam_plugin::journal::Debt;
use ipam_plugin::kubernetes_api::{self, Api};
use ipam_plugin::kubevirt::{Detected, MachineError, detect, leave};
use ipam_plugin::release::Listings;
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{MachinePod, Pod, may_be_machine};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::{Store, StoreError};
use netconf::CniError;

use crate::owed::Payer;
use crate::session::{Session, naming_error, store_error};
use crate::{endpoint, owed};

/// The machine of a pod that is to be networked; `None` for a pod like any other.
pub async fn arriving(session: &Session, pod: Option<&Pod>) -> Result<Option<MachinePod>, CniError> {
    let detected = Box::pin(detected(session, pod)).await?;
    Ok(detected.map(Detected::arriving).transpose()?.flatten())
}

/// The machine of a pod that was networked.
pub async fn leaving(session: &Session, pod: Option<&Pod>) -> Result<Option<MachinePod>, MachineError> {
    Ok(Box::pin(detected(session, pod)).await?.and_then(Detected::leaving))
}

async fn detected(session: &Session, pod: Option<&Pod>) -> Result<Option<Detected>, MachineError> {
    let (Some(api), Some(pod)) = (session.api.reached(&session.store), pod) else { return Ok(None) };
    Ok(detect(api, &session.store, pod).await?)
}

/// Takes a pod off its machine's addresses that left while the datastore was out of reach. To be called while its
/// endpoint is there: a newer sandbox of the pod has it, and the addresses. A pod that is gone cannot be told from any
/// other, and its machine's next pod takes its place.
pub async fn settle<L: Listings>(payer: &Payer<'_>, owed: &Debt, listings: &L) -> Result<(), CniError> {
    let (namespace, endpoint) = &owed.endpoint;
    let ids = EndpointIdentifiers::parse(endpoint).unwrap_or_default();
    if !may_be_machine(&ids.pod) || !kubernetes_api::is_there(payer.conf, payer.datastore_config) {
        return Ok(());
    }
    let opened;
    let api = match payer.api {
        // This call has no question of its own.
        Api::Unasked => {
            opened = Api::with_environment(payer.conf, payer.datastore_config, payer.environment)?;
            &opened
        }
        api => api,
    };
    let Some(api) = api.reached(payer.store) else { return Ok(()) };
    let Some(machine) = machine_of(payer.store, api, &ids.pod, owed).await? else { return Ok(()) };
    let handle = HandleId::for_machine(&owed.network, namespace, &machine.instance);
    let _releasing = Releasing::here();
    let left = leave(payer.store, &SystemClock::start(), &handle, &machine, &owed.node, listings).await;
    left.map_err(|error| cni_error(&error))
}

async fn machine_of(
    store: &Datastore,
    api: &Datastore,
    pod: &str,
    owed: &Debt,
) -> Result<Option<MachinePod>, CniError> {
    // The name in the debt lacks the node where the DEL could not tell it.
    let key = owed::facts_of(owed).key().map_err(|error| naming_error(&error))?;
    let namespace = &owed.endpoint.0;
    let unreadable = |error: StoreError| store_error("read what a virtual machine's pod left", &error);
    match store.get::<WorkloadEndpoint>(&key).await {
        Ok(entry) if !endpoint::is_of_container(&entry.value, &owed.container_id, Some(&owed.pod_uid)) => {
            return Ok(None);
        }
        Err(error) if !matches!(error, StoreError::NotFound { .. }) => return Err(unreadable(error)),
        _ => {}
    }
    let pod = match api.get::<Pod>(&ObjectKey::namespaced(namespace, pod)).await {
        Ok(entry) => entry.value,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let detected = detect(api, store, &pod).await.map_err(MachineError::from)?;
    Ok(detected.and_then(Detected::leaving))
}
