//! [`OwnersApi`]: the API server of this process, with the Events that garbage collection posts.

use datastore::kubernetes::{ListPage, ObjectError, ObjectRequest};
use hyper::header::DATE;
use kube::client::Body;
use libcalico::api::ObjectKey;
use libcalico::failure::Failure;
use libcalico::kubernetes::{PODS, Resource};
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::world::{ClusterApi, PodPage};
use crate::api_reads;
use crate::events::{EventPublisher, Posted};
use crate::runtime::ReconcileError;
use crate::watched::{Pod, Projection, ProjectionOptions};

/// The API server of this process.
pub struct OwnersApi {
    kubernetes: kube::Client,
    events: EventPublisher,
}

impl OwnersApi {
    pub(super) fn new(kubernetes: kube::Client) -> Self {
        OwnersApi {
            kubernetes,
            events: EventPublisher::default(),
        }
    }
}

impl ClusterApi for OwnersApi {
    async fn exists(&self, resource: Resource, key: &ObjectKey) -> Result<bool, ReconcileError> {
        api_reads::exists(&self.kubernetes, resource, key).await
    }

    async fn pod(&self, key: &ObjectKey) -> Result<Option<Box<RawValue>>, ReconcileError> {
        api_reads::read_object(&self.kubernetes, PODS, key).await
    }

    /// The request has no `limit`: with a limit, API servers before 1.34 do not use their index of
    /// pods by node, and read all pods of the cluster from etcd.
    async fn pods_of_node(
        &self,
        node: &str,
        token: Option<&str>,
    ) -> Result<PodPage, ReconcileError> {
        let failed = |error: PodListError| ReconcileError::Retry(error.to_string());
        let mut request = ObjectRequest::list(&PODS, None)
            .query("fieldSelector", &format!("spec.nodeName={node}"));
        if let Some(token) = token {
            request = request.query("continue", token);
        }
        let json = request.send_text(&self.kubernetes).await;
        let json = json.map_err(|error| failed(error.into()))?;
        let read = || -> Result<PodPage, PodListError> {
            let page: ListPage<&RawValue> = request.read_page(&json)?;
            let projected = page
                .items
                .iter()
                .map(|item| Pod::project(item.get(), ProjectionOptions::default()));
            Ok(PodPage {
                pods: projected.collect::<Result<_, _>>()?,
                next: page.next,
            })
        };
        read().map_err(failed)
    }

    async fn serves(&self, group: &str, plurals: &[&str]) -> Result<bool, ReconcileError> {
        api_reads::serves(&self.kubernetes, group, plurals).await
    }

    /// Reads the time from the header of a response.
    async fn time(&self) -> Result<OffsetDateTime, Failure> {
        let request = hyper::Request::get("/version").body(Body::empty())?;
        let response = self.kubernetes.send(request).await?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(Failure::new(format_args!(
                "the API server answers {status} to /version"
            )));
        }
        let date = response
            .headers()
            .get(DATE)
            .and_then(|date| date.to_str().ok())
            .unwrap_or_default();
        OffsetDateTime::parse(date, &Rfc2822).map_err(|_| {
            Failure::new(format_args!(
                "the response to /version has `{date}` in the header Date, which is no time"
            ))
        })
    }

    async fn post_event(&self, may_write: bool, event: Value) -> Posted {
        self.events.create(&self.kubernetes, may_write, event).await
    }
}

#[derive(Debug, thiserror::Error)]
enum PodListError {
    #[error(transparent)]
    Request(#[from] ObjectError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}
