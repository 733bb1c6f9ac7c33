//! Checks that the API server responds, and which permissions the plugins' account has.

use std::time::Duration;

use datastore::{KubernetesConfig, kubernetes};
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::doctor::role::{self, Permission, Scope};
use crate::doctor::snapshot::{Granted, Observed, Unobserved};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// The observations.
pub(super) struct ApiAnswers {
    /// The address of the API server.
    pub(super) place: String,
    /// The reason if it did not respond.
    pub(super) reached: Observed<()>,
    /// Its error if it rejects the credentials.
    pub(super) refused: Option<String>,
    /// The required permissions, and whether the account has them.
    pub(super) granted: Vec<Granted>,
}

impl ApiAnswers {
    /// Creates the observations for an unreachable API server.
    pub(super) fn none(place: String, reason: Unobserved) -> Self {
        ApiAnswers { place, reached: Err(reason), refused: None, granted: Vec::new() }
    }
}

/// Sends the requests, each with the time limit `deadline`. After a request without a response no further one is sent.
pub(super) async fn query(config: &KubernetesConfig, scope: Scope<'_>, deadline: Duration) -> ApiAnswers {
    let place = format!("the API server of {config}");
    let client = match kubernetes::client(config).await {
        Ok(client) => client,
        Err(error) => return ApiAnswers::none(place, Unobserved::new(error)),
    };
    let (mut refused, mut granted) = (None, Vec::new());
    for permission in role::permissions(scope) {
        let allowed = match has_permission(&client, &permission, deadline).await {
            Ok(allowed) => Ok(allowed),
            Err(kube::Error::Api(status)) => {
                let refusal = format!("{} ({})", status.message, status.code);
                if status.code == 401 {
                    refused = Some(refusal.clone());
                }
                Err(Unobserved::new(refusal))
            }
            Err(error) => {
                let reason = Unobserved::new(datastore::describe_error_chain(&error));
                granted.push(Granted { permission, allowed: Err(reason.clone()) });
                return ApiAnswers { place, reached: Err(reason), refused, granted };
            }
        };
        granted.push(Granted { permission, allowed });
    }
    ApiAnswers { place, reached: Ok(()), refused, granted }
}

/// Returns true if the account of `client` has a permission in all namespaces.
async fn has_permission(
    client: &kube::Client,
    permission: &Permission,
    deadline: Duration,
) -> Result<bool, kube::Error> {
    let (resource, subresource) = permission.resource.split_once('/').unwrap_or((&permission.resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": permission.verb, "group": permission.group, "resource": resource, "subresource": subresource,
        }},
    });
    let post = Request::post(REVIEWS).header(CONTENT_TYPE, "application/json");
    let request = post.body(review.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
    let answer = timeout(deadline, client.request::<Value>(request))
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(format!("nothing came within {deadline:?}").into())))?;
    Ok(answer["status"]["allowed"] == true)
}
