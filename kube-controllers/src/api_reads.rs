//! Reads the current state from the Kubernetes API. A watch may lag behind, so a deletion may need
//! the current state.
//!
//! An object is read by a list with its name as the field selector: upstream's role allows listing
//! every watched kind, but not getting every kind. Only an empty list of the requested kind proves
//! that an object is missing; a 404 may mean that the server does not serve the kind.

use std::fmt::Display;

use libcalico::api::ObjectKey;
use libcalico::kubernetes::{
    API_GROUPS_PATH, ContinueTokens, PODS, Resource, ServedGroups, escaped, has_kind, kinds_path,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

use crate::runtime::ReconcileError;
use crate::watched::object_key;

/// A page of a list. A proxy in front of the API server may return something else with a success
/// status; such a response must never count as an empty list.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(crate) struct List<T> {
    kind: String,
    #[serde(default)]
    metadata: ListMetadata,
    /// Required, but may be null: a list of metadata without items has a null here.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    token: Option<String>,
}

impl<T> List<T> {
    /// Returns the items, and the token of the next page; `None` instead of the token after the
    /// last page. Fails if `is_expected` returns false for the response's `kind`.
    pub(crate) fn page(
        self,
        is_expected: impl Fn(&str) -> bool,
    ) -> Result<(Vec<T>, Option<String>), UnexpectedKind> {
        if !is_expected(&self.kind) {
            return Err(UnexpectedKind(self.kind));
        }
        Ok((
            self.items.unwrap_or_default(),
            self.metadata.token.filter(|token| !token.is_empty()),
        ))
    }
}

/// A response whose `kind` is not that of the requested list.
#[derive(Debug, thiserror::Error)]
#[error("the response is a {0:?}, not the requested list")]
pub(crate) struct UnexpectedKind(String);

/// Returns true if the object exists.
pub async fn exists(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
) -> Result<bool, ReconcileError> {
    // Only the metadata: nodes are large.
    Ok(read::<IgnoredAny>(kubernetes, resource, key, METADATA)
        .await?
        .is_some())
}

/// Returns the object, or `None` if it is missing.
pub async fn read_object<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
) -> Result<Option<T>, ReconcileError> {
    read(kubernetes, resource, key, "application/json").await
}

const METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

async fn read<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
    accept: &str,
) -> Result<Option<T>, ReconcileError> {
    let query = format!(
        "fieldSelector={}&limit=1",
        escaped(&format!("metadata.name={}", key.name))
    );
    let path = format!("{}?{query}", resource.collection(key.namespace.as_deref()));
    let what = format!("{} {key}", resource.kind);
    let (items, following) =
        page::<Box<RawValue>>(kubernetes, path, accept, resource, &what).await?;
    let failed = |error: &dyn Display| read_error(&what, error);
    let item = match (items.first(), following) {
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
    while let Some(token) = next {
        let query = format!(
            "fieldSelector={}&limit={PAGE}&continue={}",
            escaped(&selector),
            escaped(&token)
        );
        let path = format!("{}?{query}", PODS.collection(None));
        let (pods, following) =
            page::<NetworkedPod>(kubernetes, path, "application/json", PODS, &what).await?;
        if let Some(pod) = first_networked(&pods) {
            return Ok(Some(pod));
        }
        next = tokens
            .record(following)
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
        let request = hyper::Request::get(path)
            .header(hyper::header::ACCEPT, "application/json")
            .body(Vec::new());
        kubernetes
            .request_text(request.map_err(|error| failed(&error))?)
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
const PAGE: usize = 250;

/// Reads one page of a list. Returns the items, and the token of the next page, if there is one.
async fn page<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    path: String,
    accept: &str,
    resource: Resource,
    what: &str,
) -> Result<(Vec<T>, Option<String>), ReconcileError> {
    let failed = |error: &dyn Display| read_error(what, error);
    let request = hyper::Request::get(path)
        .header(hyper::header::ACCEPT, accept)
        .body(Vec::new());
    let list: kube::Result<List<T>> = kubernetes
        .request(request.map_err(|error| failed(&error))?)
        .await;
    list.map_err(|error| failed(&error))?
        .page(|kind| resource.is_list(kind))
        .map_err(|error| failed(&error))
}

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
