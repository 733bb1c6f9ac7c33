//! Releases addresses for DEL, deferred DELs and GC.

use std::collections::BTreeSet;

use datastore::Datastore;
use ipam_plugin::cni::{self, IpamRequest, LeakedAddresses};
use ipam_plugin::error::{IpamError, cni_error};
use ipam_plugin::exhausted::ReleaseGuard;
use ipam_plugin::journal::PendingDel;
use ipam_plugin::lock::ReleaseLock;
use ipam_plugin::release::{Listings, ReleaseInputs};
use libcalico::ipam::Block;
use libcalico::store::{ReadBatch, Store};
use libcalico::workload::{ContainerIdentity, Orchestrator, WorkloadIdentity};
use netconf::{Call, CniError};
use os::clock::SystemClock;

use super::exec;
use crate::cni_error::store_error;
use crate::endpoint::ContainerEndpoints;

/// A failure to release addresses.
#[derive(Debug)]
pub enum ReleaseError {
    /// A failure that may end later, for example because the datastore is unreachable. The journal can record the
    /// remaining work.
    Deferrable(CniError),
    /// Any other failure, for example of another IPAM plugin.
    Permanent(CniError),
}

impl From<IpamError> for ReleaseError {
    fn from(error: IpamError) -> Self {
        let is_postponable = match &error {
            IpamError::Store(cause) => cause.is_postponable(),
            IpamError::StillListed { .. } => true,
            _ => false,
        };
        ReleaseError::new(is_postponable, cni_error(&error))
    }
}

impl ReleaseError {
    /// Creates the failure for an error of the datastore or of the Kubernetes API.
    pub fn new(is_postponable: bool, error: impl Into<CniError>) -> Self {
        if is_postponable { ReleaseError::Deferrable(error.into()) } else { ReleaseError::Permanent(error.into()) }
    }
}

/// Releases the addresses of the container, except those of a VMI, after removing them from its endpoints. `calico`
/// contains the request to `calico-ipam` and the allocations of its handles; with `None`, only another IPAM plugin
/// releases addresses.
pub async fn release<L: Listings>(
    store: &Datastore,
    call: &Call,
    calico: Option<(IpamRequest, ReleaseInputs)>,
    endpoints: &L,
) -> Result<(), ReleaseError> {
    let Some((request, inputs)) = calico else {
        // The journal does not record addresses of another plugin, so the runtime has to repeat the DEL.
        endpoints.unlist(&[]).await.map_err(|error| ReleaseError::Permanent(cni_error(&error)))?;
        return exec::release_by_plugin(call).map_err(ReleaseError::Permanent);
    };
    Ok(cni::release_call(store, &SystemClock::start(), &request, inputs, endpoints).await?)
}

/// Releases the addresses of a deferred DEL, after removing them from the container's endpoints.
pub async fn release_deferred(store: &impl Store, del: &PendingDel, endpoints: &impl Listings) -> Result<(), CniError> {
    // The addresses belong to another IPAM plugin.
    if del.handles.is_empty() {
        return Ok(());
    }
    let old_handle = del.old_handle();
    let handles = [del.own_handle()].into_iter().chain(old_handle.iter().map(|handle| handle.id().clone()));
    let handles: Vec<_> = handles.collect();
    let inputs = ReleaseInputs::read(store, &handles).await.map_err(|error| store_error("read the handles", &error))?;
    if inputs.is_empty() {
        return Ok(());
    }
    let _releasing = ReleaseGuard::here();
    let (clock, mut lock) = (SystemClock::start(), ReleaseLock::default());
    let (old_handle, node) = (old_handle.as_ref(), del.node.as_str());
    let released = cni::release_handles(store, &clock, inputs, old_handle, node, endpoints, &mut lock).await;
    released.map(drop).map_err(|error| cni_error(&error))
}

/// Returns the addresses on this node of containers that are not in `valid`; none for another IPAM plugin.
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
    let unreadable = answers.each(&all).filter(|(_, block)| block.is_err()).map(|(cidr, _)| cidr).collect();
    let leaked = cni::leaked(&answers.list(&all), &call.conf.name, node, valid).beside_unreadable(unreadable);
    Ok(if is_calico { leaked } else { leaked.without_leaks() })
}

/// Releases leaked addresses after removing them from endpoints, except those of the containers in `valid` and `kept`.
/// Returns one text per failure.
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
            let (plugin, containers) = (&call.conf.ipam.ipam_type, Vec::from_iter(kept.iter().cloned()).join(", "));
            return vec![format!(
                "GC of IPAM plugin {plugin} is skipped, because these containers keep their addresses: {containers}"
            )];
        }
        return exec::gc(call).err().map(|error| error.to_string()).into_iter().collect();
    }
    let endpoints_of_container = |container: &str| {
        // The empty interface name means all interfaces: all leaked addresses of the container are released.
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
    let collected = leaked.release(store, &SystemClock::start(), &excluded, endpoints_of_container).await;
    for handle in &collected.released {
        tracing::info!(
            %handle, "released the addresses of a container that cni.dev/valid-attachments does not name"
        );
    }
    collected.failed.iter().map(|(handle, error)| format!("cannot release handle {handle}: {error}")).collect()
}
