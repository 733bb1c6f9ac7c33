//! [`CustomResources`]: writes the parts of Calico's custom resources that the store does not write: finalizers and
//! status.

use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use libcalico::api::{Object, Spec};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use crate::runtime::ReconcileError;

/// The objects of one kind in `projectcalico.org/v3`.
#[derive(Debug, Clone)]
pub(super) struct CustomResources {
    api: Api<DynamicObject>,
    kind: &'static str,
}

impl CustomResources {
    /// Returns the objects of the kind `S`.
    pub(super) fn new<S: Spec>(client: kube::Client) -> Self {
        CustomResources { api: Api::all_with(client, &resource(S::KIND, S::PLURAL)), kind: S::KIND }
    }

    /// Replaces the finalizers of an object, if the object is still at `version`. Returns the new version.
    pub(super) async fn write_finalizers(
        &self,
        name: &str,
        version: &str,
        finalizers: &[String],
    ) -> Result<String, ReconcileError> {
        let patch = json!({ "metadata": { "resourceVersion": version, "finalizers": finalizers } });
        let patched = self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.version(name, "finalizers", patched)
    }

    /// Replaces the conditions of an object, if the object is still at `version`. Returns the new version.
    pub(super) async fn write_conditions(
        &self,
        name: &str,
        version: &str,
        conditions: &[Value],
    ) -> Result<String, ReconcileError> {
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": { "conditions": conditions } });
        let patched = self.api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        self.version(name, "conditions", patched)
    }

    fn version(&self, name: &str, what: &str, patched: kube::Result<DynamicObject>) -> Result<String, ReconcileError> {
        let kind = self.kind;
        let patched = patched.map_err(|error| reconcile_error(&format!("write {what} of {kind} {name}"), &error))?;
        Ok(patched.metadata.resource_version.unwrap_or_default())
    }
}

/// Describes a kind of `projectcalico.org/v3`.
pub(super) fn resource(kind: &str, plural: &str) -> ApiResource {
    let api_version = ApiGroup::V3.api_version();
    let (group, version) = api_version.split_once('/').unwrap_or_default();
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: plural.into(),
    }
}

/// Returns the finalizers of an object.
pub(super) fn finalizers<S: Spec>(object: &Object<S>) -> Vec<String> {
    let listed = object.metadata.unknown.get("finalizers").and_then(Value::as_array).into_iter().flatten();
    listed.filter_map(|finalizer| finalizer.as_str().map(str::to_owned)).collect()
}

/// Converts an error. A rejection as invalid is permanent, and any other error is retried.
pub(super) fn reconcile_error(what: &str, error: &kube::Error) -> ReconcileError {
    let text = format!("{what}: {error}");
    match error {
        kube::Error::Api(status) if status.code == 422 => ReconcileError::Permanent(text),
        _ => ReconcileError::Retry(text),
    }
}

/// Returns true if the API server reports the object as missing. A 404 of a proxy has another format and does not
/// count.
pub(super) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound")
}
