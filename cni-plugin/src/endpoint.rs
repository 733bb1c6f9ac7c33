//! The WorkloadEndpoint: validated, written together with the profile it needs, and read back as a result.

mod listing;
mod unlist;

use libcalico::api::{Profile, WorkloadEndpoint};
use libcalico::conversion::Orchestrator;
use libcalico::kubernetes::is_detached;
use libcalico::store::{Entry, Kind, Store, StoreError, Write, WriteError};
use libcalico::validation;
use netconf::result::{Interface, IpConfig, IpNet};
use netconf::{Call, CniError, CniResult, Code, NetConf};
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::listing::Listing;
pub use self::unlist::EndpointsOf;
use crate::cni_error::store_error;

/// How often a write that broke off is looked after.
const TRIES: u32 = 3;

/// An endpoint that was there before.
pub type Existing = Entry<WorkloadEndpoint>;

/// What is to be written for one container, as one list of writes: one transaction where the store has them.
#[derive(Debug, Clone)]
pub struct EndpointWrite {
    endpoint: WorkloadEndpoint,
    existing: Option<Existing>,
    profile: Option<Profile>,
}

/// Why an endpoint was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteFailure {
    /// For the runtime.
    pub error: CniError,
    /// The write broke off on its way and the datastore cannot be asked what became of it: the endpoint may be there,
    /// or be there soon.
    pub perhaps_written: bool,
}

impl EndpointWrite {
    /// Creates the endpoint, or replaces the one that exists.
    pub fn of(existing: Option<Existing>, endpoint: WorkloadEndpoint) -> Self {
        EndpointWrite { endpoint, existing, profile: None }
    }

    /// Also creates `profile`, unless another process does so first.
    pub fn with_profile(mut self, profile: Option<Profile>) -> Self {
        self.profile = profile;
        self
    }

    /// Writes and returns the endpoint as stored. Nothing is written when nothing changed. A write that broke off is
    /// looked after: it may have been applied, and the addresses in it must not be given to another then.
    pub async fn apply<S: Store>(self, store: &S) -> Result<WorkloadEndpoint, WriteFailure> {
        let endpoint = self.write(store).await?;
        let (key, addresses) = (endpoint.key(), endpoint.spec.ip_networks.join(","));
        tracing::info!(addresses, endpoint = %key, interface = endpoint.spec.interface_name, "endpoint is stored");
        Ok(endpoint)
    }

    async fn write<S: Store>(mut self, store: &S) -> Result<WorkloadEndpoint, WriteFailure> {
        validate(&self.endpoint)?;
        if self.existing.is_none() {
            self.endpoint.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        }
        if let Some(profile) = &mut self.profile {
            profile.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        }
        let mut broke_off = 0;
        loop {
            let writes = self.writes().map_err(|error| store_error("encode the endpoint", &error))?;
            if writes.is_empty() {
                return Ok(self.endpoint);
            }
            let Err(WriteError { index, cause, .. }) = store.write(&writes).await else { return Ok(self.endpoint) };
            // Another process was first to create the profile: it is the same one.
            if self.profile.is_some() && profile_exists(&cause, &writes[index]) {
                self.profile = None;
                continue;
            }
            let error = store_error("write the WorkloadEndpoint", &cause);
            let unknown = cause.has_unknown_outcome();
            broke_off += u32::from(unknown);
            if broke_off == 0 {
                return Err(error.into());
            }
            match self.is_stored(store).await {
                Ok(true) => return Ok(self.endpoint),
                Ok(false) if unknown && broke_off < TRIES => {}
                // Refused by what others wrote, so that no earlier try can have been applied or will be.
                Ok(false) if cause.is_race() => return Err(error.into()),
                _ => return Err(WriteFailure { error, perhaps_written: true }),
            }
        }
    }

    /// Whether the datastore holds just what was to be written.
    async fn is_stored<S: Store>(&self, store: &S) -> Result<bool, StoreError> {
        match store.get::<WorkloadEndpoint>(&self.endpoint.key()).await {
            Ok(found) => Ok(found.value.encode().ok() == self.endpoint.encode().ok() && !is_detached(&found.revision)),
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
            // A pod that DEL has detached keeps its addresses in its status: they are to be annotated anew.
            Some(existing) if existing.value == self.endpoint && !is_detached(&existing.revision) => {}
            Some(existing) => writes.push(Write::update(&existing.key, &self.endpoint, &existing.revision)?),
        }
        Ok(writes)
    }
}

impl From<CniError> for WriteFailure {
    fn from(error: CniError) -> Self {
        WriteFailure { error, perhaps_written: false }
    }
}

/// Returns true if an endpoint is this container's. An endpoint that names no container is anybody's, unless it is
/// known to be of another pod of the same name than the pod with the uid `unnamed` (CNI-262), or
/// `unnamed` is `None`.
pub fn is_of_container(endpoint: &WorkloadEndpoint, container_id: &str, unnamed: Option<&str>) -> bool {
    let (holder, uid) = (&endpoint.spec.container_id, &endpoint.metadata.uid);
    match holder.is_empty() {
        true => unnamed.is_some_and(|wanted| wanted.is_empty() || wanted == uid),
        false => holder == container_id,
    }
}

fn profile_exists(cause: &StoreError, write: &Write) -> bool {
    matches!(cause, StoreError::AlreadyExists { .. }) && write.kind == Profile::KIND
}

/// Refuses what upstream's validator refuses (CNI-85), as an error of the call: every field comes from it.
pub fn validate(endpoint: &WorkloadEndpoint) -> Result<(), CniError> {
    validation::validate_workload_endpoint(endpoint).map_err(|error| {
        CniError::new(Code::INVALID_ENVIRONMENT, error.to_string())
            .with_details("the WorkloadEndpoint is named after node, CNI_CONTAINERID and CNI_IFNAME")
    })
}

/// A pod whose policy does not come from Kubernetes has the network's profile, like a plain container (CNI-115).
pub fn set_plain_profile(endpoint: &mut WorkloadEndpoint, conf: &NetConf, orchestrator: &Orchestrator) {
    if matches!(orchestrator, Orchestrator::Kubernetes(_)) && conf.policy.policy_type != "k8s" {
        endpoint.spec.profiles = vec![conf.name.clone()];
    }
}

/// The result of an ADD that found `endpoint` in place (CNI-149).
pub fn result_of(endpoint: &WorkloadEndpoint, call: &Call) -> Result<CniResult, CniError> {
    let mut result = CniResult::default();
    for network in &endpoint.spec.ip_networks {
        let address = network.parse::<IpNet>().map_err(|_| {
            CniError::internal(format!(
                "WorkloadEndpoint {} has an invalid address {network:?}",
                endpoint.metadata.name
            ))
        })?;
        result.ips.push(IpConfig { address, gateway: None, interface: Some(1) });
    }
    result.interfaces = vec![
        Interface { name: endpoint.spec.interface_name.clone(), ..Interface::default() },
        Interface {
            name: call.ifname.clone(),
            mac: endpoint.spec.mac.clone(),
            sandbox: call.netns.clone(),
            ..Interface::default()
        },
    ];
    Ok(result)
}

#[cfg(test)]
mod tests;
