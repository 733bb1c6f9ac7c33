//! Requests tokens for the plugins' service account from the API server (INST-42).
//!
//! Requests are authenticated with the pod's own token, read from disk each time, and never with the token that is
//! renewed (INST-48). The requested tokens are not bound to an object, so they outlive the pod.

mod check;
mod error;
mod request;

pub use check::{Claims, NoClaims, TokenCheck, check_token};
pub use error::TokenError;
pub use request::{IssuedToken, TokenRequest};

use std::time::Duration;

/// The default for `CALICO_CNI_SERVICE_ACCOUNT`.
pub const DEFAULT_ACCOUNT: &str = "calico-cni-plugin";

/// The default lifetime to request. The API server may grant another one, and reports it.
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(86_400);

/// The shortest lifetime that an API server accepts.
pub const LEAST_LIFETIME: Duration = Duration::from_secs(600);
