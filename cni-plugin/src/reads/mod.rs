//! The reads of each verb: one batch with all objects that the verb needs before its first write, checked for
//! readiness.
//!
//! If the Kubernetes API is not the datastore, the plugin reads from both at the same time.

mod batch;

use std::collections::BTreeMap;

use ipam_plugin::alloc::inputs::AllocationInputs;
use ipam_plugin::alloc::prefetch::Prefetch;
use ipam_plugin::cni::IpamRequest;
use ipam_plugin::error::VmiError;
use ipam_plugin::own_node;
use ipam_plugin::vmi::{self, DetectedVmi};
use libcalico::api::WorkloadEndpoint;
use libcalico::ipam::HandleId;
use libcalico::kubernetes::{MachinePod, Pod};
use libcalico::store::{Entry, StoreError};
use libcalico::workload::{EndpointFacts, Orchestrator};
use netconf::CniError;

use crate::annotations::{Addresses, Annotations};
use crate::cni_error::store_error;
use crate::context::Context;
use crate::ipam::pod_cidr::Subnets;
use crate::ipam::{AddressRequest, CalicoRequest};
use crate::kubernetes::Facts;
use crate::pod::Described;

use self::batch::{Query, discard_prefetch, read, try_read};

pub use self::batch::{NotReady, ReadObjects};

/// The objects that an ADD has read, and the requests derived from them.
#[derive(Debug)]
pub struct AddReads {
    /// The existing endpoint of the container or pod.
    pub existing: Option<Entry<WorkloadEndpoint>>,
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
    pub workload: EndpointFacts,
    /// The settings in the annotations of the pod and its namespace.
    pub annotations: Annotations,
    /// All annotations of the pod, for a gRPC dataplane; empty for the kernel's dataplane.
    pub pod_annotations: BTreeMap<String, String>,
    /// The VMI in the pod, if it keeps its addresses.
    pub vmi: Option<MachinePod>,
}

/// The objects that a CHECK has read.
#[derive(Debug)]
pub struct CheckReads {
    /// Endpoints of this container or pod on this node, of any interface.
    pub endpoints: Vec<Entry<WorkloadEndpoint>>,
    /// The pod and its namespace, if the pod may have addresses that IPAM does not record.
    pub described: Option<Described>,
    /// The VMI in the pod, if it keeps its addresses.
    pub vmi: Option<MachinePod>,
}

/// Reads the ClusterInformation.
///
/// # Errors
/// The datastore is unreachable or not ready.
pub async fn cluster(cx: &Context) -> Result<(), CniError> {
    read(cx, Query::Cluster).await?.ensure_ready()
}

/// Reads the pod of an ADD, for the replay of deferred DELs; `None` for a plain container.
///
/// # Errors
/// The datastore is unreachable or not ready.
pub async fn described_pod(cx: &Context) -> Result<Option<Described>, CniError> {
    let found = read(cx, Query::Endpoint).await?;
    found.ensure_ready()?;
    // An error about the pod fails the ADD itself, at a later step.
    Ok(found.kubernetes.ok().and_then(|facts| facts.described))
}

/// Reads the objects that an ADD needs. `request` is the request to `calico-ipam`. `prefetch` is the part of the
/// allocation that runs at the same time as the reads, and that is undone after a failure.
///
/// # Errors
/// The datastore is unreachable or not ready, the pod or its namespace or node does not exist, or an annotation is
/// invalid.
pub async fn for_add(
    cx: &Context,
    request: Option<IpamRequest>,
    prefetch: Option<Prefetch>,
) -> Result<AddReads, CniError> {
    let query = match &request {
        None => Query::Endpoint,
        Some(request) => Query::Assign(request, prefetch.as_ref()),
    };
    let mut found = read(cx, query).await?;
    let mut request = request;
    let prepared = Box::pin(prepare(cx, &mut found, request.as_mut())).await;
    let allocates = |workload: &WorkloadRequest| matches!(workload.annotations.addresses, Addresses::Allocated);
    if !prepared.as_ref().is_ok_and(|(workload, _)| allocates(workload)) {
        Box::pin(discard_prefetch(cx, request.as_ref(), found.inputs.as_mut())).await;
    }
    let (workload, subnets) = prepared?;
    let addresses = match (&workload.annotations.addresses, request, found.inputs) {
        (Addresses::Fixed(addresses), ..) => AddressRequest::Fixed(addresses.clone()),
        (addresses, Some(request), Some(inputs)) => {
            let (chosen, lock) = match addresses {
                // Each chosen address acquires the lock separately.
                Addresses::Requested(chosen) => (chosen.clone(), None),
                _ => (Vec::new(), prefetch.map(Prefetch::into_lock)),
            };
            AddressRequest::Calico(Box::new(CalicoRequest { request, inputs, lock, chosen }))
        }
        _ => AddressRequest::Exec(subnets),
    };
    let (existing, has_profile) = (found.endpoints.into_iter().next(), found.profile.is_some());
    Ok(AddReads { existing, has_profile, request: workload, addresses })
}

