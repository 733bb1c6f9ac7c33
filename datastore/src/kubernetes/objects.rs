//! [`ObjectRequest`]: a request for Kubernetes objects beside the store. [`List`]: a page of a list.
//!
//! A request is sent once. Its sender decides if it may write, and if a failed request is repeated.

use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use kube::core::Status;
use libcalico::kubernetes::{ApiVerb, Location, Preconditions, Resource, escaped, json_bytes};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::media_type::{JSON, METADATA_LIST};

const MERGE_PATCH: &str = "application/merge-patch+json";

/// A request to the API server.
#[derive(Debug, Clone)]
pub struct ObjectRequest {
    verb: ApiVerb,
    resource: Option<Resource>,
    /// Path and query.
    target: String,
    accept: &'static str,
    /// Media type and text.
    body: Option<(&'static str, Vec<u8>)>,
}

impl ObjectRequest {
    /// Creates a read of a path that belongs to no object, for example of the discovery.
    pub fn path(path: &str) -> Self {
        ObjectRequest {
            verb: ApiVerb::Get,
            resource: None,
            target: path.to_owned(),
            accept: JSON,
            body: None,
        }
    }

    /// Creates a read of an object.
    pub fn get(at: &Location) -> Self {
        Self::of(ApiVerb::Get, &at.resource, at.url_path())
    }

    /// Creates a read of all objects, or of those in a namespace.
    pub fn list(resource: &Resource, namespace: Option<&str>) -> Self {
        Self::of(ApiVerb::List, resource, resource.collection(namespace))
    }

    /// Creates a read of an object by a list with its name as the field selector. Upstream's role
    /// allows listing every watched kind, but not getting every kind. Only an empty list of the
    /// requested kind proves that an object is missing; a 404 may mean that the server does not
    /// serve the kind.
    pub fn list_by_name(at: &Location) -> Self {
        let selector = format!("metadata.name={}", at.name);
        Self::list(&at.resource, at.namespace.as_deref()).query("fieldSelector", &selector)
    }

    /// Creates a POST of an object.
    pub fn create(at: &Location, body: &Value) -> Self {
        Self::of(ApiVerb::Create, &at.resource, at.collection()).with_body(JSON, body)
    }

    /// Creates a POST of a cluster-scoped object without a name, such as a review of rights.
    pub fn create_unnamed(resource: &Resource, body: &Value) -> Self {
        Self::of(ApiVerb::Create, resource, resource.collection(None)).with_body(JSON, body)
    }

    /// Creates a POST to a subresource of an object, such as `token`.
    pub fn create_in(at: &Location, subresource: &str, body: &Value) -> Self {
        let target = format!("{}/{subresource}", at.url_path());
        Self::of(ApiVerb::Create, &at.resource, target).with_body(JSON, body)
    }

    /// Creates a PUT of an object, which must still have the resourceVersion in `body`.
    pub fn replace(at: &Location, body: &Value) -> Self {
        Self::of(ApiVerb::Update, &at.resource, at.url_path()).with_body(JSON, body)
    }

    /// Creates a PUT that changes the status of an object alone.
    pub fn replace_status(at: &Location, body: &Value) -> Self {
        let target = at.url_path() + "/status";
        Self::of(ApiVerb::Update, &at.resource, target).with_body(JSON, body)
    }

    /// Creates a JSON merge patch of an object.
    pub fn merge(at: &Location, patch: &Value) -> Self {
        Self::of(ApiVerb::Patch, &at.resource, at.url_path()).with_body(MERGE_PATCH, patch)
    }

    /// Creates a JSON merge patch that changes the status of an object alone.
    pub fn merge_status(at: &Location, patch: &Value) -> Self {
        let target = at.url_path() + "/status";
        Self::of(ApiVerb::Patch, &at.resource, target).with_body(MERGE_PATCH, patch)
    }

