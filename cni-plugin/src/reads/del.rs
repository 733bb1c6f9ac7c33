use std::time::Duration;

use allocation::cluster_state::first_read_error;
use allocation::release::{PendingRelease, ReleaseInputs};
use libcalico::api::ObjectKey;
use libcalico::ipam::HandleId;
use libcalico::kubernetes::Pod;
use libcalico::store::{EndpointForm, GetTicket, Store, StoreError};
use libcalico::workload::Orchestrator;
use netconf::{CniError, Code};
use os::clock::run_until;

use super::call_batch::{CallAnswers, CallBatch};
use super::cluster::{ClusterState, NotReady, in_present_group};
use super::endpoints::{OwnEndpoints, PendingEndpoints};
use crate::cni_error::time_limit_error;
use crate::context::Context;
use crate::endpoint::{ExistingEndpoint, Listing};
use crate::pod_lookup::PodLookupError;
use crate::world::World;

/// The objects that a DEL has read.
#[derive(Debug)]
pub struct DelReads {
    /// Endpoints of this container or pod on this node, of any interface.
    pub endpoints: Vec<ExistingEndpoint>,
    /// The addresses that `endpoints` list. Where the pod's annotations contain them, those of the
    /// pod, also without an endpoint on this node. `None` if an endpoint or the pod could not be
    /// decoded, or if the pod's name cannot be part of an endpoint's name.
    pub listings: Option<Vec<Listing>>,
    /// The allocations of the container's handles.
    pub release: ReleaseInputs,
    /// The pod, if it may belong to a KubeVirt VMI.
    pub vmi_pod: Result<Option<Pod>, PodLookupError>,
}

/// A failure to read the objects of a DEL.
#[derive(Debug)]
pub enum DelReadError {
    /// Removes the interface, and leaves the rest of the DEL to a later call.
    Unread(UnreadDel),
    /// Fails the DEL before it changes anything.
    Permanent(CniError),
}

/// A DEL without the objects in the datastore.
#[derive(Debug)]
pub struct UnreadDel {
    /// The reason.
    pub cause: CniError,
    /// The identity of the datastore in the deferred DEL.
    pub identity: RecordedIdentity,
}

/// The identity of the datastore that a deferred DEL records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedIdentity {
    /// The identity that the node knows, if there is one.
    Known,
    /// No identity: a datastore that is set up again gets a new one.
    Omitted,
}

impl DelReadError {
    fn unread(cause: CniError) -> Self {
        DelReadError::Unread(UnreadDel {
            cause,
            identity: RecordedIdentity::Known,
        })
    }
}

impl From<StoreError> for DelReadError {
    fn from(error: StoreError) -> Self {
        let cause = first_read_error(&error);
        if error.is_postponable() {
            DelReadError::unread(cause)
        } else {
            DelReadError::Permanent(cause)
        }
    }
}

impl From<NotReady> for DelReadError {
    fn from(NotReady { error, is_missing }: NotReady) -> Self {
        if is_missing {
            DelReadError::Unread(UnreadDel {
                cause: error,
                identity: RecordedIdentity::Omitted,
            })
        } else {
            DelReadError::Permanent(error)
        }
    }
}

/// Reads the objects that a DEL needs, until `deadline`. `handles` are the handles whose addresses
/// the DEL may release.
pub async fn for_del(
    cx: &Context<impl World>,
    handles: &[HandleId],
    deadline: Duration,
) -> Result<DelReads, DelReadError> {
    if cx.workload.node.is_empty() {
        return Err(DelReadError::unread(unknown_node(cx)));
    }
    let read = in_present_group(cx, async || read_once(cx, handles).await);
    let in_time = run_until(&cx.clock, deadline, read).await;
    let (ready, reads) = in_time.ok_or_else(|| DelReadError::unread(time_limit_error()))??;
    ready?;
    Ok(reads)
}

fn unknown_node(cx: &Context<impl World>) -> CniError {
    let file = &cx.call.conf.node.nodename_file;
    let cause = format!(
        "the name of this node is unknown: neither nodename in the configuration nor {file} \
         contains a name"
    );
    CniError::new(Code::TRY_AGAIN, cause)
}

async fn read_once(
    cx: &Context<impl World>,
    handles: &[HandleId],
) -> Result<(ClusterState, DelReads), StoreError> {
    let mut batch = CallBatch::new(cx);
    let pending_endpoints = PendingEndpoints::add_to(&mut batch, cx);
    let pod = PendingPod::add_to(&mut batch, cx);
    let release = PendingHandles::add_to(&mut batch, handles);
    let lookup = batch.add_pod_lookup();
    let answers = batch.read().await?;
    let state = ClusterState::of(&answers)?;
    let endpoints = pending_endpoints.resolve(&answers, cx);
    let reads = DelReads {
        listings: pod.listings(&answers, cx, &endpoints),
        endpoints: endpoints.readable,
        release: release.resolve(&answers)?,
        vmi_pod: answers.pod_lookup(&lookup).map(|lookup| lookup.vmi_pod),
    };
    Ok((state, reads))
}

/// The pending read of the handles; `None` without handles.
struct PendingHandles(Option<PendingRelease>);

impl PendingHandles {
    fn add_to(batch: &mut CallBatch<'_, impl World>, handles: &[HandleId]) -> Self {
        let is_any = !handles.is_empty();
        PendingHandles(is_any.then(|| ReleaseInputs::add_to(&mut batch.datastore, handles)))
    }

    fn resolve(&self, answers: &CallAnswers<'_, impl World>) -> Result<ReleaseInputs, StoreError> {
        match &self.0 {
            None => Ok(ReleaseInputs::default()),
            Some(pending) => ReleaseInputs::from_answers(&answers.datastore, pending),
        }
    }
}

/// The pending read of the pod whose annotations contain the addresses; `None` if endpoints contain
/// them.
struct PendingPod(Option<GetTicket<Pod>>);

impl PendingPod {
    fn add_to(batch: &mut CallBatch<'_, impl World>, cx: &Context<impl World>) -> Self {
        let form = cx.store.endpoint_form();
        PendingPod(match (form, &cx.workload.orchestrator) {
            // The store reads pod and endpoint by the same request.
            (EndpointForm::PodAnnotations, Orchestrator::Kubernetes(pod)) => {
                let key = ObjectKey::namespaced(pod.namespace.clone(), pod.name.clone());
                Some(batch.datastore.get(&key))
            }
            (EndpointForm::PodAnnotations, Orchestrator::Cni(_)) | (EndpointForm::Object, _) => {
                None
            }
        })
    }

    fn listings(
        &self,
        answers: &CallAnswers<'_, impl World>,
        cx: &Context<impl World>,
        endpoints: &OwnEndpoints,
    ) -> Option<Vec<Listing>> {
        match &self.0 {
            // None if the pod is unreadable or has no valid name, and empty for a missing pod.
            Some(ticket) => match answers.datastore.get(ticket).ok()? {
                None => Some(Vec::new()),
                Some(pod) => Some(vec![Listing::of_pod(pod, &cx.workload.node).ok()?]),
            },
            None if endpoints.has_unreadable => None,
            None => {
                let readable = endpoints.readable.iter().cloned();
                Some(readable.map(Listing::from).collect())
            }
        }
    }
}
