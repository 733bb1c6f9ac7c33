use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use allocation::alloc::assign;
use allocation::alloc::inputs::AllocationInputs;
use allocation::alloc::one_address::assign_address;
use allocation::alloc::request::{AssignRequest, Namespace, go_time};
use allocation::error::IpamError;
use allocation::reads::find;
use allocation::release::{ReleaseInputs, release, release_addresses};
use datastore::Datastore;
use libcalico::api::{AllowedUse, ObjectKey};
use libcalico::ipam::{
    Block, Handle, HandleId, IpamConfig, IpamConfigKey, LOAD_BALANCER_HOST, Labels,
};
use libcalico::net::{Cidr, IpVersion};
use libcalico::store::{ReadBatch, Store, StoreError};
use os::clock::SystemClock;
use time::OffsetDateTime;

use super::decision::{HeldAddress, MissingAddress};
use super::wait_reason::Wait;
use super::waiting::cooldown_ends;
use crate::runtime::ReconcileError;

pub(super) struct ServiceAddresses {
    pub(super) store: Arc<Datastore>,
}

/// The outcome of an assignment in which an address is missing.
#[derive(Debug)]
pub(super) struct AssignFailure {
    /// The failure that is not a reason to wait, such as an unreachable datastore.
    pub(super) error: Option<ReconcileError>,
    /// The reason why the Service waits.
    pub(super) wait: Option<Wait>,
}

impl AssignFailure {
    fn waits(wait: Wait) -> Self {
        AssignFailure {
            error: None,
            wait: Some(wait),
        }
    }

    fn of(error: IpamError, missing: &MissingAddress) -> Self {
        match Wait::of_error(&error, missing) {
            Some(wait) => AssignFailure::waits(wait),
            None => ipam_failure(error).into(),
        }
    }

    /// Combines the failures of two families. An error that may go away takes precedence over a
    /// permanent one, and otherwise the first one counts.
    fn and(self, other: AssignFailure) -> Self {
        let error = match (self.error, other.error) {
            (Some(ReconcileError::Permanent(_)), Some(error @ ReconcileError::Retry(_))) => {
                Some(error)
            }
            (first, second) => first.or(second),
        };
        let wait = match (self.wait, other.wait) {
            (Some(first), Some(second)) => Some(first.and(second)),
            (first, second) => first.or(second),
        };
        AssignFailure { error, wait }
    }
}

impl From<ReconcileError> for AssignFailure {
    fn from(error: ReconcileError) -> Self {
        AssignFailure {
            error: Some(error),
            wait: None,
        }
    }
}

impl From<StoreError> for AssignFailure {
    fn from(error: StoreError) -> Self {
        ReconcileError::from(error).into()
    }
}

impl ServiceAddresses {
    pub(super) async fn held(&self, handle: &HandleId) -> Result<Vec<HeldAddress>, StoreError> {
        let Some(stored) = find::<Handle>(&*self.store, handle).await? else {
            return Ok(Vec::new());
        };
        let mut batch = ReadBatch::new();
        let tickets: Vec<_> = stored
            .value
            .block
            .keys()
            .map(|cidr| batch.get::<Block>(cidr))
            .collect();
        let answers = self.store.read(&batch).await?;
        let mut all = Vec::new();
        for ticket in &tickets {
            let Some(block) = answers.get(ticket)? else {
                continue;
            };
            let held = block
                .value
                .allocated()
                .filter_map(|held| HeldAddress::from_allocation(&held));
            all.extend(held.filter(|held| held.handle == *handle));
        }
        all.sort_by_key(|held| held.ip);
        Ok(all)
    }

