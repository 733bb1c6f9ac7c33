//! [`doubt`]: looks for an owner that is not of Calico's kinds.
//!
//! The reference stands in Calico's annotation alone, so Kubernetes' garbage collector has never looked for the owner.
//! The collector deletes a copy whose owners are missing.

use libcalico::kubernetes::escaped;
use serde_json::Value;

use super::super::requests::{Problem, Requests};

/// Returns the reason why the owner of an object in `namespace` may be missing; `None` if the owner exists.
///
/// No failure ends the migration: a tenant writes the references of its policies, and may name a kind whose server is
/// unreachable.
pub(super) async fn doubt(requests: &Requests, namespace: Option<&str>, owner: &Value) -> Option<String> {
    match find(requests, namespace, owner).await {
        Ok(Some(found)) if owner["uid"].is_string() && found["metadata"]["uid"] == owner["uid"] => None,
        Ok(_) => Some("it does not exist, or it is in another namespace".into()),
        Err(problem) => Some(format!("cannot read it: {problem}")),
    }
}

/// Returns the object that has the kind and the name of an owner. An object of the whole cluster has no owner in a
/// namespace.
async fn find(requests: &Requests, namespace: Option<&str>, owner: &Value) -> Result<Option<Value>, Problem> {
    let (version, name) = (text(owner, "apiVersion"), escaped(text(owner, "name")));
    let words: Vec<String> = version.split('/').map(escaped).collect();
    let root = match words.as_slice() {
        [version] => format!("/api/{version}"),
        [group, version] => format!("/apis/{group}/{version}"),
        _ => return Ok(None),
    };
    // Without a name, the path would be that of all objects.
    if name.is_empty() {
        return Ok(None);
    }
    let Some(kinds) = requests.discover(&root).await? else { return Ok(None) };
    // `deployments/status` has the kind of `deployments`.
    let is_kind = |kind: &&Value| kind["kind"] == owner["kind"] && !text(kind, "name").contains('/');
    let Some(kind) = kinds["resources"].as_array().into_iter().flatten().find(is_kind) else { return Ok(None) };
    let plural = text(kind, "name");
    let path = match (kind["namespaced"] == true, namespace) {
        (false, _) => format!("{root}/{plural}/{name}"),
        (true, Some(namespace)) => format!("{root}/namespaces/{}/{plural}/{name}", escaped(namespace)),
        (true, None) => return Ok(None),
    };
    requests.discover(&path).await
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}
