//! Single reads of the API server, by what they say about existence.

use hyper::Request;
use hyper::header::ACCEPT;
use libcalico::api::ObjectKey;
use libcalico::ipam::Sight;
use libcalico::kubernetes::{Location, Resource};

use crate::gc::gate::Gate;

/// Only metadata: nodes are large.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const WHOLE: &str = "application/json";

/// Services.
pub(super) const SERVICES: Resource =
    Resource { api_version: "v1", kind: "Service", plural: "services", namespaced: true };

pub(super) struct Api<'a> {
    pub(super) client: &'a kube::Client,
    pub(super) gate: &'a Gate,
}

impl Api<'_> {
    /// The object's JSON.
    pub(super) async fn whole(&self, resource: Resource, key: &ObjectKey) -> Sight<String> {
        self.read(resource, WHOLE, key).await
    }

    /// The JSON of the object's metadata.
    pub(super) async fn metadata(&self, resource: Resource, key: &ObjectKey) -> Sight<String> {
        self.read(resource, METADATA, key).await
    }

    /// Whether the object is there.
    pub(super) async fn exists(&self, resource: Resource, key: &ObjectKey) -> Sight<()> {
        match self.metadata(resource, key).await {
            Sight::Present(_) => Sight::Present(()),
            Sight::Absent => Sight::Absent,
            Sight::Unknown => Sight::Unknown,
        }
    }

    /// A list's JSON.
    pub(super) async fn list(&self, target: &str) -> Result<String, kube::Error> {
        self.gate.pace(1).await;
        self.client.request_text(get(target, WHOLE)?).await
    }

    /// Absent is only what the server says is not there by its name: that it lacks the whole kind says nothing.
    async fn read(&self, resource: Resource, accept: &'static str, key: &ObjectKey) -> Sight<String> {
        self.gate.pace(1).await;
        let answer = match get(&location(resource, key), accept) {
            Ok(request) => self.client.request_text(request).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(json) => Sight::Present(json),
            Err(kube::Error::Api(status)) if status.code == 404 && names(&status, key) => Sight::Absent,
            Err(error) => {
                tracing::warn!(kind = resource.kind, object = %key, %error, "cannot look whether it is there; what it may hold stays");
                Sight::Unknown
            }
        }
    }
}

fn names(status: &kube::core::Status, key: &ObjectKey) -> bool {
    status.details.as_ref().is_some_and(|details| details.name == key.name)
}

fn get(target: &str, accept: &'static str) -> Result<Request<Vec<u8>>, kube::Error> {
    Request::get(target).header(ACCEPT, accept).body(Vec::new()).map_err(kube::Error::HttpError)
}

/// Where an object is.
fn location(resource: Resource, key: &ObjectKey) -> String {
    let ObjectKey { namespace, name } = key.clone();
    Location { resource, namespace, name }.url_path()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_that_the_server_names_is_absent() {
        let status = |name: &str| {
            let json =
                serde_json::json!({"code": 404, "reason": "NotFound", "details": {"name": name, "kind": "pods"}});
            serde_json::from_value::<kube::core::Status>(json).unwrap()
        };
        let key = ObjectKey::namespaced("ns", "p");
        assert!(names(&status("p"), &key));
        assert!(!names(&status("ns"), &key), "its namespace was asked for by somebody in between");
        assert!(!names(&kube::core::Status::failure("404 page not found", "NotFound"), &key));
    }
}
