//! Tokens for the plugins' service account, by TokenRequest (INST-42).
//!
//! Asked for as the pod itself, with its own token as it is on disk at that moment: never with the token that is renewed
//! here (INST-48). A token is bound to no object, so that it outlives the pod that asked for it.

pub mod claims;
mod request;
mod trial;

pub use request::{Minted, TokenRequest};
pub use trial::{Trial, try_token};

use std::time::Duration;

use datastore::kubernetes::AccessError;

use crate::service_account::ServiceAccountError;

/// The service account of the plugins, where `CALICO_CNI_SERVICE_ACCOUNT` names no other.
pub const DEFAULT_ACCOUNT: &str = "calico-cni-plugin";

/// How long a token is to hold. The API server may give less, of which it says how much.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(86_400);

/// The least that an API server gives (INST-42).
pub const LEAST_LIFETIME: Duration = Duration::from_secs(600);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// This pod's own credentials.
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    /// What the credentials lead to.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// 403.
    #[error(
        "this pod's service account may not make tokens for {account}: grant it verb create on resource \
         serviceaccounts/token with resourceNames [{name}] in a ClusterRole, or in a Role of namespace {namespace}; the API \
         server says: {said}"
    )]
    Forbidden {
        /// `<namespace>/<name>`.
        account: String,
        /// The name.
        name: String,
        /// The namespace.
        namespace: String,
        /// The API server's words.
        said: String,
    },
    /// 401.
    #[error(
        "the API server {server} refuses the token of this pod ({said}); kubelet renews it, and after the signing keys or \
         the service account of this pod changed the pod must be deleted"
    )]
    Unauthorized {
        /// Its URL.
        server: String,
        /// Its words.
        said: String,
    },
    /// 404.
    #[error(
        "service account {account} does not exist: apply deploy/rbac/calico-cni-plugin.yaml, or name another in \
             CALICO_CNI_SERVICE_ACCOUNT"
    )]
    NoAccount {
        /// `<namespace>/<name>`.
        account: String,
    },
    /// Another refusal.
    #[error("the API server {server} made no token for {account}: {said} ({code})")]
    Refused {
        /// Its URL.
        server: String,
        /// `<namespace>/<name>`.
        account: String,
        /// Its words.
        said: String,
        /// The HTTP status.
        code: u16,
    },
    /// Nobody answered.
    #[error("the API server {server} does not answer: {reason}")]
    NoAnswer {
        /// Its URL.
        server: String,
        /// What happened.
        reason: String,
    },
    /// An answer without a token, or without its end.
    #[error("the API server {server} answered with something that is no token: {reason}")]
    Unreadable {
        /// Its URL.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl TokenError {
    /// Whether the API server said nothing.
    pub fn is_silence(&self) -> bool {
        matches!(self, TokenError::NoAnswer { .. })
    }
}