/// Applies the objects read to the requests. At this time the prefetch may have written, and no other write has
/// happened.
async fn prepare(
    cx: &Context,
    found: &mut ReadObjects,
    mut request: Option<&mut IpamRequest>,
) -> Result<(WorkloadRequest, Option<Subnets>), CniError> {
    found.ensure_ready()?;
    if let Some(inputs) = &mut found.inputs {
        let made = own_node::ensure(&cx.store, &cx.workload.node, inputs).await;
        made.map_err(|error| store_error("create the Node", &error))?;
    }
    let facts = std::mem::replace(&mut found.kubernetes, Ok(Facts::default()))?;
    let conf = &cx.call.conf;
    let (mut workload, mut annotations) = (cx.workload.clone(), Annotations::default());
    let mut pod_annotations = BTreeMap::new();
    if let Some(described) = &facts.described {
        described.ensure_is_pod_of(&cx.call)?;
        annotations = Annotations::of(&described.pod, &described.namespace, conf)?;
        if let Some(request) = request.as_deref_mut() {
            annotations.apply_to(request);
        }
        workload.orchestrator = Orchestrator::Kubernetes(described.pod.facts());
        // With another policy type upstream does not read the pod (CNI-115).
        if conf.dataplane_options.grpc_socket().is_some() && conf.policy.policy_type == "k8s" {
            pod_annotations.clone_from(&described.pod.metadata.annotations);
        }
    }
    if let (Some(pod), Some(labels)) = (request.as_deref_mut().and_then(|request| request.pod.as_mut()), facts.labels) {
        pod.namespace.labels = labels;
    }
    let detected = detect_vmi(cx, facts.machine_pod.as_ref()).await?;
    let vmi = detected.map(DetectedVmi::for_add).transpose()?.flatten();
    if let Some(request) = request {
        request.vmi.clone_from(&vmi);
    }
    Ok((WorkloadRequest { workload, annotations, pod_annotations, vmi }, facts.subnets))
}

/// Reads the objects that a DEL needs; the caller checks the readiness of the datastore. `handles` are the handles
/// whose addresses the DEL may release.
///
/// # Errors
/// The datastore is unreachable or rejects the read. [`StoreError::is_postponable`] distinguishes errors for which the
/// DEL is deferred.
pub async fn for_del(cx: &Context, handles: &[HandleId]) -> Result<Box<ReadObjects>, StoreError> {
    try_read(cx, Query::Release(handles)).await
}

/// Reads the objects that a CHECK needs.
///
/// # Errors
/// The datastore is unreachable or not ready, or the Kubernetes API did not respond. Without the pod, a missing
/// allocation is not known to be an error.
pub async fn for_check(cx: &Context) -> Result<CheckReads, CniError> {
    let found = *read(cx, Query::Endpoint).await?;
    found.ensure_ready()?;
    let facts = found.kubernetes?;
    let detected = detect_vmi(cx, facts.machine_pod.as_ref()).await?;
    let vmi = detected.and_then(DetectedVmi::for_del);
    Ok(CheckReads { endpoints: found.endpoints, described: facts.described, vmi })
}

/// Reads the VMI of the pod; `None` for a pod without one.
pub async fn detect_vmi(cx: &Context, pod: Option<&Pod>) -> Result<Option<DetectedVmi>, VmiError> {
    Ok(Box::pin(vmi::detect(cx.api.reached(&cx.store), &cx.store, pod)).await?)
}

/// Reads the objects that a STATUS needs: the inputs of an allocation by `request`.
///
/// # Errors
/// The datastore is unreachable or not ready.
pub async fn for_status(cx: &Context, request: Option<&IpamRequest>) -> Result<Option<AllocationInputs>, CniError> {
    let found = read(cx, request.map_or(Query::Cluster, Query::Allocator)).await?;
    found.ensure_ready()?;
    let mut inputs = found.inputs;
    if let Some(inputs) = &mut inputs {
        own_node::assume(&cx.store, &cx.workload.node, inputs);
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests;
