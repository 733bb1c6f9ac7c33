//! Single reads of the API server at the request rate of garbage collection. Results distinguish present, missing and
//! unknown.

use hyper::Request;
use hyper::header::ACCEPT;
use libcalico::api::ObjectKey;
use libcalico::ipam::Sight;
use libcalico::kubernetes::Resource;
use serde::de::DeserializeOwned;

use crate::api_reads;
use crate::gc::gate::LeaderGate;
use crate::runtime::ReconcileError;

pub(super) struct Api<'a> {
    pub(super) client: &'a kube::Client,
    pub(super) gate: &'a LeaderGate,
}

impl Api<'_> {
    /// Reads the object.
    pub(super) async fn whole<T: DeserializeOwned + 'static>(&self, resource: Resource, key: &ObjectKey) -> Sight<T> {
        self.gate.pace(1).await;
        to_lookup(api_reads::object(self.client, resource, key).await)
    }

    /// Looks up if the object exists.
    pub(super) async fn exists(&self, resource: Resource, key: &ObjectKey) -> Sight<()> {
        self.gate.pace(1).await;
        to_lookup(api_reads::exists(self.client, resource, key).await.map(|there| there.then_some(())))
    }

    /// Looks up if the API server serves one of these kinds, in any version of a group.
    pub(super) async fn serves(&self, group: &str, plurals: &[&str]) -> Sight<()> {
        self.gate.pace(1).await;
        to_lookup(api_reads::serves(self.client, group, plurals).await.map(|serves| serves.then_some(())))
    }

    /// Returns the JSON of a list.
    pub(super) async fn list(&self, target: &str) -> Result<String, kube::Error> {
        self.gate.pace(1).await;
        let request = Request::get(target).header(ACCEPT, "application/json").body(Vec::new());
        self.client.request_text(request.map_err(kube::Error::HttpError)?).await
    }
}

/// Converts a result; a failed read counts as unknown.
fn to_lookup<T>(found: Result<Option<T>, ReconcileError>) -> Sight<T> {
    match found {
        Ok(Some(object)) => Sight::Present(object),
        Ok(None) => Sight::Absent,
        Err(failure) => {
            tracing::warn!("what it may hold stays: {failure}");
            Sight::Unknown
        }
    }
}
