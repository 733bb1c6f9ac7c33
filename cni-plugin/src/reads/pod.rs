//! The pod of a call: its settings in annotations, and its VMI.

use std::collections::BTreeMap;

use allocation::cluster_state::first_read_error;
use allocation::error::VmiError;
use allocation::vmi::{self, DetectedVmi};
use ipam_plugin::cni::IpamRequest;
use libcalico::kubernetes::{Pod, VmiPod};
use libcalico::store::{EndpointForm, Store};
use libcalico::workload::{Orchestrator, WorkloadIdentity};
use netconf::CniError;

use super::call_batch::CallBatch;
use super::cluster::{ClusterState, in_present_group};
use crate::annotations::Annotations;
use crate::context::Context;
use crate::ipam::pod_cidr::PodCidrSubnets;
use crate::pod::PodWithNamespace;
use crate::pod_lookup::PodLookup;
use crate::world::World;

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

/// Reads the pod of an ADD, for the replay of deferred DELs. Returns `None` for a plain container,
/// for a pod that the ADD does not read, and after an error about the pod.
pub async fn pod_with_namespace(
    cx: &Context<impl World>,
) -> Result<Option<PodWithNamespace>, CniError> {
    let read = async || {
        let mut batch = CallBatch::new(cx);
        let pending = batch.add_pod_lookup();
        let answers = batch.read().await?;
        Ok((ClusterState::of(&answers)?, answers.pod_lookup(&pending)))
    };
    let (ready, lookup) = in_present_group(cx, read)
        .await
        .map_err(|error| first_read_error(&error))?;
    ready?;
    // An error about the pod fails the ADD itself, at a later step.
    Ok(lookup.ok().and_then(|lookup| lookup.pod))
}

/// Reads the VMI of the pod; `None` for a pod without one, or if the call does not use the
/// Kubernetes API.
pub async fn detect_vmi(
    cx: &Context<impl World>,
    pod: Option<&Pod>,
) -> Result<Option<DetectedVmi>, VmiError> {
    Ok(Box::pin(vmi::detect(cx.api.reached(&cx.store), &cx.store, pod)).await?)
}

/// Returns the request of an ADD for this pod, and the node's subnets if the configuration contains
/// `usePodCidr`. Adds the pod's settings to `request`, the request to `calico-ipam`; `None` for
/// another IPAM plugin.
pub(super) async fn workload_request(
    cx: &Context<impl World>,
    lookup: PodLookup,
    mut request: Option<&mut IpamRequest>,
) -> Result<(WorkloadRequest, Option<PodCidrSubnets>), CniError> {
    let conf = &cx.call.conf;
    let (mut workload, mut annotations) = (cx.workload.clone(), Annotations::default());
    let mut pod_annotations = BTreeMap::new();
    if let Some(pod) = &lookup.pod {
        pod.ensure_is_pod_of(&cx.call)?;
        warn_of_other_node(cx, pod);
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
    let workload_request = WorkloadRequest {
        workload,
        annotations,
        pod_annotations,
        vmi,
    };
    Ok((workload_request, lookup.subnets))
}

fn warn_of_other_node(cx: &Context<impl World>, pod: &PodWithNamespace) {
    match cx.store.endpoint_form() {
        // Calico's node may have another name than the Kubernetes node.
        EndpointForm::Object => {}
        EndpointForm::PodAnnotations => {
            if let Some(pod_node) = pod.other_node(&cx.workload.node) {
                tracing::warn!(
                    node = cx.workload.node,
                    pod_node,
                    hint = "correct nodename in the configuration, or the nodename file",
                    "the pod is on another node than the plugin's configuration names"
                );
            }
        }
    }
}
