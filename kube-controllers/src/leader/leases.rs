use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;

use super::config::LeaderElectionConfig;

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
    api: Api<Lease>,
    name: String,
}

impl ApiLeases {
    pub(super) fn new(client: kube::Client, config: &LeaderElectionConfig) -> Self {
        ApiLeases {
            api: Api::namespaced(client, &config.namespace),
            name: config.name.clone(),
        }
    }
}

impl Leases for ApiLeases {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        self.api.get_opt(&self.name).await.map_err(LeaseError::from)
    }

    async fn create(&self, mut lease: Lease) -> Result<Lease, LeaseError> {
        lease.metadata.name = Some(self.name.clone());
        match self.api.create(&PostParams::default(), &lease).await {
            // A 404 for a creation means that the namespace is missing.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                Err(LeaseError::Other(status.message))
            }
            created => created.map_err(LeaseError::from),
        }
    }

    async fn replace(&self, lease: Lease) -> Result<Lease, LeaseError> {
        self.api
            .replace(&self.name, &PostParams::default(), &lease)
            .await
            .map_err(LeaseError::from)
    }
}

impl From<kube::Error> for LeaseError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => LeaseError::Forbidden(status.message),
            // Not found: the Lease was deleted after it was read.
            kube::Error::Api(status) if status.code == 409 || status.code == 404 => {
                LeaseError::Conflict
            }
            kube::Error::Api(status) => LeaseError::Other(status.message),
            error => LeaseError::Other(error.to_string()),
        }
    }
}
