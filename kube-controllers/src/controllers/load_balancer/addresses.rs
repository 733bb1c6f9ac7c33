use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use datastore::Datastore;
use ipam_plugin::alloc::assign;
use ipam_plugin::alloc::inputs::AllocationInputs;
use ipam_plugin::alloc::one_address::assign_address;
use ipam_plugin::alloc::request::{AssignRequest, Namespace, go_time};
use ipam_plugin::error::IpamError;
use ipam_plugin::reads::find;
use ipam_plugin::release::{ReleaseInputs, release, release_addresses};
use libcalico::api::{AllowedUse, ObjectKey};
use libcalico::ipam::{Block, Handle, HandleId, LOAD_BALANCER_HOST, Labels};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{ReadBatch, Store, StoreError};
use os::clock::SystemClock;
use time::OffsetDateTime;

use super::decision::{HeldAddress, MissingAddress};
use crate::runtime::ReconcileError;

pub(super) struct ServiceAddresses {
    pub(super) store: Arc<Datastore>,
}

impl ServiceAddresses {
    pub(super) async fn held(&self, handle: &HandleId) -> Result<Vec<HeldAddress>, StoreError> {
        let Some(stored) = find::<Handle>(&*self.store, handle).await? else { return Ok(Vec::new()) };
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = stored.value.block.keys().map(|cidr| batch.get::<Block>(cidr)).collect();
        let answers = self.store.read(&batch).await?;
        let mut all = Vec::new();
        for ticket in &tickets {
            let Some(block) = answers.get(ticket)? else { continue };
            let held = block.value.allocated().filter_map(|held| HeldAddress::from_allocation(&held));
            all.extend(held.filter(|held| held.handle == *handle));
        }
        all.sort_by_key(|held| held.ip);
        Ok(all)
    }

    /// Releases the addresses of `handle`, except those in unreadable blocks. Having none is success.
    pub(super) async fn release_all(&self, handle: &HandleId) -> Result<(), ReconcileError> {
        let inputs = ReleaseInputs::read(&*self.store, std::slice::from_ref(handle)).await?;
        tracing::info!(%handle, reason = "the Service gets none", "releasing the addresses of a Service");
        let released = release(&*self.store, &SystemClock::start(), inputs).await.map_err(ipam_failure)?;
        tracing::info!(
            %handle, addresses = released.addresses, unreadable_blocks = released.unreadable.len(),
            "released the addresses of a Service; any addresses in unreadable blocks stay allocated"
        );
        Ok(())
    }

    /// Releases the allocations in `held`, as [`HeldAddress::release`] selects them.
    pub(super) async fn release(&self, held: &[HeldAddress]) -> Result<(), ReconcileError> {
        for HeldAddress { ip, handle, .. } in held {
            tracing::info!(address = %ip, %handle, reason = "the Service does not keep it",
                "releasing an address of a Service");
        }
        let requests: Vec<_> = held.iter().map(HeldAddress::release).collect();
        let released = release_addresses(&*self.store, &SystemClock::start(), &requests).await;
        released.map(drop).map_err(ipam_failure)
    }

    /// Assigns the missing addresses as far as possible.
    pub(super) async fn assign(
        &self,
        service: &ObjectKey,
        handle: &HandleId,
        missing: &[MissingAddress],
        labels: Labels,
    ) -> Result<(), ReconcileError> {
        let namespace = service.namespace.clone().unwrap_or_default();
        let mut request = AssignRequest::workload(handle.clone(), LOAD_BALANCER_HOST);
        request.purpose = AllowedUse::LoadBalancer;
        request.attributes = attributes(service);
        request.namespace = Some(Namespace { name: namespace, labels });
        // Each address is assigned by a call of its own, so that a missing pool of one family does not affect the other
        // family.
        let mut outcome = Ok(());
        for missing in missing {
            let assigned = match missing {
                MissingAddress::Address(ip) => self.assign_one(&request, *ip).await,
                MissingAddress::Any { version, pools } => {
                    let pools = pools.iter().map(Cidr::to_string).collect();
                    let of_family = match version {
                        IpVersion::V4 => AssignRequest { num4: 1, pools4: pools, ..request.clone() },
                        IpVersion::V6 => AssignRequest { num6: 1, pools6: pools, ..request.clone() },
                    };
                    self.assign_any(&of_family).await
                }
            };
            // A failure that may go away takes precedence over a permanent failure, and otherwise the first failure
            // counts.
            outcome = match (outcome, assigned) {
                (Err(ReconcileError::Permanent(_)), Err(failure @ ReconcileError::Retry(_))) => Err(failure),
                (outcome, assigned) => outcome.and(assigned),
            };
        }
        outcome
    }

    async fn assign_any(&self, request: &AssignRequest) -> Result<(), ReconcileError> {
        let inputs = AllocationInputs::read(&*self.store, &request.inputs_query()).await?;
        let assigned = assign(&*self.store, &SystemClock::start(), request, inputs).await;
        match assigned.map_err(ipam_failure)?.shortfalls.into_iter().next() {
            Some(shortfall) => Err(ReconcileError::Permanent(shortfall.to_string())),
            None => Ok(()),
        }
    }

    async fn assign_one(&self, request: &AssignRequest, ip: IpAddr) -> Result<(), ReconcileError> {
        let inputs = AllocationInputs::read(&*self.store, &request.inputs_query()).await?;
        let assigned = assign_address(&*self.store, &SystemClock::start(), request, ip, inputs).await;
        assigned.map(drop).map_err(|error| match error {
            IpamError::AlreadyAssigned { holder, .. } => {
                let holder = holder.map_or_else(|| "an unknown owner".into(), |holder| holder.whole);
                ReconcileError::Permanent(format!("{ip} is assigned already: {holder}"))
            }
            error => ipam_failure(error),
        })
    }
}

/// Returns the attributes that are stored with each address (KC-509).
fn attributes(service: &ObjectKey) -> BTreeMap<String, String> {
    let texts = [
        ("service", service.name.clone()),
        ("namespace", service.namespace.clone().unwrap_or_default()),
        ("type", "LoadBalancer".into()),
        ("timestamp", go_time(OffsetDateTime::now_utc())),
    ];
    texts.map(|(key, text)| (key.to_owned(), text)).into()
}

/// Converts an error of the datastore or a contention to a failure that is retried, and any other error to a permanent
/// one.
fn ipam_failure(error: IpamError) -> ReconcileError {
    match error {
        IpamError::Store(_) | IpamError::Contention => ReconcileError::Retry(error.to_string()),
        _ => ReconcileError::Permanent(error.to_string().trim_end().to_owned()),
    }
}
