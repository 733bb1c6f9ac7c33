//! Lists of objects that expire, or whose kind the API server does not serve.

use libcalico::kubernetes::{Resource, has_kind, kinds_path};
use serde_json::Value;

use super::requests::{Problem, Requests};

/// Number of attempts at a list whose rest expires.
pub(super) const ATTEMPTS: u32 = 3;

/// Lists the metadata of the objects of a kind, and returns the results of `project` with the
/// revision of the list. `project` gets an object without `spec`. A kind that the API server does
/// not serve has no objects.
pub(super) async fn metadata<T>(
    requests: &Requests,
    resource: &Resource,
    project: impl Fn(&Value) -> Option<T>,
) -> Result<(Vec<T>, String), Problem> {
    for _ in 0..ATTEMPTS {
        let mut found = Vec::new();
        let listed = requests
            .pages(resource, true, async |page: Vec<Value>| {
                found.extend(page.iter().filter_map(&project));
                Ok(())
            })
            .await;
        match listed {
            Ok(revision) => return Ok((found, revision)),
            Err(problem) if !has_expired(&problem) => {
                return without_kind(requests, resource, problem).await;
            }
            Err(_) => {}
        }
    }
    Err(expired(resource))
}

/// Returns an empty list if the API server does not serve the kind. Otherwise returns `problem`,
/// the failure of a list.
async fn without_kind<T>(
    requests: &Requests,
    resource: &Resource,
    problem: Problem,
) -> Result<(Vec<T>, String), Problem> {
    if is_unserved(requests, resource, &problem).await? {
        Ok((Vec::new(), String::new()))
    } else {
        Err(problem)
    }
}

/// Returns true if a list has failed because the API server does not serve the kind. A proxy in
/// front of the API server may answer 404 too, so only the API server's list of kinds proves that.
pub(super) async fn is_unserved(
    requests: &Requests,
    resource: &Resource,
    problem: &Problem,
) -> Result<bool, Problem> {
    let Problem::Refused { code: 404, text } = problem else {
        return Ok(false);
    };
    let version = resource.api_version;
    let kinds = requests.discover(&kinds_path(version)).await?;
    let is_served =
        kinds.and_then(|kinds| has_kind(version, &kinds.to_string(), &[resource.plural]).ok());
    match is_served {
        Some(false) => Ok(true),
        _ => Err(Problem::Transient(format!(
            "cannot list {}.{version}: {text}",
            resource.plural
        ))),
    }
}

/// Returns the number of objects as messages write it: `1 object`, `2 objects`.
pub(super) fn counted(objects: usize) -> String {
    format!("{objects} object{}", if objects == 1 { "" } else { "s" })
}

/// Returns true if the API server no longer has the rest of a list, so that the list has to begin
/// anew.
pub(super) fn has_expired(problem: &Problem) -> bool {
    matches!(problem, Problem::Refused { code: 410, .. })
}

pub(super) fn expired(resource: &Resource) -> Problem {
    Problem::Transient(format!(
        "the list of {}.{} expires before its end",
        resource.plural, resource.api_version
    ))
}
