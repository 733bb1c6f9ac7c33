//! The Lease in the API server.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::PostParams;

use super::Config;

/// Reads and writes one Lease.
pub(super) trait Leases: Send + Sync + 'static {
    /// The Lease, if there is one.
    fn get(&self) -> impl Future<Output = Result<Option<Lease>, LeaseError>> + Send;
    /// Makes it. Returns it as it is now.
    fn create(&self, lease: Lease) -> impl Future<Output = Result<Lease, LeaseError>> + Send;
    /// Replaces the version that `lease` names. Returns it as it is now.
    fn replace(&self, lease: Lease) -> impl Future<Output = Result<Lease, LeaseError>> + Send;
}

/// Why a Lease was not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeaseError {
    /// Another was faster: read it again.
    #[error("the lease changed")]
    Race,
    /// The role lacks `get`, `create` or `update`.
    #[error("the role does not allow it: {0}")]
    Forbidden(String),
    /// Perhaps later.
    #[error("{0}")]
    Other(String),
}

/// One Lease of an API server.
pub(super) struct ApiLeases {
    api: Api<Lease>,
    name: String,
}

impl ApiLeases {
    pub(super) fn new(client: kube::Client, config: &Config) -> Self {
        ApiLeases { api: Api::namespaced(client, &config.namespace), name: config.name.clone() }
    }
}

impl Leases for ApiLeases {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        self.api.get_opt(&self.name).await.map_err(LeaseError::from)
    }

    async fn create(&self, mut lease: Lease) -> Result<Lease, LeaseError> {
        lease.metadata.name = Some(self.name.clone());
        match self.api.create(&PostParams::default(), &lease).await {
            // What is not there is the namespace.
            Err(kube::Error::Api(status)) if status.code == 404 => Err(LeaseError::Other(status.message)),
            created => created.map_err(LeaseError::from),
        }
    }

    async fn replace(&self, lease: Lease) -> Result<Lease, LeaseError> {
        self.api.replace(&self.name, &PostParams::default(), &lease).await.map_err(LeaseError::from)
    }
}

impl From<kube::Error> for LeaseError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 403 => LeaseError::Forbidden(status.message),
            // Gone since it was read.
            kube::Error::Api(status) if status.code == 409 || status.code == 404 => LeaseError::Race,
            kube::Error::Api(status) => LeaseError::Other(status.message),
            error => LeaseError::Other(error.to_string()),
        }
    }
}
