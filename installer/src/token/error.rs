//! [`TokenError`]: reasons for a missing token.

use datastore::kubernetes::AccessError;

use crate::service_account::ServiceAccountError;

/// Reasons for a missing token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The pod's own credentials cannot be read.
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    /// The settings for the API server are invalid.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Status 403: the account lacks the permission.
    #[error(
        "this pod's service account may not make tokens for {account}: grant it verb create on resource \
         serviceaccounts/token with resourceNames [{name}] in a ClusterRole, or in a Role of namespace {namespace}; \
         the API server says: {said}"
    )]
    Forbidden {
        /// `<namespace>/<name>`.
        account: String,
        /// The name.
        name: String,
        /// The namespace.
        namespace: String,
        /// The API server's message.
        said: String,
    },
    /// Status 401: the pod's own token is rejected.
    #[error(
        "the API server {server} refuses the token of this pod ({said}); kubelet renews it, and after the signing keys \
         or the service account of this pod changed the pod must be deleted"
    )]
    Unauthorized {
        /// The URL of the API server.
        server: String,
        /// The API server's message.
        said: String,
    },
    /// Status 404: the plugins' service account is missing.
    #[error(
        "service account {account} does not exist: apply deploy/rbac/calico-cni-plugin.yaml, or name another in \
             CALICO_CNI_SERVICE_ACCOUNT"
    )]
    NoAccount {
        /// `<namespace>/<name>`.
        account: String,
    },
    /// Another error of the API server.
    #[error("the API server {server} made no token for {account}: {said} ({code})")]
    Refused {
        /// The URL of the API server.
        server: String,
        /// `<namespace>/<name>`.
        account: String,
        /// The API server's message.
        said: String,
        /// The HTTP status.
        code: u16,
    },
    /// The API server did not respond.
    #[error("the API server {server} does not answer: {reason}")]
    NoAnswer {
        /// The URL of the API server.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The response lacks the token or its expiry.
    #[error("the API server {server} answered with something that is no token: {reason}")]
    Unreadable {
        /// The URL of the API server.
        server: String,
        /// The error in the response.
        reason: String,
    },
}

impl TokenError {
    /// Returns true if the API server sent no response.
    pub fn is_silence(&self) -> bool {
        matches!(self, TokenError::NoAnswer { .. })
    }
}
