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
    /// Whether the server says that it knows all roles and bindings. One that just started refuses what it will allow.
    fn knows_roles(&self) -> impl Future<Output = bool> + Send;
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
    client: kube::Client,
    api: Api<Lease>,
    name: String,
}

impl ApiLeases {
    pub(super) fn new(client: kube::Client, config: &Config) -> Self {
        let api = Api::namespaced(client.clone(), &config.namespace);
        ApiLeases { client, api, name: config.name.clone() }
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

    /// Everybody who is authenticated may ask this (`system:public-info-viewer`). It is well only when its caches are full.
    async fn knows_roles(&self) -> bool {
        let Ok(request) = hyper::Request::get("/readyz").body(Vec::new()) else { return false };
        self.client.request_text(request).await.is_ok()
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
