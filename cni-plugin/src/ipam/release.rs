//! Releases addresses for DEL, deferred DELs and GC.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use allocation::error::{IpamError, cni_error};
use allocation::exhausted::ReleaseGuard;
use allocation::journal::PendingDel;
use allocation::release::{ReleaseInputs, ReleasedHandles};
use futures::future::join;
use ipam_plugin::cni::{self, IpamRequest, LeakedAddresses, ReleaseStep};
use libcalico::ipam::Block;
use libcalico::store::{EndpointForm, ReadBatch, Store, StoreError};
use libcalico::workload::{ContainerIdentity, Orchestrator, WorkloadIdentity};
use netconf::CniError;
use os::clock::Clock;
use os::node_files::NodeFiles;
use time::OffsetDateTime;

use super::{IpamCall, exec};
use crate::endpoint::{ContainerEndpoints, OtherEndpoints};
use crate::world::World;

/// A failure to release addresses.
#[derive(Debug)]
pub enum ReleaseError {
    /// A failed request to the datastore, whatever the reason. The journal can record the remaining
    /// work.
    Deferrable(CniError),
    /// Any other failure, for example of another IPAM plugin.
    Permanent(CniError),
}

impl From<IpamError> for ReleaseError {
    fn from(error: IpamError) -> Self {
        let is_postponable = match &error {
            IpamError::Store(cause) => cause.is_postponable(),
            IpamError::Vmi(error) => error.is_postponable(),
            IpamError::StillListed { .. } | IpamError::Contention => true,
            _ => false,
        };
        ReleaseError::new(is_postponable, cni_error(&error))
    }
}

impl ReleaseError {
    /// Creates the failure for an error of the datastore or of the Kubernetes API.
    pub fn new(is_postponable: bool, error: impl Into<CniError>) -> Self {
        if is_postponable {
            ReleaseError::Deferrable(error.into())
        } else {
            ReleaseError::Permanent(error.into())
        }
    }
}

/// Removes the addresses of the container from its endpoints, and then releases them, except those
/// of a VMI. `calico` contains the request to `calico-ipam` and the allocations of its handles;
/// with `None`, only another IPAM plugin releases addresses.
pub async fn release<W: World>(
    ipam: IpamCall<'_, W>,
    calico: Option<(IpamRequest, ReleaseInputs)>,
    endpoints: ContainerEndpoints<'_, W::Store>,
) -> Result<(), ReleaseError> {
    let store = ipam.store;
    let Some((request, inputs)) = calico else {
        accept_kept_endpoint(store, endpoints.delete_own().await)?;
        return exec::release_by_plugin(ipam.call).map_err(ReleaseError::Permanent);
    };
    let clock = ipam.clock.restarted();
    let begun = cni::release_call(store, &clock, &request, inputs);
    // The release reads its blocks while the own endpoint is deleted.
    let (others, begun) = join(endpoints.delete_own(), begun).await;
    complete(begun?, &others).await?;
    accept_kept_endpoint(store, others)
}

/// Completes a release, in whose steps no address is released while an endpoint lists it.
/// `endpoints` is the outcome of the deletion of the own endpoint, which counts if addresses are
/// leaving.
pub async fn complete<S: Store, C: Clock>(
    mut step: ReleaseStep<'_, S, C>,
    endpoints: &Result<OtherEndpoints<'_, S>, IpamError>,
) -> Result<ReleasedHandles, IpamError> {
    loop {
        let leaving = match step {
            ReleaseStep::Done(released) => return Ok(released),
            ReleaseStep::Unlist(leaving) => leaving,
        };
        let others = endpoints.as_ref().map_err(Clone::clone)?;
        let unlisted = others.unlist(leaving.addresses()).await?;
        step = leaving.release(unlisted).await?;
    }
}

/// Returns the error of the deletion of the own endpoint of a container without addresses. Accepts
/// an endpoint that is part of the pod, because it is deleted with the pod. A tenant can cause this
/// failure for any number of containers of a pod, and must not keep their addresses or fill the
/// journal with their deferred DELs.
fn accept_kept_endpoint<S: Store>(
    store: &S,
    deleted: Result<OtherEndpoints<'_, S>, IpamError>,
) -> Result<(), ReleaseError> {
    let Err(error) = deleted else { return Ok(()) };
    match store.endpoint_form() {
        EndpointForm::PodAnnotations if error.is_of_one_object() => {
            tracing::warn!(
                %error, "cannot remove the endpoint; without addresses, the DEL is complete",
            );
            Ok(())
        }
        EndpointForm::PodAnnotations | EndpointForm::Object => Err(error.into()),
    }
}

/// The handles of a deferred DEL.
pub enum DeferredHandles {
    /// The handles to release.
    Own(ReleaseInputs),
    /// By the time of their allocation, these addresses belong to an ADD of the container, with any
    /// interface name, since the DEL. Nothing of the container is to be removed then: the DEL of
    /// that interface releases all addresses.
    Newer(BTreeMap<IpAddr, OffsetDateTime>),
}

