//! Reads the current state from the Kubernetes API. A watch may lag behind, so a deletion may need
//! the current state.
//!
//! An object is read by a list with its name as the field selector, see
//! [`ObjectRequest::list_by_name`].

use std::fmt::Display;

use datastore::kubernetes::{ListPage, ObjectRequest};
use libcalico::api::ObjectKey;
use libcalico::kubernetes::{
    API_GROUPS_PATH, ContinueTokens, Location, PODS, Resource, ServedGroups, has_kind, kinds_path,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

use crate::runtime::ReconcileError;
use crate::watched::object_key;

/// Returns true if the object exists.
pub async fn exists(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
) -> Result<bool, ReconcileError> {
    let at = location(resource, key);
    // Only the metadata: nodes are large.
    let request = ObjectRequest::list_by_name(&at).metadata_only();
    Ok(read::<IgnoredAny>(kubernetes, request, resource, key)
        .await?
        .is_some())
}

/// Returns the object, or `None` if it is missing.
pub async fn read_object<T: DeserializeOwned>(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
) -> Result<Option<T>, ReconcileError> {
    let request = ObjectRequest::list_by_name(&location(resource, key));
    read(kubernetes, request, resource, key).await
}

/// Returns the location of an object.
pub(crate) fn location(resource: Resource, key: &ObjectKey) -> Location {
    Location {
        resource,
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

async fn read<T: DeserializeOwned>(
    kubernetes: &kube::Client,
    request: ObjectRequest,
    resource: Resource,
    key: &ObjectKey,
) -> Result<Option<T>, ReconcileError> {
    let what = format!("{} {key}", resource.kind);
    let failed = |error: &dyn Display| read_error(&what, error);
    let request = request.query("limit", "1");
    let page: ListPage<Box<RawValue>> = request
        .page(kubernetes)
        .await
        .map_err(|error| failed(&error))?;
    let item = match (page.items.first(), page.next) {
        (Some(item), _) => item,
        (None, None) => return Ok(None),
        // A server may filter a page to no items although the object is on the next page.
        (None, Some(_)) => return Err(failed(&"an empty page that is not the last one")),
    };
    if object_key(item.get()).map_err(|error| failed(&error))? != *key {
        return Err(failed(&"the response is another object"));
    }
    serde_json::from_str(item.get())
        .map(Some)
        .map_err(|error| failed(&error))
}

/// The part of a pod that shows if the pod needs an address.
#[derive(Deserialize)]
struct NetworkedPod {
    #[serde(default)]
    metadata: PodName,
    spec: PodNetwork,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodName {
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct PodNetwork {
    #[serde(rename = "hostNetwork", default)]
    host_network: bool,
}

/// Returns `NAMESPACE/NAME` of a pod of the node that does not use the host network and has not
/// finished; `None` if there is none.
pub async fn find_pod_of(
    kubernetes: &kube::Client,
    node: &ObjectKey,
) -> Result<Option<String>, ReconcileError> {
    let selector = format!(
        "spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed",
        node.name
    );
    let what = format!("pods of node {}", node.name);
    let (mut next, mut tokens) = (Some(String::new()), ContinueTokens::default());
    let request = ObjectRequest::list(&PODS, None)
        .query("fieldSelector", &selector)
        .query("limit", PAGE);
    while let Some(token) = next {
        let page: ListPage<NetworkedPod> = request
            .clone()
            .query("continue", &token)
            .page(kubernetes)
            .await
            .map_err(|error| read_error(&what, &error))?;
        if let Some(pod) = first_networked(&page.items) {
            return Ok(Some(pod));
        }
        next = tokens
            .record(page.next)
            .map_err(|error| read_error(&what, &error))?;
    }
    Ok(None)
}

/// Returns `NAMESPACE/NAME` of the first pod that does not use the host network.
fn first_networked(pods: &[NetworkedPod]) -> Option<String> {
    let pod = pods.iter().find(|pod| !pod.spec.host_network)?;
    Some(format!("{}/{}", pod.metadata.namespace, pod.metadata.name))
}

/// Returns true if the API server serves at least one of these kinds in any version of `group`.
pub async fn serves(
    kubernetes: &kube::Client,
    group: &str,
    plurals: &[&str],
) -> Result<bool, ReconcileError> {
    let failed = |error: &dyn Display| {
        ReconcileError::Retry(format!(
            "cannot discover the API group {group} in Kubernetes: {error}"
        ))
    };
    let read = async |path: &str| {
        let request = ObjectRequest::path(path);
        request
            .send_text(kubernetes)
            .await
            .map_err(|error| failed(&error))
    };
    let groups =
        ServedGroups::read(&read(API_GROUPS_PATH).await?).map_err(|error| failed(&error))?;
    for version in groups.versions(group) {
        let kinds = read(&kinds_path(version)).await?;
        if has_kind(version, &kinds, plurals).map_err(|error| failed(&error))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Maximum number of pods in a page. Few nodes have more pods.
const PAGE: &str = "250";

fn read_error(what: &str, error: &dyn Display) -> ReconcileError {
    ReconcileError::Retry(format!("cannot read {what} from Kubernetes: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::controllers::testing::refusing_kubernetes;

    #[tokio::test]
    async fn page_of_pods_that_names_an_earlier_page_as_the_next_one_is_a_failure() {
        let server = refusing_kubernetes(|uri| {
            let next = if uri.query().unwrap_or_default().ends_with("continue=x") {
                "y"
            } else {
                "x"
            };
            Ok(json!({"kind": "PodList", "metadata": {"continue": next}, "items": []}))
        });
        let found = find_pod_of(&server, &ObjectKey::global("n1")).await;
        assert!(
            matches!(&found, Err(ReconcileError::Retry(text)) if text.contains("has no end")),
            "{found:?}"
        );
    }

    #[test]
    fn pod_that_keeps_a_deleted_node_is_named() {
        let pods = |text: &str| serde_json::from_str::<Vec<NetworkedPod>>(text).unwrap();
        let on_host =
            r#"{"metadata": {"namespace": "a", "name": "proxy"}, "spec": {"hostNetwork": true}}"#;
        let pending = r#"{"metadata": {"namespace": "shop", "name": "web"}, "spec": {}}"#;
        assert_eq!(
            first_networked(&pods(&format!("[{on_host}, {pending}]"))).as_deref(),
            Some("shop/web")
        );
        assert_eq!(first_networked(&pods(&format!("[{on_host}]"))), None);
    }
}
