//! The reads of an ADD. With `calico-ipam`, a part of the allocation runs at the same time.

use allocation::alloc::inputs::{AllocationInputs, InputsQuery, PendingInputs};
use allocation::alloc::prefetch::{self, Prefetch};
use allocation::cluster_state::first_read_error;
use allocation::own_node;
use ipam_plugin::cni::IpamRequest;
use libcalico::api::{ObjectKey, Profile};
use libcalico::store::{GetTicket, StoreError};
use netconf::CniError;
use os::clock::Clock as _;

use super::call_batch::{CallAnswers, CallBatch};
use super::cluster::{ClusterState, NotReady, in_present_group};
use super::endpoints::PendingEndpoints;
use super::pod::{WorkloadRequest, workload_request};
use crate::annotations::AddressSource;
use crate::cni_error::store_error;
use crate::context::Context;
use crate::endpoint::ExistingEndpoint;
use crate::ipam::{AddressRequest, CalicoRequest};
use crate::pod_lookup::{PendingPodLookup, PodLookup, PodLookupError};
use crate::world::World;

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

/// Reads the objects that an ADD needs. `request` is the request to `calico-ipam`; `None` for
/// another IPAM plugin. `prefetch` is the part of the allocation that runs at the same time as the
/// reads. It is undone after a failure, and if the pod chooses its addresses or has a list of them.
pub async fn for_add(
    cx: &Context<impl World>,
    request: Option<IpamRequest>,
    prefetch: Option<Prefetch>,
) -> Result<AddReads, CniError> {
    match request {
        Some(request) => with_calico_ipam(cx, request, prefetch).await,
        None => with_other_plugin(cx).await,
    }
}

async fn with_other_plugin(cx: &Context<impl World>) -> Result<AddReads, CniError> {
    let read = async || {
        let mut batch = CallBatch::new(cx);
        let pending = PendingAdd::add_to(&mut batch, cx);
        let lookup = batch.add_pod_lookup();
        let answers = batch.read().await?;
        let state = ClusterState::of(&answers)?;
        let objects = (pending.resolve(&answers, cx)?, answers.pod_lookup(&lookup));
        Ok((state, objects))
    };
    let (ready, (objects, lookup)) = in_present_group(cx, read)
        .await
        .map_err(|error| first_read_error(&error))?;
    ready?;
    let (workload, subnets) = workload_request(cx, lookup?, None).await?;
    let addresses = match &workload.annotations.addresses {
        AddressSource::Fixed(addresses) => AddressRequest::Fixed(addresses.clone()),
        AddressSource::Allocated | AddressSource::Requested(_) | AddressSource::AnyOf(_) => {
            AddressRequest::Exec(subnets)
        }
    };
    Ok(objects.with_requests(workload, addresses))
}

async fn with_calico_ipam(
    cx: &Context<impl World>,
    mut request: IpamRequest,
    prefetch: Option<Prefetch>,
) -> Result<AddReads, CniError> {
    let mut first_prefetch = prefetch.as_ref();
    let read = async || match first_prefetch.take() {
        Some(prefetch) => read_beside_prefetch(cx, &request, prefetch).await,
        None => read_with_inputs(cx, &request).await,
    };
    let (ready, objects) = in_present_group(cx, read)
        .await
        .map_err(|error| first_read_error(&error))?;
    let WithInputs {
        objects,
        mut inputs,
        lookup,
    } = objects;
    let prepared = prepare(cx, ready, lookup, &mut request, &mut inputs).await;
    let allocates = |workload: &WorkloadRequest| {
        matches!(workload.annotations.addresses, AddressSource::Allocated)
    };
    if !prepared.as_ref().is_ok_and(allocates) {
        Box::pin(undo_prefetch(cx, &request, &mut inputs)).await;
    }
    let workload = prepared?;
    let (requested, lock) = match &workload.annotations.addresses {
        AddressSource::Fixed(addresses) => {
            let addresses = AddressRequest::Fixed(addresses.clone());
            return Ok(objects.with_requests(workload, addresses));
        }
        // Each requested address acquires the lock separately.
        AddressSource::Requested(requested) => (requested.clone(), None),
        AddressSource::Allocated | AddressSource::AnyOf(_) => {
            (Vec::new(), prefetch.map(Prefetch::into_lock))
        }
    };
    let calico = CalicoRequest {
        request,
        inputs,
        lock,
        requested,
    };
    Ok(objects.with_requests(workload, AddressRequest::Calico(Box::new(calico))))
}

/// Applies the objects read to the requests. On the embedded datastore, creates the node's Node if
/// it is missing. Before that, only the prefetch may have written.
async fn prepare(
    cx: &Context<impl World>,
    ready: Result<(), NotReady>,
    lookup: Result<PodLookup, PodLookupError>,
    request: &mut IpamRequest,
    inputs: &mut AllocationInputs,
) -> Result<WorkloadRequest, CniError> {
    ready?;
    own_node::ensure(&cx.store, &cx.workload.node, inputs)
        .await
        .map_err(|error| store_error("create the Node", &error))?;
    let (workload, _) = workload_request(cx, lookup?, Some(request)).await?;
    Ok(workload)
}

