use datastore::kubernetes::{ObjectError, ObjectRequest};
use k8s_openapi::api::coordination::v1::Lease;
use libcalico::kubernetes::{Location, Resource};
use serde_json::Value;

use super::config::LeaderElectionConfig;

const LEASES: Resource = Resource {
    api_version: "coordination.k8s.io/v1",
    kind: "Lease",
    plural: "leases",
    namespaced: true,
};

/// Reads and writes of one Lease.
pub(super) trait Leases: Send + Sync + 'static {
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, LeaseError>> + Send;
    /// Creates the Lease. Returns the stored Lease.
    fn create(&self, lease: Lease) -> impl Future<Output = Result<Lease, LeaseError>> + Send;
    /// Replaces the Lease, if it is still at the version that `lease` names, and otherwise fails
    /// with [`LeaseError::Conflict`]. Returns the stored Lease.
    fn replace(&self, lease: Lease) -> impl Future<Output = Result<Lease, LeaseError>> + Send;
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    #[error("another writer changed the Lease")]
    Conflict,
    /// The API server refused the request with 403. The role may lack `get`, `create` or `update`.
    #[error("the role does not allow access to the Lease: {0}")]
    Forbidden(String),
    #[error("{0}")]
    Other(String),
}

pub(super) struct ApiLeases {
    client: kube::Client,
    at: Location,
}

impl ApiLeases {
    pub(super) fn new(client: kube::Client, config: &LeaderElectionConfig) -> Self {
        let at = Location::namespaced(LEASES, &config.namespace, &config.name);
        ApiLeases { client, at }
    }
}

impl Leases for ApiLeases {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        match ObjectRequest::get(&self.at).send(&self.client).await {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn create(&self, mut lease: Lease) -> Result<Lease, LeaseError> {
        lease.metadata.name = Some(self.at.name.clone());
        let request = ObjectRequest::create(&self.at, &json(&lease)?);
        match request.send(&self.client).await {
            // A 404 for a creation means that the namespace is missing.
            Err(error) if error.code() == Some(404) => Err(LeaseError::Other(text(&error))),
            created => created.map_err(LeaseError::from),
        }
    }

    async fn replace(&self, lease: Lease) -> Result<Lease, LeaseError> {
        let request = ObjectRequest::replace(&self.at, &json(&lease)?);
        request.send(&self.client).await.map_err(LeaseError::from)
    }
}

fn json(lease: &Lease) -> Result<Value, LeaseError> {
    serde_json::to_value(lease).map_err(|error| LeaseError::Other(error.to_string()))
}

/// Returns the message of a refusal, or else the text of the error.
fn text(error: &ObjectError) -> String {
    error
        .status()
        .map_or_else(|| error.to_string(), |status| status.message.clone())
}

impl From<ObjectError> for LeaseError {
    fn from(error: ObjectError) -> Self {
        match error.code() {
            Some(403) => LeaseError::Forbidden(text(&error)),
            // Not found: the Lease was deleted after it was read.
            Some(404 | 409) => LeaseError::Conflict,
            _ => LeaseError::Other(text(&error)),
        }
    }
}
