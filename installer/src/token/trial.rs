//! Tests if the API server still accepts a token. New signing keys, or a service account that was deleted and
//! recreated, invalidate tokens before they expire, and only the API server can detect that.

use std::time::Duration;

use datastore::{KubernetesConfig, kubernetes};
use hyper::Request;
use tokio::time::timeout;

/// A path that every authenticated user may read.
const TARGET: &str = "/version";

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// The API server accepts the token.
    Holds,
    /// The API server rejects the token.
    Refused,
    /// No result, for this reason.
    Unanswered(String),
}

/// Tests the token in `access`.
pub async fn try_token(access: &KubernetesConfig, deadline: Duration) -> Trial {
    let asked = async {
        let client = kubernetes::client(access).await.map_err(|error| Trial::Unanswered(error.to_string()))?;
        let request = Request::get(TARGET).body(Vec::new()).map_err(|error| Trial::Unanswered(error.to_string()))?;
        match client.request_text(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 401 => Err(Trial::Refused),
            // A client error other than 401 shows that the token was accepted.
            Err(kube::Error::Api(status)) if status.code < 500 => Ok(()),
            Err(kube::Error::Api(status)) => Err(Trial::Unanswered(format!("{} ({})", status.message, status.code))),
            Err(error) => Err(Trial::Unanswered(datastore::error_chain::chain(&error))),
        }
    };
    match timeout(deadline, asked).await {
        Ok(Ok(())) => Trial::Holds,
        Ok(Err(trial)) => trial,
        Err(_) => Trial::Unanswered(format!("nothing came within {deadline:?}")),
    }
}
