//! The API server: whether it answers, and what it lets the plugins do.

use datastore::{KubernetesConfig, kubernetes};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::cluster::DEADLINE;
use crate::doctor::facts::Granted;
use crate::doctor::role::{self, Permission, Scope};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// What it says.
pub(super) struct ApiAnswers {
    /// Where it is.
    pub(super) place: String,
    /// Whether it answered, or why not.
    pub(super) reached: Result<(), String>,
    /// What it said where it does not know who asks.
    pub(super) refused: Option<String>,
    /// What the account may, of what it must.
    pub(super) granted: Vec<Granted>,
}

impl ApiAnswers {
    /// It said nothing.
    pub(super) fn none(place: String, reason: String) -> Self {
        ApiAnswers { place, reached: Err(reason), refused: None, granted: Vec::new() }
    }
}

/// Asks it. When it is away the first question says so, and no other is asked.
pub(super) async fn ask(config: &KubernetesConfig, scope: Scope<'_>) -> ApiAnswers {
    let place = format!("the API server of {config}");
    let client = match kubernetes::client(config).await {
        Ok(client) => client,
        Err(error) => return ApiAnswers::none(place, error.to_string()),
    };
    let (mut refused, mut granted) = (None, Vec::new());
    for permission in role::permissions(scope) {
        let allowed = match may(&client, &permission).await {
            Ok(allowed) => Ok(allowed),
            Err(kube::Error::Api(status)) => {
                let said = format!("{} ({})", status.message, status.code);
                if status.code == 401 {
                    refused = Some(said.clone());
                }
                Err(said)
            }
            Err(error) => {
                let reason = datastore::error_chain::chain(&error);
                granted.push(Granted { permission, allowed: Err(reason.clone()) });
                return ApiAnswers { place, reached: Err(reason), refused, granted };
            }
        };
        granted.push(Granted { permission, allowed });
    }
    ApiAnswers { place, reached: Ok(()), refused, granted }
}

/// Whether the account of `client` may do something in all namespaces.
async fn may(client: &kube::Client, permission: &Permission) -> Result<bool, kube::Error> {
    let (resource, subresource) = permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": permission.verb, "group": permission.group, "resource": resource, "subresource": subresource,
        }},
    });
    let post = Request::post(REVIEWS).header(CONTENT_TYPE, "application/json");
    let request = post.body(review.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    let answer = timeout(DEADLINE, client.request::<Value>(request))
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(format!("nothing came within {DEADLINE:?}").into())))?;
    Ok(answer["status"]["allowed"] == true)
}