    /// Creates a DELETE of an object that fulfils the conditions.
    pub fn delete(at: &Location, conditions: &Preconditions) -> Self {
        let request = Self::of(ApiVerb::Delete, &at.resource, at.url_path());
        match conditions.body() {
            Some(options) => request.with_body(JSON, &options),
            None => request,
        }
    }

    fn of(verb: ApiVerb, resource: &Resource, target: String) -> Self {
        ObjectRequest {
            verb,
            resource: Some(*resource),
            target,
            accept: JSON,
            body: None,
        }
    }

    fn with_body(self, media_type: &'static str, body: &Value) -> Self {
        ObjectRequest {
            body: Some((media_type, json_bytes(body))),
            ..self
        }
    }

    /// Adds a parameter to the query.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        let separator = if self.target.contains('?') { '&' } else { '?' };
        self.target += &format!("{separator}{name}={}", escaped(value));
        self
    }

    /// Requests the metadata of the listed objects only, if the server supports that.
    pub fn metadata_only(self) -> Self {
        ObjectRequest {
            accept: METADATA_LIST,
            ..self
        }
    }

    /// Returns the verb.
    pub fn verb(&self) -> ApiVerb {
        self.verb
    }

    /// Returns the kind of the object; `None` for a path that belongs to no object.
    pub fn kind(&self) -> Option<&'static str> {
        self.resource.map(|resource| resource.kind)
    }

    /// Sends the request. Returns the text of the response.
    pub async fn send_text(&self, client: &kube::Client) -> Result<String, ObjectError> {
        let method = match self.verb {
            ApiVerb::Get | ApiVerb::List | ApiVerb::Watch => Method::GET,
            ApiVerb::Create => Method::POST,
            ApiVerb::Update => Method::PUT,
            ApiVerb::Patch => Method::PATCH,
            ApiVerb::Delete => Method::DELETE,
        };
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(&self.target)
            .header(ACCEPT, self.accept);
        let mut text = Vec::new();
        if let Some((media_type, body)) = &self.body {
            request = request.header(CONTENT_TYPE, *media_type);
            text.clone_from(body);
        }
        let request = request.body(text).map_err(kube::Error::HttpError)?;
        // The future of a request is large. On the heap, it does not enlarge the futures of callers,
        // which would overflow the stack of a thread.
        Ok(Box::pin(client.request_text(request)).await?)
    }

    /// Sends the request. Returns the object or list of the response, which may be another one if a
    /// proxy in front of the API server has sent it.
    pub async fn send<T: DeserializeOwned>(&self, client: &kube::Client) -> Result<T, ObjectError> {
        parsed(&self.send_text(client).await?)
    }

    /// Sends the request for a list. Returns the page, if it is one of the requested list.
    pub async fn page<T: DeserializeOwned>(
        &self,
        client: &kube::Client,
    ) -> Result<ListPage<T>, ObjectError> {
        self.read_page(&self.send_text(client).await?)
    }

    /// Decodes the response to the request for a list. Its items may borrow from the text.
    pub fn read_page<'t, T: Deserialize<'t>>(
        &self,
        text: &'t str,
    ) -> Result<ListPage<T>, ObjectError> {
        parsed::<List<T>>(text)?.page(|kind| self.is_list(kind))
    }

    /// Decodes the response to the request for a list.
    pub fn page_of<T: DeserializeOwned>(&self, answer: Value) -> Result<ListPage<T>, ObjectError> {
        let list: List<T> = serde_json::from_value(answer).map_err(kube::Error::SerdeError)?;
        list.page(|kind| self.is_list(kind))
    }

    fn is_list(&self, kind: &str) -> bool {
        self.resource.is_some_and(|resource| resource.is_list(kind))
    }
}

fn parsed<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, ObjectError> {
    Ok(serde_json::from_str(text).map_err(kube::Error::SerdeError)?)
}

/// A response to the request for a list. A proxy in front of the API server may return something
/// else with a success status; such a response must never count as an empty list.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(super) struct List<T> {
    kind: String,
    #[serde(default)]
    metadata: ListMetadata,
    /// The key must exist, so that another response does not count as an empty list. Go may encode
    /// an empty list as `null`.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    token: Option<String>,
    #[serde(default)]
    resource_version: String,
}

