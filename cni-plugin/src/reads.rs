//! The reads of the verbs: one batch of objects, and for a pod that may run a virtual machine also
//! its VMI.

mod batch;

use std::collections::BTreeMap;

use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::prefetch::Prefetch;
use ipam_plugin::cni::IpamRequest;
use allocation::error::VmiError;
use allocation::own_node;
use allocation::vmi::{self, DetectedVmi};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{Pod, VmiPod};
use libcalico::store::StoreError;
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::CniError;

use crate::annotations::{AddressSource, Annotations};
use crate::cni_error::store_error;
use crate::context::Context;
use crate::endpoint::ExistingEndpoint;
use crate::ipam::pod_cidr::PodCidrSubnets;
use crate::ipam::{AddressRequest, CalicoRequest};
use crate::pod::PodWithNamespace;
use crate::pod_lookup::PodLookup;

use self::batch::{Query, read, try_read, undo_prefetch};

pub use self::batch::{NotReady, ReadObjects};

/// The objects that an ADD has read, and the requests derived from them.
#[derive(Debug)]
pub struct AddReads {
    /// The existing endpoint of the container or pod.
    pub existing: Option<ExistingEndpoint>,
    /// True if the network's profile exists.
    pub has_profile: bool,
    /// The pod or container.
    pub request: WorkloadRequest,
    /// The addresses to assign.
    pub addresses: AddressRequest,
}

/// The pod or container that an ADD connects to the network.
#[derive(Debug)]
pub struct WorkloadRequest {
    /// The names of the pod or container, and the labels and ports of a pod.
    pub workload: WorkloadIdentity,
    /// The settings in the annotations of the pod and its namespace.
    pub annotations: Annotations,
    /// All annotations of the pod, for a gRPC dataplane; empty for the kernel's dataplane, and
    /// unless `policy.type` is `k8s`.
    pub pod_annotations: BTreeMap<String, String>,
    /// The VMI in the pod, if the VMI keeps its addresses.
    pub vmi: Option<VmiPod>,
}

/// The objects that a CHECK has read.
#[derive(Debug)]
pub struct CheckReads {
    /// Endpoints of this container or pod on this node, of any interface.
    pub endpoints: Vec<ExistingEndpoint>,
    /// The pod and its namespace, if the pod may have addresses that IPAM does not record.
    pub pod: Option<PodWithNamespace>,
    /// The VMI in the pod, if the VMI keeps its addresses.
    pub vmi: Option<VmiPod>,
}

/// Reads the ClusterInformation. Fails if this is not possible or the datastore is not ready.
pub async fn ensure_cluster_is_ready(cx: &Context) -> Result<(), CniError> {
    read(cx, Query::Cluster).await?.ensure_ready()
}

/// Reads the pod of an ADD, for the replay of deferred DELs. Returns `None` for a plain container,
/// for a pod that the ADD does not read, and after an error about the pod.
pub async fn pod_with_namespace(cx: &Context) -> Result<Option<PodWithNamespace>, CniError> {
    let objects = read(cx, Query::Endpoint).await?;
    objects.ensure_ready()?;
    // An error about the pod fails the ADD itself, at a later step.
    Ok(objects.pod_lookup.ok().and_then(|lookup| lookup.pod))
}

/// Reads the objects that an ADD needs. `request` is the request to `calico-ipam`; `None` for
/// another IPAM plugin. `prefetch` is the part of the allocation that runs at the same time as the
/// reads. It is undone after a failure, and if the pod chooses its addresses or has a list of them.
pub async fn for_add(
    cx: &Context,
    mut request: Option<IpamRequest>,
    prefetch: Option<Prefetch>,
) -> Result<AddReads, CniError> {
    let query = match &request {
        None => Query::Endpoint,
        Some(request) => Query::Assign(request, prefetch.as_ref()),
    };
    let mut objects = read(cx, query).await?;
    let prepared = Box::pin(prepare(cx, &mut objects, request.as_mut())).await;
    let allocates = |workload: &WorkloadRequest| {
        matches!(workload.annotations.addresses, AddressSource::Allocated)
    };
    if !prepared
        .as_ref()
        .is_ok_and(|(workload, _)| allocates(workload))
    {
        Box::pin(undo_prefetch(cx, request.as_ref(), objects.inputs.as_mut())).await;
    }
    let (workload, subnets) = prepared?;
    let addresses = match (&workload.annotations.addresses, request, objects.inputs) {
        (AddressSource::Fixed(addresses), ..) => AddressRequest::Fixed(addresses.clone()),
        (addresses, Some(request), Some(inputs)) => {
            let (requested, lock) = match addresses {
                // Each requested address acquires the lock separately.
                AddressSource::Requested(requested) => (requested.clone(), None),
                _ => (Vec::new(), prefetch.map(Prefetch::into_lock)),
            };
            AddressRequest::Calico(Box::new(CalicoRequest {
                request,
                inputs,
                lock,
                requested,
            }))
        }
        _ => AddressRequest::Exec(subnets),
    };
    let (existing, has_profile) = (
        objects.endpoints.into_iter().next(),
        objects.profile.is_some(),
    );
    Ok(AddReads {
        existing,
        has_profile,
        request: workload,
        addresses,
    })
}