    /// Releases the addresses of `handle`, except those in unreadable blocks. Having none is
    /// success.
    pub(super) async fn release_all(&self, handle: &HandleId) -> Result<(), ReconcileError> {
        let inputs = ReleaseInputs::read(&*self.store, std::slice::from_ref(handle)).await?;
        tracing::info!(
            %handle, reason = "the Service gets none", "releasing the addresses of a Service",
        );
        let released = release(&*self.store, &SystemClock::start(), inputs)
            .await
            .map_err(ipam_failure)?;
        tracing::info!(
            %handle, addresses = released.addresses, unreadable_blocks = released.unreadable.len(),
            "released the addresses of a Service, except in unreadable blocks"
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

    /// Returns the addresses in `cooling` whose cooldown ends after `begin`, with that end, the
    /// earliest first. Each address in `cooling` is with the time of its release.
    pub(super) async fn cooldown_ends(
        &self,
        cooling: &[(IpAddr, OffsetDateTime)],
        begin: OffsetDateTime,
    ) -> Result<Vec<(IpAddr, OffsetDateTime)>, StoreError> {
        if cooling.is_empty() {
            return Ok(Vec::new());
        }
        let config = find::<IpamConfig>(&*self.store, &IpamConfigKey).await?;
        let cooldown_seconds = config.map_or(0, |entry| entry.value.ip_cooldown_seconds);
        Ok(cooldown_ends(cooling, cooldown_seconds, begin))
    }

    /// Assigns the missing addresses as far as possible.
    pub(super) async fn assign(
        &self,
        service: &ObjectKey,
        handle: &HandleId,
        missing: &[MissingAddress],
        labels: Labels,
    ) -> Result<(), AssignFailure> {
        let namespace = service.namespace.clone().unwrap_or_default();
        let mut request = AssignRequest::workload(handle.clone(), LOAD_BALANCER_HOST);
        request.purpose = AllowedUse::LoadBalancer;
        request.attributes = attributes(service);
        request.namespace = Some(Namespace {
            name: namespace,
            labels,
        });
        // Each address is assigned by a call of its own, so that a missing pool of one family does
        // not affect the other family.
        let mut outcome: Result<(), AssignFailure> = Ok(());
        for missing in missing {
            outcome = match (outcome, self.assign_missing(&request, missing).await) {
                (Err(first), Err(second)) => Err(first.and(second)),
                (first, second) => first.and(second),
            };
        }
        outcome
    }

    async fn assign_missing(
        &self,
        request: &AssignRequest,
        missing: &MissingAddress,
    ) -> Result<(), AssignFailure> {
        let inputs = AllocationInputs::read(&*self.store, &request.inputs_query()).await?;
        let (store, clock) = (&*self.store, SystemClock::start());
        let (version, pools) = match missing {
            MissingAddress::Address(ip) => {
                let assigned = assign_address(store, &clock, request, *ip, inputs).await;
                return assigned
                    .map(drop)
                    .map_err(|error| AssignFailure::of(error, missing));
            }
            MissingAddress::Any { version, pools } => {
                (version, pools.iter().map(Cidr::to_string).collect())
            }
        };
        let of_family = match version {
            IpVersion::V4 => AssignRequest {
                num4: 1,
                num6: 0,
                pools4: pools,
                ..request.clone()
            },
            IpVersion::V6 => AssignRequest {
                num4: 0,
                num6: 1,
                pools6: pools,
                ..request.clone()
            },
        };
        let assigned = assign(store, &clock, &of_family, inputs).await;
        let assigned = assigned.map_err(|error| AssignFailure::of(error, missing))?;
        match assigned.shortfalls.first() {
            Some(shortfall) => Err(AssignFailure::waits(Wait::full(shortfall))),
            None => Ok(()),
        }
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

/// Converts an error of the datastore or a contention to a failure that is retried, and any other
/// error to a permanent one.
fn ipam_failure(error: IpamError) -> ReconcileError {
    match error {
        IpamError::Store(_) | IpamError::Contention => ReconcileError::Retry(error.to_string()),
        _ => ReconcileError::Permanent(error.to_string().trim_end().to_owned()),
    }
}