/// The pending reads of any ADD.
struct PendingAdd {
    endpoints: PendingEndpoints,
    profile: GetTicket<Profile>,
}

/// The objects of any ADD.
struct AddObjects {
    existing: Option<ExistingEndpoint>,
    has_profile: bool,
}

impl PendingAdd {
    fn add_to(batch: &mut CallBatch<'_, impl World>, cx: &Context<impl World>) -> Self {
        PendingAdd {
            endpoints: PendingEndpoints::add_to(batch, cx),
            profile: batch.datastore.get(&ObjectKey::global(&cx.call.conf.name)),
        }
    }

    fn resolve(
        &self,
        answers: &CallAnswers<'_, impl World>,
        cx: &Context<impl World>,
    ) -> Result<AddObjects, StoreError> {
        let endpoints = self.endpoints.resolve(answers, cx);
        Ok(AddObjects {
            existing: endpoints.readable.into_iter().next(),
            has_profile: answers.datastore.get(&self.profile)?.is_some(),
        })
    }
}

impl AddObjects {
    fn with_requests(self, request: WorkloadRequest, addresses: AddressRequest) -> AddReads {
        AddReads {
            existing: self.existing,
            has_profile: self.has_profile,
            request,
            addresses,
        }
    }
}

/// The pending reads of an ADD with `calico-ipam`.
struct PendingWithInputs {
    add: PendingAdd,
    inputs: PendingInputs,
    lookup: PendingPodLookup,
}

/// The objects of an ADD with `calico-ipam`.
struct WithInputs {
    objects: AddObjects,
    inputs: AllocationInputs,
    lookup: Result<PodLookup, PodLookupError>,
}

impl PendingWithInputs {
    fn add_to(
        batch: &mut CallBatch<'_, impl World>,
        cx: &Context<impl World>,
        query: &InputsQuery,
    ) -> Self {
        PendingWithInputs {
            add: PendingAdd::add_to(batch, cx),
            inputs: AllocationInputs::add_to(&mut batch.datastore, query),
            lookup: batch.add_pod_lookup(),
        }
    }

    fn resolve(
        &self,
        answers: &CallAnswers<'_, impl World>,
        cx: &Context<impl World>,
    ) -> Result<(ClusterState, WithInputs), StoreError> {
        let state = ClusterState::of(answers)?;
        let objects = WithInputs {
            objects: self.add.resolve(answers, cx)?,
            inputs: AllocationInputs::from_answers(&answers.datastore, &self.inputs)?,
            lookup: answers.pod_lookup(&self.lookup),
        };
        Ok((state, objects))
    }
}

async fn read_with_inputs(
    cx: &Context<impl World>,
    request: &IpamRequest,
) -> Result<(ClusterState, WithInputs), StoreError> {
    let mut batch = CallBatch::new(cx);
    let query = request.inputs_query().for_first_read(&cx.store);
    let pending = PendingWithInputs::add_to(&mut batch, cx, &query);
    pending.resolve(&batch.read().await?, cx)
}

/// Reads the objects, and runs the prefetch at the same time. Undoes the prefetch if the datastore
/// is not ready: a handle in the old API group counts no addresses of v3.
async fn read_beside_prefetch(
    cx: &Context<impl World>,
    request: &IpamRequest,
    prefetch: &Prefetch,
) -> Result<(ClusterState, WithInputs), StoreError> {
    let (store, clock) = (&cx.store, cx.clock.restarted());
    let mut batch = CallBatch::new(cx);
    let query = prefetch.extend(request.inputs_query().for_first_read(store));
    let pending = PendingWithInputs::add_to(&mut batch, cx, &query);
    let handle = request.handle();
    let (answers, reserved) = batch
        .read_by(async |batch| prefetch.read(store, &clock, &handle, batch).await)
        .await;
    match answers.and_then(|answers| pending.resolve(&answers, cx)) {
        Ok((state, mut objects)) => {
            reserved.merge_into(&mut objects.inputs);
            if state != ClusterState::Ready {
                Box::pin(request.stop_prefetch(Some(prefetch))).await;
                Box::pin(undo_prefetch(cx, request, &mut objects.inputs)).await;
            }
            Ok((state, objects))
        }
        Err(error) => {
            let handle = request.container_handle();
            Box::pin(reserved.discard(store, &clock, &handle)).await;
            Err(error)
        }
    }
}

async fn undo_prefetch(
    cx: &Context<impl World>,
    request: &IpamRequest,
    inputs: &mut AllocationInputs,
) {
    let (clock, handle) = (cx.clock.restarted(), request.container_handle());
    prefetch::discard(&cx.store, &clock, &handle, inputs).await;
}
