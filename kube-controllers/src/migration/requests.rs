//! [`Requests`]: the requests of the migration to the API server, with retries and the right to
//! write.
//!
//! Objects are JSON values, because the migration copies kinds and fields that no type models.

mod call;

use std::time::Duration;

use hyper::Method;
use libcalico::backoff::{Backoff, Jitter};
use libcalico::kubernetes::{ContinueTokens, Location, Preconditions, Resource, escaped};
use prometheus::IntCounterVec;
use serde_json::Value;
use tokio::time::sleep;

use self::call::{Call, CallFailure};
use crate::api_reads::List;
use crate::leader::Leadership;

/// Number of objects in a page of a list. An object of a tenant may have 1.5 MB, and a page is in
/// memory as a whole.
const PAGE: usize = 100;
/// Number of attempts at a request that fails temporarily (MIG-68).
const TRIES: u32 = 5;
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
    jitter: Jitter::Half,
};
const JSON: &str = "application/json";
/// The query of writes that the API server refuses if an object has a field that its definition
/// lacks. Otherwise the API server drops the field.
const STRICT: &str = "?fieldValidation=Strict";
const METADATA: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// A client of the API server. Each write is sent only while this replica is the leader.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) client: kube::Client,
    elected: Leadership,
    /// Counter of repeated requests by kind and operation (MIG-77).
    retries: Option<IntCounterVec>,
}

/// The outcome of a creation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Created {
    /// The object, as the API server stored it, or would store it in a dry run.
    New(Value),
    /// An object of this name exists.
    Exists,
    /// The API server refuses the object; another attempt would be refused, too. The text is the
    /// server's.
    Refused(String),
}

/// A request without the desired outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    /// A later attempt may succeed.
    #[error("{0}")]
    Transient(String),
    /// The API server refuses the request. The code 410 means that the rest of a list has expired.
    #[error("the API server refuses the request ({code}): {text}")]
    Refused { code: u16, text: String },
    /// The object has changed or is missing since it was read.
    #[error("another writer has changed the object")]
    Lost,
    #[error("this replica is not the leader")]
    MayNotWrite,
}

impl Requests {
    pub(super) fn new(client: kube::Client, elected: Leadership) -> Self {
        Requests {
            client,
            elected,
            retries: None,
        }
    }

    /// Returns the same client, which counts repeated requests in `retries` with the labels kind
    /// and operation.
    pub(super) fn counting(self, retries: IntCounterVec) -> Self {
        Requests {
            retries: Some(retries),
            ..self
        }
    }

    /// Lists all objects of a kind, or their metadata alone, and passes each page to `on_page`.
    /// Returns the revision of the list.
    ///
    /// # Errors
    /// [`Problem::Refused`] with the code 410 means that the caller has to begin the kind anew.
    pub(super) async fn pages(
        &self,
        of: &Resource,
        metadata_only: bool,
        on_page: impl AsyncFnMut(Vec<Value>) -> Result<(), Problem>,
    ) -> Result<String, Problem> {
        let accept = if metadata_only { METADATA } else { JSON };
        self.pages_of(of, &format!("{}?", of.collection(None)), accept, on_page)
            .await
    }

