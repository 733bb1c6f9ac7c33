//! What Kubernetes says at this moment. A watch may lag behind, so whoever is about to delete something asks again: the one
//! way to do so is here.
//!
//! An object is listed by its name: upstream's role may list all that it watches, but may not get each. The answer is never
//! one of the API server's cache, and what is absent is said by a list of that kind that has no items; a 404 says that the
//! server lacks the kind, which is no absence.

use libcalico::api::ObjectKey;
use libcalico::kubernetes::{GROUPS, PODS, Resource, Served, escaped, has_kind, kinds_path};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::runtime::Failure;

/// A page of a list. What stands between us and the API server may answer with something else, and successfully: that is
/// never a list without items.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(crate) struct List<T> {
    kind: String,
    #[serde(default)]
    metadata: ListMetadata,
    /// They must be there. Of metadata alone, none are null.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    token: Option<String>,
}

impl<T> List<T> {
    /// The items, and where the next page begins.
    ///
    /// # Errors
    /// If it is a list of something else.
    pub(crate) fn page(self, is_expected: impl Fn(&str) -> bool) -> Result<(Vec<T>, Option<String>), String> {
        match is_expected(&self.kind) {
            true => Ok((self.items.unwrap_or_default(), self.metadata.token.filter(|token| !token.is_empty()))),
            false => Err(format!("the answer is a {:?}, not the list that was asked for", self.kind)),
        }
    }
}

/// Nothing of an object but that it is there.
#[derive(Deserialize)]
struct Anything {}

/// Whether the object is there.
pub async fn exists(kubernetes: &kube::Client, resource: Resource, key: &ObjectKey) -> Result<bool, Failure> {
    Ok(metadata::<Anything>(kubernetes, resource, key).await?.is_some())
}

/// The object; `None` if it is not there.
pub async fn object<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
) -> Result<Option<T>, Failure> {
    read(kubernetes, resource, key, "application/json").await
}

/// The same with nothing but `metadata`: nodes are large.
pub async fn metadata<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
) -> Result<Option<T>, Failure> {
    read(kubernetes, resource, key, METADATA).await
}

const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

async fn read<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    resource: Resource,
    key: &ObjectKey,
    accept: &str,
) -> Result<Option<T>, Failure> {
    let query = format!("fieldSelector={}&limit=1", escaped(&format!("metadata.name={}", key.name)));
    let path = format!("{}?{query}", resource.collection(key.namespace.as_deref()));
    let what = format!("{} {key}", resource.kind);
    let (items, following) = page::<Box<RawValue>>(kubernetes, path, accept, resource, &what).await?;
    let failed = |error: &dyn std::fmt::Display| Failure::Retry(format!("reading {what} from Kubernetes: {error}"));
    let item = match (items.first(), following) {
        (Some(item), _) => item,
        (None, None) => return Ok(None),
        // A server may filter a page to nothing, and have the object on the next one.
        (None, Some(_)) => return Err(failed(&"an empty page that is not the last one")),
    };
    let Named { metadata } = serde_json::from_str(item.get()).map_err(|error| failed(&error))?;
    if (&metadata.name, &metadata.namespace) != (&key.name, &key.namespace) {
        return Err(failed(&"the answer is another object"));
    }
    serde_json::from_str(item.get()).map(Some).map_err(|error| failed(&error))
}

/// Of an object, what names it.
#[derive(Deserialize)]
struct Named {
    metadata: NamedMetadata,
}

#[derive(Deserialize)]
struct NamedMetadata {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

/// Of a pod, what tells whether it needs an address.
#[derive(Deserialize)]
struct NetworkedPod {
    spec: PodNetwork,
}

#[derive(Deserialize)]
struct PodNetwork {
    #[serde(rename = "hostNetwork", default)]
    host_network: bool,
}

/// Whether a pod with a network of its own is bound to the node and has not ended.
pub async fn has_pods(kubernetes: &kube::Client, node: &ObjectKey) -> Result<bool, Failure> {
    let selector = format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", node.name);
    let mut next = Some(String::new());
    while let Some(token) = next {
        let query = format!("fieldSelector={}&limit={PAGE}&continue={}", escaped(&selector), escaped(&token));
        let path = format!("{}?{query}", PODS.collection(None));
        let (pods, following) =
            page::<NetworkedPod>(kubernetes, path, "application/json", PODS, &format!("pods of node {}", node.name))
                .await?;
        if pods.iter().any(|pod| !pod.spec.host_network) {
            return Ok(true);
        }
        next = following;
    }
    Ok(false)
}

/// Returns whether the API server has one of these kinds, by their plurals, in any version of a group.
pub async fn serves(kubernetes: &kube::Client, group: &str, plurals: &[&str]) -> Result<bool, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Retry(format!("discovery of {group} in Kubernetes: {error}"));
    let read = async |path: &str| {
        let request = hyper::Request::get(path).header(hyper::header::ACCEPT, "application/json").body(Vec::new());
        kubernetes.request_text(request.map_err(|error| failed(&error))?).await.map_err(|error| failed(&error))
    };
    let groups = Served::read(&read(GROUPS).await?).map_err(|error| failed(&error))?;
    for version in groups.versions(group) {
        let kinds = read(&kinds_path(version)).await?;
        if has_kind(version, &kinds, plurals).map_err(|error| failed(&error))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// More than a node has in most clusters.
const PAGE: usize = 250;

/// A page of a list of a kind, and where the next one begins. `what` is read, for errors.
async fn page<T: DeserializeOwned + 'static>(
    kubernetes: &kube::Client,
    path: String,
    accept: &str,
    resource: Resource,
    what: &str,
) -> Result<(Vec<T>, Option<String>), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Retry(format!("reading {what} from Kubernetes: {error}"));
    let request = hyper::Request::get(path).header(hyper::header::ACCEPT, accept).body(Vec::new());
    let list: List<T> =
        kubernetes.request(request.map_err(|error| failed(&error))?).await.map_err(|error| failed(&error))?;
    list.page(|kind| resource.is_list(kind)).map_err(|error| failed(&error))
}
