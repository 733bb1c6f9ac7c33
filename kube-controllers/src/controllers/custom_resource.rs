//! [`CustomResources`]: writes finalizers and [`StatusCondition`]s of Calico's custom resources.

use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use libcalico::api::{Object, Spec};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::runtime::ReconcileError;

#[derive(Debug, Clone)]
pub(super) struct CustomResources {
    api: Api<DynamicObject>,
    kind: &'static str,
}

impl CustomResources {
    pub(super) fn new<S: Spec>(client: kube::Client) -> Self {
        CustomResources {
            api: Api::all_with(client, &api_resource(S::KIND, S::PLURAL)),
            kind: S::KIND,
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
        let patched = self
            .api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        self.version(name, "finalizers", patched)
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
        let patched = self
            .api
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        self.version(name, "conditions", patched)
    }

    fn version(
        &self,
        name: &str,
        what: &str,
        patched: kube::Result<DynamicObject>,
    ) -> Result<String, ReconcileError> {
        let kind = self.kind;
        let patched = patched
            .map_err(|error| reconcile_error(&format!("write {what} of {kind} {name}"), &error))?;
        Ok(patched.metadata.resource_version.unwrap_or_default())
    }
}

pub(super) fn api_resource(kind: &str, plural: &str) -> ApiResource {
    let (group, version) = ApiGroup::V3
        .api_version()
        .split_once('/')
        .unwrap_or_default();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
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
pub(super) fn reconcile_error(what: &str, error: &kube::Error) -> ReconcileError {
    let text = format!("cannot {what}: {error}");
    match error {
        kube::Error::Api(status) if status.code == 422 => ReconcileError::Permanent(text),
        _ => ReconcileError::Retry(text),
    }
}

/// Returns true if the API server reports the object as missing. A 404 of a proxy has another
/// format and does not count.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
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
