//! Pods of deferred DELs with a VMI of KubeVirt: removes the pod from the owners of the VMI's addresses.

use datastore::Datastore;
use ipam_plugin::error::{VmiError, cni_error};
use ipam_plugin::exhausted::ReleaseGuard;
use ipam_plugin::journal::PendingDel;
use ipam_plugin::reads::find;
use ipam_plugin::release::Listings;
use ipam_plugin::vmi::{DetectedVmi, detect, release_ownership};
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{Pod, VmiPod, may_be_virt_launcher};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::StoreError;
use netconf::CniError;
use os::clock::SystemClock;

use crate::cni_error::{naming_error, store_error};
use crate::endpoint;

/// Returns true if the pod of a deferred DEL may have run a VMI, according to the name of the pod.
pub fn may_have_had_vmi(pending_del: &PendingDel) -> bool {
    may_be_virt_launcher(&EndpointIdentifiers::parse(&pending_del.endpoint.1).unwrap_or_default().pod)
}

/// Removes a pod from the owners of its VMI's addresses, for a deferred DEL. Does nothing, for example, if the endpoint
/// belongs to a newer sandbox of the pod, or if the pod is deleted.
pub async fn release_deferred<L: Listings>(
    store: &Datastore,
    api: &Datastore,
    pending_del: &PendingDel,
    listings: &L,
) -> Result<(), CniError> {
    let Some(vmi) = detect_vmi(store, api, pending_del).await? else { return Ok(()) };
    let handle = HandleId::for_vmi(&pending_del.network, &pending_del.endpoint.0, &vmi.vmi_name);
    let _releasing = ReleaseGuard::here();
    let released = release_ownership(store, &SystemClock::start(), &handle, &vmi, &pending_del.node, listings).await;
    released.map_err(|error| cni_error(&error))
}

async fn detect_vmi(store: &Datastore, api: &Datastore, pending_del: &PendingDel) -> Result<Option<VmiPod>, CniError> {
    let PendingDel { endpoint: (namespace, name), container_id, pod_uid, .. } = pending_del;
    let pod = &EndpointIdentifiers::parse(name).unwrap_or_default().pod;
    // The recorded endpoint name contains a placeholder if the name of the node was unknown to the DEL.
    let key = pending_del.attachment().key().map_err(|error| naming_error(&error))?;
    let doing = format!("read pod {namespace}/{pod} of a virtual machine");
    let unreadable = |error: StoreError| store_error(&doing, &error);
    let found = find::<WorkloadEndpoint>(store, &key).await.map_err(unreadable)?;
    if found.is_some_and(|entry| !endpoint::is_of_container(&entry.value, container_id, Some(pod_uid))) {
        return Ok(None);
    }
    let pod = find::<Pod>(api, &ObjectKey::namespaced(namespace, pod)).await.map_err(unreadable)?;
    let Some(pod) = pod else { return Ok(None) };
    let detected = detect(Some(api), store, Some(&pod.value)).await.map_err(VmiError::from)?;
    Ok(detected.and_then(DetectedVmi::for_del))
}
