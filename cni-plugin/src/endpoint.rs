//! Validates and writes the WorkloadEndpoint of a container, together with the profile that the
//! endpoint needs.

mod listing;
mod unlist;

use libcalico::api::{Profile, WorkloadEndpoint};
use libcalico::kubernetes::is_detached;
use libcalico::store::{Entry, Kind, Store, StoreError, Write, WriteError};
use libcalico::validation;
use netconf::{CniError, Code};
use os::clock::Clock;
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::listing::Listing;
pub(crate) use self::listing::POD_INTERFACE;
pub use self::unlist::{ContainerEndpoints, OtherEndpoints};
use crate::cni_error::{on_one_line, store_error};

const MAX_ATTEMPTS: u32 = 3;

/// An endpoint that the datastore already contains.
pub type ExistingEndpoint = Entry<WorkloadEndpoint>;

/// The writes for the endpoint of one container.
#[derive(Debug, Clone)]
pub struct EndpointWrite {
    /// The endpoint to store.
    pub endpoint: WorkloadEndpoint,
    /// The endpoint to replace; `None` to create one.
    pub existing: Option<ExistingEndpoint>,
    /// The profile to create with the endpoint. It is no error if another process creates it first.
    pub profile: Option<Profile>,
}

/// A failure to write an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFailure {
    /// The error for the runtime.
    pub error: CniError,
    /// True if the outcome of a write is unknown and could not be determined.
    pub may_be_written: bool,
}

impl EndpointWrite {
    /// Writes the endpoint and returns it. Verifies a write with an unknown outcome: the write may
    /// have taken effect, and then the addresses in the endpoint must not be assigned to another
    /// container.
    pub async fn apply<S: Store>(
        self,
        store: &S,
        clock: &impl Clock,
    ) -> Result<WorkloadEndpoint, WriteFailure> {
        let endpoint = self.write(store, clock.now()).await?;
        let (key, addresses) = (endpoint.key(), endpoint.spec.ip_networks.join(","));
        tracing::info!(
            addresses, endpoint = %key, interface = endpoint.spec.interface_name,
            "endpoint is stored",
        );
        Ok(endpoint)
    }

    async fn write<S: Store>(
        mut self,
        store: &S,
        now: OffsetDateTime,
    ) -> Result<WorkloadEndpoint, WriteFailure> {
        validate(&self.endpoint)?;
        if self.existing.is_none() {
            self.endpoint.metadata.stamp(Uuid::new_v4(), now);
        }
        if let Some(profile) = &mut self.profile {
            profile.metadata.stamp(Uuid::new_v4(), now);
        }
        let mut unknown_outcomes = 0;
        loop {
            let writes = self
                .writes()
                .map_err(|error| store_error("encode the endpoint", &error))?;
            if writes.is_empty() {
                return Ok(self.endpoint);
            }
            let Err(WriteError { index, cause, .. }) = store.write(&writes).await else {
                return Ok(self.endpoint);
            };
            // Another process created the profile first.
            if self.profile.is_some()
                && matches!(cause, StoreError::AlreadyExists { .. })
                && writes[index].kind == Profile::KIND
            {
                self.profile = None;
                continue;
            }
            let error = store_error("write the WorkloadEndpoint", &cause);
            let is_unknown = cause.has_unknown_outcome();
            unknown_outcomes += u32::from(is_unknown);
            if unknown_outcomes == 0 {
                return Err(error.into());
            }
            match self.is_stored(store).await {
                Ok(true) => return Ok(self.endpoint),
                Ok(false) if is_unknown && unknown_outcomes < MAX_ATTEMPTS => {}
                // A change by another writer caused the failure, so no earlier attempt is in
                // effect, and none will be.
                Ok(false) if cause.is_race() => return Err(error.into()),
                _ => {
                    return Err(WriteFailure {
                        error,
                        may_be_written: true,
                    });
                }
            }
        }
    }

    async fn is_stored<S: Store>(&self, store: &S) -> Result<bool, StoreError> {
        match store.get::<WorkloadEndpoint>(&self.endpoint.key()).await {
            Ok(found) => Ok(found.value.encode().ok() == self.endpoint.encode().ok()
                && !is_detached(&found.revision)),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn writes(&self) -> Result<Vec<Write>, StoreError> {
        let mut writes = Vec::with_capacity(2);
        if let Some(profile) = &self.profile {
            writes.push(Write::create(&profile.key(), profile)?);
        }
        match &self.existing {
            None => writes.push(Write::create(&self.endpoint.key(), &self.endpoint)?),
            // After a DEL has emptied the address annotations of a pod, the pod's status still
            // contains the addresses, so the endpoint looks unchanged. The annotations then have to
            // be written again.
            Some(existing)
                if existing.value == self.endpoint && !is_detached(&existing.revision) => {}
            Some(existing) => writes.push(Write::update(
                &existing.key,
                &self.endpoint,
                &existing.revision,
            )?),
        }
        Ok(writes)
    }
}

impl From<CniError> for WriteFailure {
    fn from(error: CniError) -> Self {
        WriteFailure {
            error,
            may_be_written: false,
        }
    }
}

/// Returns true if an endpoint is this container's. An endpoint without a container ID counts as
/// this container's if `pod_uid` is the uid of its pod, or is empty because the uid is unknown
/// (CNI-262). If `pod_uid` is `None`, it never does.
pub fn is_of_container(
    endpoint: &WorkloadEndpoint,
    container_id: &str,
    pod_uid: Option<&str>,
) -> bool {
    let (owner, uid) = (&endpoint.spec.container_id, &endpoint.metadata.uid);
    let may_be_of_pod = || pod_uid.is_some_and(|pod_uid| pod_uid.is_empty() || pod_uid == uid);
    if owner.is_empty() {
        may_be_of_pod()
    } else {
        owner == container_id
    }
}

/// Rejects an endpoint that upstream's validator rejects (CNI-85).
pub fn validate(endpoint: &WorkloadEndpoint) -> Result<(), CniError> {
    validation::validate_workload_endpoint(endpoint).map_err(|error| {
        CniError::new(Code::INVALID_ENVIRONMENT, on_one_line(&error)).with_details(
            "the WorkloadEndpoint is named after node, CNI_CONTAINERID and CNI_IFNAME",
        )
    })
}

#[cfg(test)]
mod tests;