/// Applies the objects read to the requests. On the embedded datastore, creates the node's Node if
/// it is missing. Before that, only the prefetch may have written.
async fn prepare(
    cx: &Context,
    objects: &mut ReadObjects,
    mut request: Option<&mut IpamRequest>,
) -> Result<(WorkloadRequest, Option<PodCidrSubnets>), CniError> {
    objects.ensure_ready()?;
    if let Some(inputs) = &mut objects.inputs {
        let created = own_node::ensure(&cx.store, &cx.workload.node, inputs).await;
        created.map_err(|error| store_error("create the Node", &error))?;
    }
    let lookup = std::mem::replace(&mut objects.pod_lookup, Ok(PodLookup::default()))?;
    let conf = &cx.call.conf;
    let (mut workload, mut annotations) = (cx.workload.clone(), Annotations::default());
    let mut pod_annotations = BTreeMap::new();
    if let Some(pod) = &lookup.pod {
        pod.ensure_is_pod_of(&cx.call)?;
        // On another datastore, Calico's node may have another name than the Kubernetes node.
        if let Some(pod_node) = pod
            .other_node(&cx.workload.node)
            .filter(|_| cx.is_on_kubernetes())
        {
            tracing::warn!(
                node = cx.workload.node,
                pod_node,
                hint = "correct nodename in the configuration, or the nodename file",
                "the pod is on another node than the plugin's configuration names"
            );
        }
        annotations = Annotations::read(&pod.pod, &pod.namespace, conf)?;
        if let Some(request) = request.as_deref_mut() {
            annotations.apply_to(request);
        }
        workload.orchestrator = Orchestrator::Kubernetes(pod.pod.identity());
        // With another policy type upstream does not read the pod (CNI-115).
        if conf.dataplane_options.grpc_socket().is_some() && conf.policy.policy_type == "k8s" {
            pod_annotations.clone_from(&pod.pod.metadata.annotations);
        }
    }
    let requested_pod = request
        .as_deref_mut()
        .and_then(|request| request.pod.as_mut());
    if let (Some(pod), Some(labels)) = (requested_pod, lookup.namespace_labels) {
        pod.namespace.labels = labels;
    }
    let detected = detect_vmi(cx, lookup.vmi_pod.as_ref()).await?;
    let vmi = detected.map(DetectedVmi::for_add).transpose()?.flatten();
    if let Some(request) = request {
        request.vmi.clone_from(&vmi);
    }
    Ok((
        WorkloadRequest {
            workload,
            annotations,
            pod_annotations,
            vmi,
        },
        lookup.subnets,
    ))
}

/// Reads the objects that a DEL needs; the caller checks the readiness of the datastore. `handles`
/// are the handles whose addresses the DEL may release.
pub async fn for_del(cx: &Context, handles: &[HandleId]) -> Result<Box<ReadObjects>, StoreError> {
    try_read(cx, Query::Release(handles)).await
}

/// Reads the objects that a CHECK needs. Fails if the Kubernetes API did not respond: without the
/// pod, a missing allocation is not known to be an error.
pub async fn for_check(cx: &Context) -> Result<CheckReads, CniError> {
    let objects = *read(cx, Query::Endpoint).await?;
    objects.ensure_ready()?;
    let lookup = objects.pod_lookup?;
    let detected = detect_vmi(cx, lookup.vmi_pod.as_ref()).await?;
    let vmi = detected.and_then(DetectedVmi::for_del);
    Ok(CheckReads {
        endpoints: objects.endpoints,
        pod: lookup.pod,
        vmi,
    })
}

/// Reads the VMI of the pod; `None` for a pod without one, or if the call does not use the
/// Kubernetes API.
pub async fn detect_vmi(cx: &Context, pod: Option<&Pod>) -> Result<Option<DetectedVmi>, VmiError> {
    Ok(Box::pin(vmi::detect(cx.api.reached(&cx.store), &cx.store, pod)).await?)
}

/// Reads the objects that a STATUS needs: the inputs of an allocation by `request`. Returns `None`
/// without a request.
pub async fn for_status(
    cx: &Context,
    request: Option<&IpamRequest>,
) -> Result<Option<AllocationInputs>, CniError> {
    let objects = read(cx, request.map_or(Query::Cluster, Query::Allocator)).await?;
    objects.ensure_ready()?;
    let mut inputs = objects.inputs;
    if let Some(inputs) = &mut inputs {
        own_node::assume(&cx.store, &cx.workload.node, inputs);
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests;
