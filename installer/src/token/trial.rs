//! Whether a token still opens the API server. Signing keys that were replaced, and a service account that was deleted and
//! made anew, end tokens before their time; only the API server knows.

use std::time::Duration;

use datastore::{KubernetesConfig, kubernetes};
use hyper::Request;
use tokio::time::timeout;

/// Readable to whoever has a token that holds.
const TARGET: &str = "/version";

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// It opens.
    Holds,
    /// The API server refuses it.
    Refused,
    /// Nobody said, and why not.
    Unanswered(String),
}

/// Tries the token that `access` leads with.
pub async fn try_token(access: &KubernetesConfig, deadline: Duration) -> Trial {
    let asked = async {
        let client = kubernetes::client(access).await.map_err(|error| Trial::Unanswered(error.to_string()))?;
        let request = Request::get(TARGET).body(Vec::new()).map_err(|error| Trial::Unanswered(error.to_string()))?;
        match client.request_text(request).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 401 => Err(Trial::Refused),
            // Whom it knows and lets do nothing, it knows.
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