/// A page of a list.
#[derive(Debug)]
pub struct ListPage<T> {
    /// The objects.
    pub items: Vec<T>,
    /// The token of the next page; `None` after the last page.
    pub next: Option<String>,
    /// The resourceVersion of the list.
    pub revision: String,
}

impl<T> List<T> {
    /// Returns the page. Fails if `is_expected` returns false for the response's `kind`.
    pub(super) fn page(
        self,
        is_expected: impl Fn(&str) -> bool,
    ) -> Result<ListPage<T>, ObjectError> {
        if !is_expected(&self.kind) {
            return Err(ObjectError::UnexpectedKind(self.kind));
        }
        let ListMetadata {
            token,
            resource_version,
        } = self.metadata;
        Ok(ListPage {
            items: self.items.unwrap_or_default(),
            next: token.filter(|token| !token.is_empty()),
            revision: resource_version,
        })
    }
}

/// The reason why a request for an object failed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The API server refused the request, did not answer, or sent something else than JSON. The
    /// outcome of a write is unknown unless [`ObjectError::status`] has the refusal.
    #[error(transparent)]
    Request(#[from] kube::Error),
    /// A response whose `kind` is not that of the requested list.
    #[error("the response is a {0:?}, not the requested list")]
    UnexpectedKind(String),
}

impl ObjectError {
    /// Returns the refusal of the API server, or of a proxy in front of it.
    pub fn status(&self) -> Option<&Status> {
        match self {
            ObjectError::Request(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// Returns the HTTP status of the refusal: for example 403 if the role forbids the request, 409
    /// after a conflict, 410 if the rest of a list has expired, 422 for an invalid object.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    /// Returns true if the API server reports the object or its kind as missing. A 404 of a proxy
    /// has another format.
    pub fn is_missing(&self) -> bool {
        self.status()
            .is_some_and(|status| status.code == 404 && status.reason == "NotFound")
    }
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::{PODS, SERVICE_ACCOUNTS};
    use serde_json::json;

    use super::*;

    #[test]
    fn request_has_the_path_and_query_of_its_object() {
        let at = Location::namespaced(PODS, "shop", "web");
        let named = ObjectRequest::list_by_name(&at).query("limit", "1");
        assert_eq!(
            named.target,
            "/api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Dweb&limit=1"
        );
        assert_eq!(named.verb(), ApiVerb::List);
        let account = Location::namespaced(SERVICE_ACCOUNTS, "kube-system", "calico");
        let token = ObjectRequest::create_in(&account, "token", &json!({}));
        assert_eq!(
            token.target,
            "/api/v1/namespaces/kube-system/serviceaccounts/calico/token"
        );
        let status = ObjectRequest::merge_status(&at, &json!({})).query("dryRun", "All");
        assert_eq!(
            status.target,
            "/api/v1/namespaces/shop/pods/web/status?dryRun=All"
        );
        assert_eq!(
            (status.kind(), status.verb()),
            (Some("Pod"), ApiVerb::Patch)
        );
    }

    #[test]
    fn response_other_than_the_requested_list_is_no_page() {
        let request = ObjectRequest::list(&PODS, None);
        let page = |text: &str| {
            request
                .read_page::<Value>(text)
                .map(|page| page.items.len())
        };
        assert_eq!(page(r#"{"kind": "PodList", "items": [{}]}"#).unwrap(), 1);
        let metadata = r#"{"kind": "PartialObjectMetadataList", "metadata": {}, "items": null}"#;
        assert_eq!(page(metadata).unwrap(), 0);
        for text in [
            r#"{"kind": "NodeList", "items": []}"#,
            r#"{"kind": "PodList"}"#,
            r#"{"kind": "Status", "status": "Success"}"#,
            "<html>",
        ] {
            assert!(page(text).is_err(), "{text}");
        }
    }
}
