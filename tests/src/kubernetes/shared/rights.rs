//! The authorizer, which applies roles and bindings a moment after they were written.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::controllers::{PATIENCE, await_that};
use crate::etcd::Etcd;
use crate::kubernetes::ApiServer;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The namespace of the Role of a probe.
const NAMESPACE: &str = "default";

/// Name of the objects of a probe.
const NAME: &str = "probe";

/// Keys of the objects of a probe.
const KEYS: [&str; 4] = [
    "/registry/clusterrolebindings/probe",
    "/registry/clusterroles/probe",
    "/registry/rolebindings/default/probe",
    "/registry/roles/default/probe",
];

/// Waits until the authorizer applies all roles and bindings that were written or deleted so far.
/// The authorizer sees the writes of each kind in their order, so those of a probe are the last.
pub(super) fn await_applied(api: &ApiServer, etcd: &Etcd) -> Result<()> {
    static PROBES: AtomicUsize = AtomicUsize::new(0);
    // The authorizer may still apply the role and the binding of the last probe.
    let unique = format!("probe-{}", PROBES.fetch_add(1, Ordering::Relaxed));
    // A ClusterRoleBinding would also answer the question about the namespace.
    for (verb, namespace) in [("get", None), ("list", Some(NAMESPACE))] {
        for object in role_and_binding(&unique, verb, namespace) {
            api.admin().apply_object(&object)?;
        }
        let mut question = json!({ "verb": verb, "group": NAME, "resource": unique });
        if let Some(namespace) = namespace {
            question["namespace"] = namespace.into();
        }
        await_that(PATIENCE, || api.reviews(&unique, &question))
            .context("the authorizer does not apply a role")?;
    }
    KEYS.into_iter().try_for_each(|key| etcd.delete(key))
}

/// Returns a role for a verb on the resource `unique`, and its binding to the user `unique`.
fn role_and_binding(unique: &str, verb: &str, namespace: Option<&str>) -> [Value; 2] {
    let (role, binding) = match namespace {
        None => ("ClusterRole", "ClusterRoleBinding"),
        Some(_) => ("Role", "RoleBinding"),
    };
    let mut metadata = json!({ "name": NAME });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    let rule = json!({ "apiGroups": [NAME], "resources": [unique], "verbs": [verb] });
    [
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": role, "metadata": metadata,
            "rules": [rule],
        }),
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": binding, "metadata": metadata,
            "roleRef": { "apiGroup": GROUP, "kind": role, "name": NAME },
            "subjects": [{ "apiGroup": GROUP, "kind": "User", "name": unique }],
        }),
    ]
}
