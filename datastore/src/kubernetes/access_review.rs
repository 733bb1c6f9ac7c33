//! [`review_access`]: asks the API server about the rights of the own account.

use libcalico::kubernetes::Resource;
use serde_json::{Value, json};

use super::objects::{ObjectError, ObjectRequest};

/// Reviews of one right.
pub const ACCESS_REVIEWS: Resource = review("SelfSubjectAccessReview", "selfsubjectaccessreviews");
/// Lists of all rights in a namespace.
pub const RULES_REVIEWS: Resource = review("SelfSubjectRulesReview", "selfsubjectrulesreviews");

const fn review(kind: &'static str, plural: &'static str) -> Resource {
    Resource {
        api_version: "authorization.k8s.io/v1",
        kind,
        plural,
        namespaced: false,
    }
}

/// Asks the API server if the account of `client` has a right in all namespaces: API group,
/// resource, subresource and verb. Returns `None` if the response does not say so.
///
/// # Errors
/// Returns an error if the API server gives no valid response.
pub async fn is_allowed(
    client: &kube::Client,
    [group, resource, subresource, verb]: [&str; 4],
) -> Result<Option<bool>, ObjectError> {
    let attributes =
        json!({ "group": group, "resource": resource, "subresource": subresource, "verb": verb });
    let spec = json!({ "resourceAttributes": attributes });
    let status = review_access(client, &ACCESS_REVIEWS, &spec).await?;
    Ok(status["allowed"].as_bool())
}

/// Asks the API server about the rights of the account of `client`, and returns the status of the
/// review. `kind` is [`ACCESS_REVIEWS`] or [`RULES_REVIEWS`].
///
/// # Errors
/// Returns an error if the API server gives no valid response.
pub async fn review_access(
    client: &kube::Client,
    kind: &Resource,
    spec: &Value,
) -> Result<Value, ObjectError> {
    let review = json!({ "apiVersion": kind.api_version, "kind": kind.kind, "spec": spec });
    let request = ObjectRequest::create_unnamed(kind, &review);
    let mut answer: Value = request.send(client).await?;
    Ok(answer
        .get_mut("status")
        .map(Value::take)
        .unwrap_or_default())
}
