//! [`missing`]: the rights of the role `calico-kube-controllers-migration` that this process lacks.

mod required;

use std::collections::BTreeSet;

use datastore::kubernetes::{ACCESS_REVIEWS, RULES_REVIEWS, review_access};
use futures::future::join_all;
use serde_json::json;

use super::super::requests::Problem;
use super::{Check, Checked};
use required::{Right, required};

/// Upstream's text.
const WAITING: &str = "Waiting for migration RBAC permissions";
const REMEDY: &str =
    "apply the role calico-kube-controllers-migration (deploy/components/migrate-to-v3)";
/// Greatest number of rights that a message names.
const MOST_NAMED: usize = 16;
/// Number of reviews at the same time.
const PARALLEL: usize = 10;

/// Returns the found result, or if the API server has refused a request, the reason to wait.
pub(super) async fn explain(
    context: &Checked<'_>,
    found: Result<Check, Problem>,
) -> Result<Check, Problem> {
    match found {
        Err(Problem::Refused { code: 403, text }) => {
            let wait = missing(context)
                .await?
                .unwrap_or_else(|| format!("{WAITING}: {text}"));
            Ok(Check::Wait(wait))
        }
        found => found,
    }
}

/// Returns the reason to wait if the API server would refuse a request of the migration.
///
/// A single request lists the rules of the account. Some authorizers cannot list their rules, so a
/// further request asks for each right that the list lacks. A rule of a Role in Calico's namespace
/// counts as a rule for the whole cluster. If the API server then refuses a request, its text is
/// the reason to wait.
pub(super) async fn missing(context: &Checked<'_>) -> Result<Option<String>, Problem> {
    let client = &context.requests.client;
    let spec = json!({ "namespace": context.namespace });
    let review = review_access(client, &RULES_REVIEWS, &spec)
        .await
        .unwrap_or_default();
    let rules = review["resourceRules"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let mut unlisted = required();
    unlisted.retain(|right| !rules.iter().any(|rule| right.is_granted_by(rule)));
    let mut refused = BTreeSet::new();
    for some in unlisted.chunks(PARALLEL) {
        let answers = join_all(
            some.iter()
                .map(|right| is_allowed(client, right, context.namespace)),
        )
        .await;
        for (right, is_granted) in some.iter().zip(answers) {
            if !is_granted? {
                refused.insert(right.to_string());
            }
        }
    }
    Ok((!refused.is_empty()).then(|| text(&refused)))
}

async fn is_allowed(
    client: &kube::Client,
    right: &Right,
    namespace: &str,
) -> Result<bool, Problem> {
    let spec = json!({ "resourceAttributes": right.attributes(namespace) });
    match review_access(client, &ACCESS_REVIEWS, &spec).await {
        Ok(status) => status["allowed"]
            .as_bool()
            .ok_or_else(|| Problem::Transient(unanswered(right, &status))),
        Err(error) => Err(Problem::Transient(unanswered(right, &error))),
    }
}

fn unanswered(right: &Right, answer: &dyn std::fmt::Display) -> String {
    format!("cannot ask the API server for the right to {right}: {answer}")
}

fn text(refused: &BTreeSet<String>) -> String {
    let mut named: Vec<&str> = refused
        .iter()
        .map(String::as_str)
        .take(MOST_NAMED)
        .collect();
    let others = refused.len().saturating_sub(named.len());
    let more = format!("and {others} more");
    if others > 0 {
        named.push(&more);
    }
    format!("{WAITING}: {}; {REMEDY}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn text_names_the_first_rights_and_the_number_of_the_others() {
        let rights = |count: usize| -> BTreeSet<String> {
            (10..10 + count)
                .map(|number| format!("get kind{number}"))
                .collect()
        };
        let expected = format!("{WAITING}: get kind10, get kind11; {REMEDY}");
        assert_eq!(text(&rights(2)), expected);
        let long = text(&rights(40));
        assert!(long.contains("get kind25, and 24 more; "), "{long}");
    }

    #[test]
    fn unanswered_review_names_the_right_and_the_answer() {
        let right = required()
            .into_iter()
            .find(|right| right.to_string() == "create apiservices")
            .unwrap();
        let text = unanswered(&right, &Value::Null);
        assert_eq!(
            text,
            "cannot ask the API server for the right to create apiservices: null"
        );
    }
}
