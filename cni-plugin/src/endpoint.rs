//! The WorkloadEndpoint: validated, written together with the profile it needs, and read back as a result.

use libcalico::api::{Profile, WorkloadEndpoint};
use libcalico::conversion::Orchestrator;
use libcalico::store::{Entry, Store, StoreError, Write};
use libcalico::validation;
use netconf::result::{Interface, IpConfig, IpNet};
use netconf::{Call, CniError, CniResult, Code};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::session::{Session, store_error};

/// An endpoint that was there before.
pub type Existing = Entry<WorkloadEndpoint>;

/// What is to be written for one container, as one list of writes: one transaction where the store has them.
#[derive(Debug, Clone)]
pub struct EndpointWrite {
    endpoint: WorkloadEndpoint,
    existing: Option<Existing>,
    profile: Option<Profile>,
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

    /// Writes and returns the endpoint as stored. Nothing is written when nothing changed.
    pub async fn apply(mut self, session: &Session) -> Result<WorkloadEndpoint, CniError> {
        validate(&self.endpoint)?;
        if self.existing.is_none() {
            self.endpoint.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        }
        if let Some(profile) = &mut self.profile {
            profile.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        }
        loop {
            let writes = self.writes().map_err(|error| store_error("encode the endpoint", &error))?;
            if writes.is_empty() {
                return Ok(self.endpoint);
            }
            match session.store.write(&writes).await {
                Ok(_) => return Ok(self.endpoint),
                // Another process was first to create the profile: it is the same one.
                Err(error) if self.profile.is_some() && profile_exists(&error.cause, &writes[error.index]) => {
                    self.profile = None;
                }
                Err(error) => return Err(store_error("write the WorkloadEndpoint", &error.cause)),
            }
        }
    }

    fn writes(&self) -> Result<Vec<Write>, StoreError> {
        let mut writes = Vec::with_capacity(2);
        if let Some(profile) = &self.profile {
            writes.push(Write::create(&profile.key(), profile)?);
        }
        match &self.existing {
            None => writes.push(Write::create(&self.endpoint.key(), &self.endpoint)?),
            Some(existing) if existing.value == self.endpoint => {}
            Some(existing) => writes.push(Write::update(&existing.key, &self.endpoint, &existing.revision)?),
        }
        Ok(writes)
    }
}

fn profile_exists(cause: &StoreError, write: &Write) -> bool {
    matches!(cause, StoreError::AlreadyExists { .. }) && write.kind == <Profile as libcalico::store::Kind>::KIND
}

/// Refuses what upstream's validator refuses (CNI-85), as an error of the call: every field comes from it.
pub fn validate(endpoint: &WorkloadEndpoint) -> Result<(), CniError> {
    validation::validate_workload_endpoint(endpoint).map_err(|error| {
        CniError::new(Code::INVALID_ENVIRONMENT, error.to_string())
            .with_details("the WorkloadEndpoint is named after node, CNI_CONTAINERID and CNI_IFNAME")
    })
}

/// A pod whose policy does not come from Kubernetes has the network's profile, like a plain container (CNI-115).
pub fn set_plain_profile(endpoint: &mut WorkloadEndpoint, session: &Session) {
    let conf = &session.call.conf;
    if matches!(session.facts.orchestrator, Orchestrator::Kubernetes(_)) && conf.policy.policy_type != "k8s" {
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
