//! Pods of deferred DELs with a VMI of KubeVirt: removes the pod from the owners of the VMI's
//! addresses.

use allocation::error::{IpamError, VmiError};
use allocation::exhausted::ReleaseGuard;
use allocation::journal::PendingDel;
use allocation::reads::find;
use allocation::vmi::{DetectedVmi, Ownership, detect};
use ipam_plugin::cni;
use libcalico::api::{ObjectKey, WorkloadEndpoint};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{Pod, VmiPod, may_be_virt_launcher};
use libcalico::names::EndpointIdentifiers;
use libcalico::store::Store;
use os::clock::Clock;
use os::node_files::NodeFiles;

use crate::endpoint::{self, OtherEndpoints};
use crate::ipam::release::complete;

/// Returns true if the pod of a deferred DEL may have run a VMI, according to the name of the pod.
pub fn may_have_had_vmi(pending_del: &PendingDel) -> bool {
    may_be_virt_launcher(
        &EndpointIdentifiers::parse(&pending_del.endpoint.1)
            .unwrap_or_default()
            .pod,
    )
}

/// Removes a pod from the owners of its VMI's addresses, for a deferred DEL, unless an ADD made it
/// an owner since.
pub async fn release_deferred<S: Store>(
    store: &S,
    clock: &impl Clock,
    files: &NodeFiles,
    pending_del: &PendingDel,
    vmi: &VmiPod,
    endpoints: &Result<OtherEndpoints<'_, S>, IpamError>,
) -> Result<(), IpamError> {
    let handle = HandleId::for_vmi(&pending_del.network, &pending_del.endpoint.0, &vmi.vmi_name);
    let _releasing = ReleaseGuard::of_node(files);
    let ownership = Ownership {
        handle,
        vmi,
        node: &pending_del.node,
        before: pending_del.limit(),
    };
    let begun = cni::release_ownership(store, clock, ownership).await?;
    complete(begun, endpoints).await.map(drop)
}

/// Reads the VMI of a deferred DEL's pod, whose endpoint has this key. Returns `None`, for example,
/// if the endpoint belongs to a newer sandbox of the pod, or if the pod is deleted.
pub async fn detect_deferred<S: Store>(
    store: &S,
    api: &S,
    pending_del: &PendingDel,
    key: &ObjectKey,
) -> Result<Option<VmiPod>, VmiError> {
    let PendingDel {
        endpoint: (namespace, name),
        container_id,
        pod_uid,
        ..
    } = pending_del;
    let pod = &EndpointIdentifiers::parse(name).unwrap_or_default().pod;
    let found = find::<WorkloadEndpoint>(store, key).await?;
    if found
        .is_some_and(|entry| !endpoint::is_of_container(&entry.value, container_id, Some(pod_uid)))
    {
        return Ok(None);
    }
    let pod = find::<Pod>(api, &ObjectKey::namespaced(namespace, pod)).await?;
    let Some(pod) = pod else { return Ok(None) };
    let detected = detect(Some(api), store, Some(&pod.value)).await?;
    Ok(detected.and_then(DetectedVmi::for_del))
}