/// Reads the handles of a deferred DEL.
pub async fn read_deferred(
    store: &impl Store,
    del: &PendingDel,
) -> Result<DeferredHandles, StoreError> {
    let old_handle = del.old_handle();
    let handles = [del.own_handle()]
        .into_iter()
        .chain(old_handle.iter().map(|handle| handle.id().clone()));
    // Without handles, the addresses belong to another IPAM plugin.
    let handles: Vec<_> = if del.handles.is_empty() {
        Vec::new()
    } else {
        handles.collect()
    };
    if handles.is_empty() {
        return Ok(DeferredHandles::Own(ReleaseInputs::default()));
    }
    let inputs = ReleaseInputs::read(store, &handles)
        .await?
        .allocated_before(del.limit());
    // Other workloads may have a handle of the same text as that from before v3.
    let mut own = inputs.clone();
    _ = old_handle.and_then(|old| own.remove_handle(old.id()));
    let newer = own.newer(store).await?;
    Ok(if newer.is_empty() {
        DeferredHandles::Own(inputs)
    } else {
        DeferredHandles::Newer(newer)
    })
}

/// Releases the addresses of a deferred DEL, after removing them from the container's endpoints.
/// Returns false, and keeps the addresses of the container's handle, if one was allocated since
/// [`read_deferred`].
pub async fn release_deferred<S: Store>(
    store: &S,
    clock: &impl Clock,
    files: &NodeFiles,
    del: &PendingDel,
    inputs: ReleaseInputs,
    endpoints: &Result<OtherEndpoints<'_, S>, IpamError>,
) -> Result<bool, IpamError> {
    if inputs.is_empty() {
        return Ok(true);
    }
    let _releasing = ReleaseGuard::of_node(files);
    let begun = cni::release_handles(store, clock, inputs, del.old_handle(), &del.node).await?;
    let released = complete(begun, endpoints).await?;
    Ok(!released.is_newer)
}

/// Returns the addresses on this node of containers that are not in `valid`; none for another IPAM
/// plugin.
pub async fn leaked(
    ipam: IpamCall<'_, impl World>,
    valid: &BTreeSet<String>,
) -> Result<LeakedAddresses, IpamError> {
    let (store, call, node) = (ipam.store, ipam.call, ipam.node);
    let is_calico = call.conf.ipam.is_calico();
    match store.endpoint_form() {
        // GC examines only pods that own leaked addresses.
        EndpointForm::PodAnnotations if !is_calico => return Ok(LeakedAddresses::default()),
        EndpointForm::PodAnnotations | EndpointForm::Object => {}
    }
    let mut batch = ReadBatch::new();
    let all = batch.list::<Block>(&None);
    let answers = store.read(&batch).await?;
    let unreadable = answers
        .each(&all)
        .filter(|(_, block)| block.is_err())
        .map(|(cidr, _)| cidr)
        .collect();
    let leaked = cni::leaked(&answers.list(&all), &call.conf.name, node, valid)
        .beside_unreadable(unreadable);
    Ok(if is_calico {
        leaked
    } else {
        leaked.without_leaks()
    })
}

/// Releases leaked addresses after removing them from endpoints, except those of the containers in
/// `valid` and `kept`. Returns one text per failure.
pub async fn release_leaked(
    ipam: IpamCall<'_, impl World>,
    leaked: LeakedAddresses,
    valid: BTreeSet<String>,
    kept: &BTreeSet<String>,
) -> Vec<String> {
    let (store, call, node) = (ipam.store, ipam.call, ipam.node);
    if !call.conf.ipam.is_calico() {
        // GC of another plugin accepts no containers to keep beside the valid attachments.
        if !kept.is_empty() {
            let (plugin, containers) = (
                &call.conf.ipam.ipam_type,
                Vec::from_iter(kept.iter().cloned()).join(", "),
            );
            return vec![format!(
                "GC of IPAM plugin {plugin} is skipped, because these containers keep their \
                 addresses: {containers}"
            )];
        }
        return exec::gc(call)
            .err()
            .map(|error| error.to_string())
            .into_iter()
            .collect();
    }
    let endpoints_of_container = |container: &str| {
        // The empty interface name means all interfaces: all leaked addresses of the container are
        // released.
        let workload = WorkloadIdentity {
            node: node.to_owned(),
            container_id: container.to_owned(),
            endpoint: String::new(),
            orchestrator: Orchestrator::Cni(ContainerIdentity::new(&call.conf.name)),
        };
        ContainerEndpoints::new(store, workload)
    };
    let _releasing = (leaked.containers() > 0).then(|| ReleaseGuard::of_node(ipam.files));
    let mut excluded = valid;
    excluded.extend(kept.iter().cloned());
    let clock = ipam.clock.restarted();
    let mut failures = Vec::new();
    for (handle, leak) in leaked.by_handle(&excluded) {
        let endpoints = endpoints_of_container(leak.container());
        let released = async {
            let begun = leak.release(store, &clock, node, &handle).await?;
            complete(begun, &endpoints.delete_own().await).await
        };
        match released.await {
            Ok(_) => tracing::info!(
                %handle,
                "released the addresses of a container that cni.dev/valid-attachments does not name"
            ),
            Err(error) => failures.push(format!("cannot release handle {handle}: {error}")),
        }
    }
    failures
}
