use allocation::cluster_state::first_read_error;
use allocation::vmi::DetectedVmi;
use libcalico::kubernetes::VmiPod;
use netconf::CniError;

use super::call_batch::CallBatch;
use super::cluster::{ClusterState, in_present_group};
use super::endpoints::PendingEndpoints;
use super::pod::detect_vmi;
use crate::context::Context;
use crate::endpoint::ExistingEndpoint;
use crate::pod::PodWithNamespace;
use crate::world::World;

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

/// Reads the objects that a CHECK needs. Fails if the Kubernetes API did not respond: without the
/// pod, a missing allocation is not known to be an error.
pub async fn for_check(cx: &Context<impl World>) -> Result<CheckReads, CniError> {
    let read = async || {
        let mut batch = CallBatch::new(cx);
        let endpoints = PendingEndpoints::add_to(&mut batch, cx);
        let lookup = batch.add_pod_lookup();
        let answers = batch.read().await?;
        let objects = (
            endpoints.resolve(&answers, cx).readable,
            answers.pod_lookup(&lookup),
        );
        Ok((ClusterState::of(&answers)?, objects))
    };
    let (ready, (endpoints, lookup)) = in_present_group(cx, read)
        .await
        .map_err(|error| first_read_error(&error))?;
    ready?;
    let lookup = lookup?;
    let detected = detect_vmi(cx, lookup.vmi_pod.as_ref()).await?;
    Ok(CheckReads {
        endpoints,
        pod: lookup.pod,
        vmi: detected.and_then(DetectedVmi::for_del),
    })
}
