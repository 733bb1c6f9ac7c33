//! Releases addresses for DEL, deferred DELs and GC.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use allocation::error::{IpamError, cni_error};
use allocation::exhausted::ReleaseGuard;
use allocation::journal::PendingDel;
use allocation::release::{Listings, ReleaseInputs};
use datastore::Datastore;
use ipam_plugin::cni::{self, IpamRequest, LeakedAddresses};
use libcalico::ipam::Block;
use libcalico::store::{ReadBatch, Store, StoreError};
use libcalico::workload::{ContainerIdentity, Orchestrator, WorkloadIdentity};
use netconf::{Call, CniError};
use os::clock::SystemClock;
use os::lock::ReleaseLock;
use time::OffsetDateTime;

use super::exec;
use crate::endpoint::ContainerEndpoints;

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

/// Releases the addresses of the container, except those of a VMI, after removing them from its
/// endpoints. `calico` contains the request to `calico-ipam` and the allocations of its handles;
/// with `None`, only another IPAM plugin releases addresses.
pub async fn release<L: Listings>(
    store: &Datastore,
    call: &Call,
    calico: Option<(IpamRequest, ReleaseInputs)>,
    endpoints: &L,
) -> Result<(), ReleaseError> {
    let Some((request, inputs)) = calico else {
        match endpoints.unlist(&[]).await {
            // The endpoint is deleted with its pod. A tenant can cause this failure, and must not
            // keep the addresses.
            Err(error) if matches!(store, Datastore::Kubernetes(_)) && error.is_of_one_object() => {
            }
            unlisted => unlisted?,
        }
        return exec::release_by_plugin(call).map_err(ReleaseError::Permanent);
    };
    Ok(cni::release_call(store, &SystemClock::start(), &request, inputs, endpoints).await?)
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
pub async fn release_deferred(
    store: &impl Store,
    del: &PendingDel,
    inputs: ReleaseInputs,
    endpoints: &impl Listings,
) -> Result<bool, IpamError> {
    if inputs.is_empty() {
        return Ok(true);
    }
    let old_handle = del.old_handle();
    let _releasing = ReleaseGuard::here();
    let (clock, mut lock) = (SystemClock::start(), ReleaseLock::default());
    let (old_handle, node) = (old_handle.as_ref(), del.node.as_str());
    let released = cni::release_handles(
        store, &clock, inputs, old_handle, node, endpoints, &mut lock,
    )
    .await;
    released.map(|released| !released.is_newer)
}

/// Returns the addresses on this node of containers that are not in `valid`; none for another IPAM
/// plugin.
pub async fn leaked(
    store: &Datastore,
    call: &Call,
    node: &str,
    valid: &BTreeSet<String>,
) -> Result<LeakedAddresses, IpamError> {
    let is_calico = call.conf.ipam.is_calico();
    // On an API server, GC examines only pods that own leaked addresses.
    if !is_calico && matches!(store, Datastore::Kubernetes(_)) {
        return Ok(LeakedAddresses::default());
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
    store: &Datastore,
    call: &Call,
    node: &str,
    leaked: LeakedAddresses,
    valid: BTreeSet<String>,
    kept: &BTreeSet<String>,
) -> Vec<String> {
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
    let _releasing = (leaked.containers() > 0).then(ReleaseGuard::here);
    let mut excluded = valid;
    excluded.extend(kept.iter().cloned());
    let collected = leaked
        .release(
            store,
            &SystemClock::start(),
            &excluded,
            endpoints_of_container,
        )
        .await;
    for handle in &collected.released {
        tracing::info!(
            %handle,
            "released the addresses of a container that cni.dev/valid-attachments does not name"
        );
    }
    collected
        .failed
        .iter()
        .map(|(handle, error)| format!("cannot release handle {handle}: {error}"))
        .collect()
}
