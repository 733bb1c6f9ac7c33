use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::prefetch::{self, Prefetch};
use allocation::cluster_state::{self, NotReadyError, first_read_error};
use allocation::release::ReleaseInputs;
use futures::future::join;
use ipam_plugin::cni::IpamRequest;
use ipam_plugin::kubernetes_api::KubernetesApi;
use libcalico::api::{ClusterInformation, ObjectKey, Profile, WorkloadEndpoint};
use libcalico::ipam::HandleId;
use libcalico::kubernetes::Pod;
use libcalico::store::{Entry, ReadBatch, Store, StoreError};
use libcalico::workload::Orchestrator;
use netconf::CniError;
use os::clock::SystemClock;

use crate::context::Context;
use crate::endpoint::{ExistingEndpoint, Listing};
use crate::ipam;
use crate::pod_lookup::{PendingPodLookup, PodLookup, PodLookupError};

/// A datastore that no verb may change.
#[derive(Debug)]
pub struct NotReady {
    /// The error of the call.
    pub error: CniError,
    /// True if a ClusterInformation exists. Without it the datastore was never set up, or is being
    /// set up again.
    pub has_cluster_information: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Query<'a> {
    Cluster,
    /// The endpoints and the profile.
    Endpoint,
    /// The endpoints, the profile, and the inputs of the allocation. A part of the allocation runs
    /// at the same time.
    Assign(&'a IpamRequest, Option<&'a Prefetch>),
    /// The inputs of an allocation without a container.
    Allocator(&'a IpamRequest),
    /// The endpoints, and the allocations of these handles.
    Release(&'a [HandleId]),
}

/// The answers to a query.
#[derive(Debug)]
pub struct ReadObjects {
    cluster: Option<Entry<ClusterInformation>>,
    /// Endpoints of this container or pod on this node, of any interface.
    pub endpoints: Vec<ExistingEndpoint>,
    /// The addresses that `endpoints` list; for a DEL on Kubernetes those that the pod lists, also
    /// without an endpoint on this node. `None` if an endpoint or the pod could not be decoded, or
    /// on Kubernetes if the pod's name cannot be part of an endpoint's name.
    pub listings: Option<Vec<Listing>>,
    pub(super) profile: Option<Entry<Profile>>,
    pub(super) inputs: Option<AllocationInputs>,
    /// The allocations of the container's handles; `None` without handles.
    pub release: Option<ReleaseInputs>,
    /// An error if an object of the lookup cannot be read, or is missing and an ADD needs it.
    pub pod_lookup: Result<PodLookup, PodLookupError>,
    /// True if the objects moved to `projectcalico.org/v3` while the configuration names the other
    /// group.
    has_moved: bool,
}

pub(super) async fn read(cx: &Context, query: Query<'_>) -> Result<Box<ReadObjects>, CniError> {
    try_read(cx, query)
        .await
        .map_err(|error| first_read_error(&error))
}

/// Reads the objects of `query`. If a migration has locked the API group and moved the objects to
/// `projectcalico.org/v3`, reads them there, unless the configuration names the old group.
pub(super) async fn try_read(
    cx: &Context,
    query: Query<'_>,
) -> Result<Box<ReadObjects>, StoreError> {
    let mut objects = read_once(cx, query).await?;
    if objects.is_ready() || !Box::pin(switch_after_migration(cx, query, &mut objects)).await? {
        return Ok(objects);
    }
    let without_prefetch = match query {
        Query::Assign(request, _) => Query::Assign(request, None),
        other => other,
    };
    read_once(cx, without_prefetch).await
}

/// Returns true if the call has switched to v3, where all objects have to be read again.
async fn switch_after_migration(
    cx: &Context,
    query: Query<'_>,
    objects: &mut ReadObjects,
) -> Result<bool, StoreError> {
    let has_moved = cluster_state::has_moved(&cx.store).await;
    if !has_moved || cx.store.has_configured_group() {
        objects.has_moved = has_moved;
        return Ok(false);
    }
    if let Query::Assign(request, Some(_)) = query {
        // A handle in the old group counts no addresses of v3.
        undo_prefetch(cx, Some(request), objects.inputs.as_mut()).await;
    }
    cluster_state::switch_to_v3(&cx.store).await?;
    Ok(true)
}

pub(super) async fn undo_prefetch(
    cx: &Context,
    request: Option<&IpamRequest>,
    inputs: Option<&mut AllocationInputs>,
) {
    if let (Some(request), Some(inputs)) = (request, inputs) {
        prefetch::discard(
            &cx.store,
            &SystemClock::start(),
            &request.container_handle(),
            inputs,
        )
        .await;
    }
}

async fn read_once(cx: &Context, query: Query<'_>) -> Result<Box<ReadObjects>, StoreError> {
    let mut batch = ReadBatch::new();
    let cluster = batch.get::<ClusterInformation>(&ObjectKey::global("default"));
    let endpoints = match (query, cx.workload.endpoint_select()) {
        (Query::Cluster | Query::Allocator(_), _) | (_, Err(_)) => None,
        (_, Ok(select)) => Some(batch.list::<WorkloadEndpoint>(&select)),
    };
    // The store reads pod and endpoint by the same request.
    let pod = match (query, &cx.workload.orchestrator) {
        (Query::Release(_), Orchestrator::Kubernetes(pod)) if cx.is_on_kubernetes() => {
            Some(batch.get::<Pod>(&ObjectKey::namespaced(
                pod.namespace.clone(),
                pod.name.clone(),
            )))
        }
        _ => None,
    };
    let profile = match query {
        Query::Endpoint | Query::Assign(..) => {
            Some(batch.get::<Profile>(&ObjectKey::global(&cx.call.conf.name)))
        }
        Query::Cluster | Query::Allocator(_) | Query::Release(_) => None,
    };
    let first_read = |request: &IpamRequest| request.inputs_query().for_first_read(&cx.store);
    let inputs = match query {
        Query::Assign(request, Some(prefetch)) => Some(prefetch.extend(first_read(request))),
        Query::Assign(request, None) | Query::Allocator(request) => Some(first_read(request)),
        Query::Cluster | Query::Endpoint | Query::Release(_) => None,
    };
    let inputs = inputs.map(|inputs| AllocationInputs::add_to(&mut batch, &inputs));
    let release = match query {
        Query::Release(handles) if !handles.is_empty() => {
            Some(ReleaseInputs::add_to(&mut batch, handles))
        }
        _ => None,
    };

    let mut beside = ReadBatch::new();
    let batch_of_api = match (query, &cx.api) {
        (Query::Cluster | Query::Allocator(_), _) | (_, KubernetesApi::Unused) => None,
        (_, KubernetesApi::Datastore) => Some(&mut batch),
        (_, KubernetesApi::Separate(_)) => Some(&mut beside),
    };
    let (call, config, node) = (&cx.call, &cx.datastore_config, &cx.workload.node);
    let pending_lookup =
        batch_of_api.map(|batch| PendingPodLookup::add_to(batch, call, config, node));

    let answer = async {
        let Query::Assign(request, Some(prefetch)) = query else {
            return (cx.store.read(&batch).await, None);
        };
        let clock = SystemClock::start();
        let (answers, early) =
            Box::pin(prefetch.read(&cx.store, &clock, &request.handle(), &batch)).await;
        (answers, Some((early, request)))
    };
    let ((answers, early), beside) = join(answer, cx.api.read_separate(&beside)).await;
    let pending_lookup = pending_lookup.unwrap_or_default();
    let objects = answers.and_then(|answers| {
        let own = endpoints.iter().flat_map(|ticket| answers.each(ticket));
        let own = own
            .filter(|(key, _)| cx.workload.is_endpoint_name(&key.name))
            .map(|(_, endpoint)| endpoint);
        let (endpoints, unreadable): (Vec<_>, Vec<_>) = own.partition(Result::is_ok);
        let endpoints: Vec<_> = endpoints.into_iter().flatten().collect();
        let listing = |pod| Listing::of_pod(pod, node).ok();
        let listings = match &pod {
            // None if the pod is unreadable or has no valid name, and empty for a missing pod.
            Some(ticket) => answers
                .get(ticket)
                .ok()
                .and_then(|pod| pod.map(listing).into_iter().collect()),
            None => unreadable
                .is_empty()
                .then(|| endpoints.iter().cloned().map(Listing::from).collect()),
        };
        Ok(Box::new(ReadObjects {
            cluster: answers.get(&cluster)?,
            endpoints,
            listings,
            profile: profile
                .map(|ticket| answers.get(&ticket))
                .transpose()?
                .flatten(),
            inputs: inputs
                .map(|tickets| AllocationInputs::from_answers(&answers, &tickets))
                .transpose()?,
            release: release
                .map(|tickets| ReleaseInputs::from_answers(&answers, &tickets))
                .transpose()?,
            pod_lookup: match beside {
                Some(beside) => {
                    pending_lookup.resolve(&cx.call, beside.as_ref().map_err(Clone::clone))
                }
                None => pending_lookup.resolve(&cx.call, Ok(&answers)),
            },
            has_moved: false,
        }))
    });
    if objects.as_ref().is_ok_and(|objects| !objects.is_ready()) {
        stop_prefetch(cx, query);
    }
    let Some((early, request)) = early else {
        return objects;
    };
    match objects {
        Ok(mut objects) => {
            if let Some(inputs) = &mut objects.inputs {
                early.merge_into(inputs);
            }
            Ok(objects)
        }
        Err(error) => {
            Box::pin(early.discard(
                &cx.store,
                &SystemClock::start(),
                &request.container_handle(),
            ))
            .await;
            Err(error)
        }
    }
}

/// Records on the node that the datastore is not ready, so that later ADDs do not prefetch.
fn stop_prefetch(cx: &Context, query: Query<'_>) {
    match query {
        Query::Assign(request, prefetch) => request.stop_prefetch(prefetch),
        _ => {
            let request = ipam::request(&cx.call, &cx.workload.node, None);
            request
                .iter()
                .for_each(|request| request.stop_prefetch(None));
        }
    }
}

impl ReadObjects {
    pub(super) fn ensure_ready(&self) -> Result<(), CniError> {
        self.readiness().map_err(|not_ready| not_ready.error)
    }

    /// Fails if the datastore is not ready, for example during an upgrade of the cluster (CNI-75,
    /// CNI-76). Also fails if its objects have moved to another API group than the configured one.
    pub fn readiness(&self) -> Result<(), NotReady> {
        let has_cluster_information = self.cluster.is_some();
        let error: CniError = if self.has_moved {
            NotReadyError::Moved.into()
        } else if !has_cluster_information {
            first_read_error(&StoreError::NotFound {
                key: "ClusterInformation(default)".into(),
            })
        } else if self.is_ready() {
            return Ok(());
        } else {
            NotReadyError::Locked.into()
        };
        Err(NotReady {
            error,
            has_cluster_information,
        })
    }

    fn is_ready(&self) -> bool {
        self.cluster
            .as_ref()
            .is_some_and(|cluster| cluster.value.spec.datastore_ready == Some(true))
    }
}