    /// Lists the metadata of the objects in a namespace that `labels` selects, and returns the
    /// results of `project`.
    ///
    /// # Errors
    /// As [`Requests::pages`].
    pub(super) async fn selected<T>(
        &self,
        of: &Resource,
        namespace: &str,
        labels: &str,
        project: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, Problem> {
        let collection = format!(
            "{}?labelSelector={}&",
            of.collection(Some(namespace)),
            escaped(labels)
        );
        let mut found = Vec::new();
        self.pages_of(of, &collection, METADATA, async |page: Vec<Value>| {
            found.extend(
                page.iter()
                    .filter_map(|object| project(&object["metadata"])),
            );
            Ok(())
        })
        .await?;
        Ok(found)
    }

    /// Lists a collection, whose path ends with the beginning of a query.
    async fn pages_of(
        &self,
        of: &Resource,
        collection: &str,
        accept: &'static str,
        mut on_page: impl AsyncFnMut(Vec<Value>) -> Result<(), Problem>,
    ) -> Result<String, Problem> {
        let (mut token, mut tokens) = (String::new(), ContinueTokens::default());
        loop {
            let path = format!("{collection}limit={PAGE}&continue={}", escaped(&token));
            let read = Call {
                method: Method::GET,
                path,
                accept,
                body: None,
                kind: of.kind,
                operation: "list",
            };
            let list = self.send(&read).await.map_err(CallFailure::problem)?;
            let revision = text(&list["metadata"]["resourceVersion"]);
            let unreadable = |reason: &dyn std::fmt::Display| {
                Problem::Transient(format!("cannot read the list of {}: {reason}", of.plural))
            };
            let list: List<Value> =
                serde_json::from_value(list).map_err(|error| unreadable(&error))?;
            let (items, next) = list
                .page(|kind| of.is_list(kind))
                .map_err(|error| unreadable(&error))?;
            on_page(items).await?;
            match tokens.record(next).map_err(|error| unreadable(&error))? {
                Some(next) => token = next,
                None => return Ok(revision),
            }
        }
    }

    /// Returns the object, or `None` if it or its kind is missing.
    pub(super) async fn get(&self, at: &Location) -> Result<Option<Value>, Problem> {
        let kind = at.resource.kind;
        let read = Call {
            method: Method::GET,
            path: at.url_path(),
            accept: JSON,
            body: None,
            kind,
            operation: "get",
        };
        match self.send(&read).await {
            Ok(found) => checked(at, found).map(Some),
            Err(failure) if failure.is_missing() => Ok(None),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Does the same as [`Requests::get`] by a list. The role of the migration lists all kinds in
    /// v1, and gets few.
    pub(super) async fn get_by_list(&self, at: &Location) -> Result<Option<Value>, Problem> {
        let Location {
            resource,
            namespace,
            name,
        } = at;
        let selector = escaped(&format!("metadata.name={name}"));
        let path = format!(
            "{}?fieldSelector={selector}",
            resource.collection(namespace.as_deref())
        );
        let kind = resource.kind;
        let read = Call {
            method: Method::GET,
            path,
            accept: JSON,
            body: None,
            kind,
            operation: "list",
        };
        let list = self.send(&read).await.map_err(CallFailure::problem)?;
        let unreadable = |reason: &dyn std::fmt::Display| {
            Problem::Transient(format!("cannot read {kind} {name} from a list: {reason}"))
        };
        let list: List<Value> = serde_json::from_value(list).map_err(|error| unreadable(&error))?;
        let (items, _) = list
            .page(|kind| resource.is_list(kind))
            .map_err(|error| unreadable(&error))?;
        items
            .into_iter()
            .next()
            .map(|found| checked(at, found))
            .transpose()
    }

    /// Returns the response to a GET of `path`, a path of the API server's discovery, or of an
    /// object whose kind no [`Resource`] describes; `None` if the API server does not serve the
    /// path.
    pub(super) async fn discover(&self, path: &str) -> Result<Option<Value>, Problem> {
        let read = Call {
            method: Method::GET,
            path: path.to_owned(),
            accept: JSON,
            body: None,
            kind: "APIGroup",
            operation: "get",
        };
        match self.send(&read).await {
            Ok(found) => Ok(Some(found)),
            // The response to an unknown path is text, not a Status.
            Err(CallFailure::Api { code: 404, .. }) => Ok(None),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Creates the object. With `dry`, the API server checks the object and does not store it.
    pub(super) async fn create(
        &self,
        at: &Location,
        body: &Value,
        dry: bool,
    ) -> Result<Created, Problem> {
        self.post(at, if dry { "?dryRun=All" } else { "" }, body)
            .await
    }

    /// Does the same as [`Requests::create`] for a copy, and creates no copy that would lack a
    /// field of its source.
    pub(super) async fn create_copy(
        &self,
        at: &Location,
        body: &Value,
        dry: bool,
    ) -> Result<Created, Problem> {
        let query = if dry {
            format!("{STRICT}&dryRun=All")
        } else {
            STRICT.to_owned()
        };
        self.post(at, &query, body).await
    }

    async fn post(&self, at: &Location, query: &str, body: &Value) -> Result<Created, Problem> {
        let path = at.collection() + query;
        let kind = at.resource.kind;
        let call = Call {
            method: Method::POST,
            path,
            accept: JSON,
            body: Some(body),
            kind,
            operation: "create",
        };
        match self.send(&call).await {
            Ok(made) => checked(at, made).map(Created::New),
            Err(CallFailure::Api {
                code: 409, reason, ..
            }) if reason == "AlreadyExists" => Ok(Created::Exists),
            Err(CallFailure::Api {
                code: 409, text, ..
            }) => Err(Problem::Transient(text)),
            Err(failure) => match failure.problem() {
                Problem::Refused { text, .. } => Ok(Created::Refused(text)),
                problem => Err(problem),
            },
        }
    }

    /// Replaces the object, which must still have the resourceVersion in `body`. Returns the stored
    /// object.
    pub(super) async fn replace(&self, at: &Location, body: &Value) -> Result<Value, Problem> {
        self.put(at, at.url_path(), body).await
    }

    /// Does the same as [`Requests::replace`] for a copy, and stores no copy that would lack a
    /// field of its source.
    pub(super) async fn replace_copy(&self, at: &Location, body: &Value) -> Result<Value, Problem> {
        self.put(at, at.url_path() + STRICT, body).await
    }

    /// Lets the API server check a replacement, and stores nothing. Returns the object that would
    /// be stored.
    pub(super) async fn check_replacement(
        &self,
        at: &Location,
        body: &Value,
    ) -> Result<Value, Problem> {
        self.put(at, at.url_path() + "?dryRun=All", body).await
    }

    /// Replaces the status of the object, which must still have the resourceVersion in `body`.
    /// Returns the stored object.
    pub(super) async fn replace_status(
        &self,
        at: &Location,
        body: &Value,
    ) -> Result<Value, Problem> {
        self.put(at, at.url_path() + "/status", body).await
    }

    async fn put(&self, at: &Location, path: String, body: &Value) -> Result<Value, Problem> {
        let kind = at.resource.kind;
        let call = Call {
            method: Method::PUT,
            path,
            accept: JSON,
            body: Some(body),
            kind,
            operation: "update",
        };
        match self.send(&call).await {
            Ok(stored) => checked(at, stored),
            Err(CallFailure::Api {
                code: 404 | 409, ..
            }) => Err(Problem::Lost),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Deletes the object if it fulfils the conditions. A missing object is a success.
    pub(super) async fn delete(
        &self,
        at: &Location,
        conditions: &Preconditions,
    ) -> Result<(), Problem> {
        let (kind, body) = (at.resource.kind, conditions.body());
        let method = Method::DELETE;
        let call = Call {
            method,
            path: at.url_path(),
            accept: JSON,
            body: body.as_ref(),
            kind,
            operation: "delete",
        };
        match self.send(&call).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            Err(CallFailure::Api { code: 409, .. }) => Err(Problem::Lost),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Sends the request, up to [`TRIES`] times. A repeated write is safe: a creation finds the
    /// object that the first attempt created, and any other write names the revision or the uid of
    /// the object.
    async fn send(&self, call: &Call<'_>) -> Result<Value, CallFailure> {
        let mut failures = 0;
        loop {
            if call.method != Method::GET && !self.elected.holds() {
                return Err(CallFailure::MayNotWrite);
            }
            let failure = match call.build() {
                Ok(request) => match self.client.request::<Value>(request).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) => CallFailure::of(error),
                },
                Err(error) => return Err(CallFailure::Other(error.to_string())),
            };
            failures += 1;
            if failures == TRIES || !failure.is_transient() {
                return Err(failure);
            }
            if let Some(retries) = &self.retries {
                retries
                    .with_label_values(&[call.kind, call.operation])
                    .inc();
            }
            sleep(PAUSES.pause(failures, fastrand::f64())).await;
        }
    }
}

/// Returns the response if it is the requested object. A proxy in front of the API server may send
/// something else.
fn checked(at: &Location, answer: Value) -> Result<Value, Problem> {
    if at.is_of(&answer) {
        return Ok(answer);
    }
    Err(Problem::Transient(format!(
        "the response of the API server is not {} {}",
        at.resource.kind, at.name
    )))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
