//! [`CustomResources`]: writes finalizers and [`StatusCondition`]s of Calico's custom resources.

use datastore::kubernetes::{ObjectError, ObjectRequest};
use libcalico::api::{Object, Spec};
use libcalico::kubernetes::{ApiGroup, Location, Resource};
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::runtime::ReconcileError;

#[derive(Clone)]
pub(super) struct CustomResources {
    client: kube::Client,
    resource: Resource,
}

impl CustomResources {
    pub(super) fn new<S: Spec>(client: kube::Client) -> Self {
        CustomResources {
            client,
            resource: resource(S::KIND, S::PLURAL),
        }
    }

    /// Replaces the finalizers of an object. Fails if the object is no longer at the resource
    /// version `version`.
    pub(super) async fn write_finalizers(
        &self,
        name: &str,
        version: &str,
        finalizers: &[String],
    ) -> Result<String, ReconcileError> {
        let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
        let request = ObjectRequest::merge(&self.location(name), &patch);
        self.write(name, "finalizers", request).await
    }

    /// Replaces the conditions of an object. Fails if the object is no longer at the resource
    /// version `version`.
    pub(super) async fn write_conditions(
        &self,
        name: &str,
        version: &str,
        conditions: &[Value],
    ) -> Result<String, ReconcileError> {
        let patch = json!({
            "metadata": { "resourceVersion": version }, "status": { "conditions": conditions },
        });
        let request = ObjectRequest::merge_status(&self.location(name), &patch);
        self.write(name, "conditions", request).await
    }

    fn location(&self, name: &str) -> Location {
        Location::global(self.resource, name)
    }

    /// Sends the request, and returns the new resource version of the object.
    async fn write(
        &self,
        name: &str,
        what: &str,
        request: ObjectRequest,
    ) -> Result<String, ReconcileError> {
        let kind = self.resource.kind;
        let written: Value = request
            .send(&self.client)
            .await
            .map_err(|error| reconcile_error(&format!("write {what} of {kind} {name}"), &error))?;
        let version = written["metadata"]["resourceVersion"].as_str();
        Ok(version.unwrap_or_default().to_owned())
    }
}

/// Returns the resource of a cluster-scoped kind, or of a kind in all namespaces, in
/// `projectcalico.org/v3`.
pub(super) fn resource(kind: &'static str, plural: &'static str) -> Resource {
    Resource {
        api_version: ApiGroup::V3.api_version(),
        kind,
        plural,
        namespaced: false,
    }
}

/// Returns the finalizers of an object with `finalizer` added, or `None` if the object has
/// `finalizer` already.
pub(super) fn with_finalizer<S: Spec>(object: &Object<S>, finalizer: &str) -> Option<Vec<String>> {
    let mut all = finalizers(object);
    let is_new = !all.iter().any(|existing| existing == finalizer);
    all.extend(is_new.then(|| finalizer.to_owned()));
    is_new.then_some(all)
}

/// Returns the finalizers of an object without `finalizer`, or `None` if the object does not have
/// `finalizer`.
pub(super) fn without_finalizer<S: Spec>(
    object: &Object<S>,
    finalizer: &str,
) -> Option<Vec<String>> {
    let mut others = finalizers(object);
    let all = others.len();
    others.retain(|existing| existing != finalizer);
    (others.len() < all).then_some(others)
}

fn finalizers<S: Spec>(object: &Object<S>) -> Vec<String> {
    let listed = object
        .metadata
        .unknown
        .get("finalizers")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    listed
        .filter_map(|finalizer| finalizer.as_str().map(str::to_owned))
        .collect()
}

/// Converts an error. A rejection as invalid is permanent, and any other error is retried.
pub(super) fn reconcile_error(what: &str, error: &ObjectError) -> ReconcileError {
    let text = format!("cannot {what}: {error}");
    match error.code() {
        Some(422) => ReconcileError::Permanent(text),
        _ => ReconcileError::Retry(text),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StatusCondition {
    /// The `type` of the condition.
    pub(super) kind: &'static str,
    pub(super) is_true: bool,
    /// The reason for programs.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl StatusCondition {
    fn status(&self) -> &'static str {
        if self.is_true { "True" } else { "False" }
    }

    /// Returns true if an object with `status` has this condition, perhaps with more text after the
    /// message.
    pub(super) fn is_beginning_in(&self, status: Option<&Value>) -> bool {
        let mut conditions = status
            .and_then(|status| status["conditions"].as_array())
            .into_iter()
            .flatten();
        conditions.any(|old| {
            let begins = old["message"]
                .as_str()
                .is_some_and(|message| message.starts_with(&self.message));
            old["type"] == self.kind
                && old["status"] == self.status()
                && old["reason"] == self.reason
                && begins
        })
    }

    /// Returns all conditions of an object with `status` after setting this condition, or `None` if
    /// the object has this condition already. Conditions of other types stay.
    pub(super) fn merged_into(
        &self,
        status: Option<&Value>,
        now: OffsetDateTime,
    ) -> Option<Vec<Value>> {
        let mut conditions = status
            .and_then(|status| status["conditions"].as_array())
            .cloned()
            .unwrap_or_default();
        let position = conditions
            .iter()
            .position(|condition| condition["type"] == self.kind);
        let is_equal = |old: &Value| {
            old["status"] == self.status()
                && old["reason"] == self.reason
                && old["message"] == self.message.as_str()
        };
        if position.is_some_and(|at| is_equal(&conditions[at])) {
            return None;
        }
        let condition = json!({
            "type": self.kind, "status": self.status(), "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": format_time(now),
        });
        match position {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
        Some(conditions)
    }
}

/// Returns true if the condition `kind` of an object with `status` is true; `None` if the object
/// has no such condition.
pub(super) fn condition_is_true(status: Option<&Value>, kind: &str) -> Option<bool> {
    let conditions = status?["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == kind)
        .map(|condition| condition["status"] == "True")
}

fn format_time(time: OffsetDateTime) -> String {
    let whole = time
        .to_offset(UtcOffset::UTC)
        .replace_nanosecond(0)
        .unwrap_or(time);
    // Formatting cannot fail for years of four digits.
    whole.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn condition_is_written_only_on_change_and_other_conditions_are_preserved() {
        let ready = |reason| StatusCondition {
            kind: "Ready",
            is_true: false,
            reason,
            message: "m".into(),
        };
        let now = datetime!(2026-08-22 06:33:20.5 UTC);
        let other = json!({"type": "Other", "status": "True"});
        let written = ready("A")
            .merged_into(Some(&json!({"conditions": [other]})), now)
            .unwrap();
        let expected = json!({
            "type": "Ready", "status": "False", "reason": "A", "message": "m",
            "lastTransitionTime": "2026-08-22T06:33:20Z",
        });
        assert_eq!(written, [other, expected]);
        let status = json!({"conditions": written});
        assert_eq!(
            ready("A").merged_into(Some(&status), datetime!(2027-01-01 00:00 UTC)),
            None
        );
        assert_eq!(
            ready("B").merged_into(Some(&status), now).unwrap()[1]["reason"],
            "B"
        );
        assert_eq!(ready("A").merged_into(None, now).unwrap().len(), 1);
        assert_eq!(
            (
                condition_is_true(Some(&status), "Other"),
                condition_is_true(Some(&status), "Ready")
            ),
            (Some(true), Some(false))
        );
        assert_eq!(
            (
                condition_is_true(Some(&status), "None"),
                condition_is_true(None, "Ready")
            ),
            (None, None)
        );
    }
}
