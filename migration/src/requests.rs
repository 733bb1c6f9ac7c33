//! [`Requests`]: the requests of the migration to the API server, with retries and the right to
//! write.
//!
//! Objects are JSON values, because the migration copies kinds and fields that no type models.

mod failure;

use std::fmt::Display;
use std::time::Duration;

use datastore::kubernetes::{ListPage, ObjectRequest};
use kube_controllers::leader::Leadership;
use libcalico::backoff::{Backoff, Jitter};
use libcalico::kubernetes::{ApiVerb, ContinueTokens, Location, Preconditions, Resource};
use prometheus::IntCounterVec;
use serde_json::Value;
use tokio::time::sleep;

use self::failure::CallFailure;

/// Number of objects in a page of a list. An object of a tenant may have 1.5 MB, and a page is in
/// memory as a whole.
const PAGE: &str = "100";
/// Number of attempts at a request that fails temporarily (MIG-68).
const TRIES: u32 = 5;
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
    jitter: Jitter::Half,
};

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
        let list = ObjectRequest::list(of, None);
        let list = if metadata_only {
            list.metadata_only()
        } else {
            list
        };
        self.pages_of(of, list, on_page).await
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
        let list = ObjectRequest::list(of, Some(namespace))
            .query("labelSelector", labels)
            .metadata_only();
        let mut found = Vec::new();
        self.pages_of(of, list, async |page: Vec<Value>| {
            found.extend(
                page.iter()
                    .filter_map(|object| project(&object["metadata"])),
            );
            Ok(())
        })
        .await?;
        Ok(found)
    }

    async fn pages_of(
        &self,
        of: &Resource,
        list: ObjectRequest,
        mut on_page: impl AsyncFnMut(Vec<Value>) -> Result<(), Problem>,
    ) -> Result<String, Problem> {
        let list = list.query("limit", PAGE);
        let (mut token, mut tokens) = (String::new(), ContinueTokens::default());
        loop {
            let what = format!("the list of {}", of.plural);
            let page = self
                .page(&list.clone().query("continue", &token), &what)
                .await?;
            on_page(page.items).await?;
            let next = tokens.record(page.next);
            match next.map_err(|error| unreadable(&what, &error))? {
                Some(next) => token = next,
                None => return Ok(page.revision),
            }
        }
    }

    /// Returns the object, or `None` if it or its kind is missing.
    pub(super) async fn get(&self, at: &Location) -> Result<Option<Value>, Problem> {
        match self.send(&ObjectRequest::get(at)).await {
            Ok(found) => checked(at, found).map(Some),
            Err(failure) if failure.is_missing() => Ok(None),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Does the same as [`Requests::get`] by a list. The role of the migration lists all kinds in
    /// v1, and gets few.
    pub(super) async fn get_by_list(&self, at: &Location) -> Result<Option<Value>, Problem> {
        let what = format!("{} {} from a list", at.resource.kind, at.name);
        let page = self.page(&ObjectRequest::list_by_name(at), &what).await?;
        page.items
            .into_iter()
            .next()
            .map(|found| checked(at, found))
            .transpose()
    }

    /// Returns the response to a GET of `path`, a path of the API server's discovery, or of an
    /// object whose kind no [`Resource`] describes; `None` if the API server does not serve the
    /// path.
    pub(super) async fn discover(&self, path: &str) -> Result<Option<Value>, Problem> {
        match self.send(&ObjectRequest::path(path)).await {
            Ok(found) => Ok(Some(found)),
            // The response to an unknown path is text, not a Status.
            Err(failure) if failure.code() == Some(404) => Ok(None),
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
        self.post(at, ObjectRequest::create(at, body), dry).await
    }

    /// Does the same as [`Requests::create`] for a copy, and creates no copy that would lack a
    /// field of its source.
    pub(super) async fn create_copy(
        &self,
        at: &Location,
        body: &Value,
        dry: bool,
    ) -> Result<Created, Problem> {
        self.post(at, strict(ObjectRequest::create(at, body)), dry)
            .await
    }

    async fn post(
        &self,
        at: &Location,
        request: ObjectRequest,
        dry: bool,
    ) -> Result<Created, Problem> {
        let request = if dry { trial(request) } else { request };
        match self.send(&request).await {
            Ok(made) => checked(at, made).map(Created::New),
            Err(failure) if failure.is_existing() => Ok(Created::Exists),
            Err(failure) if failure.code() == Some(409) => Err(Problem::Transient(failure.text())),
            Err(failure) => match failure.problem() {
                Problem::Refused { text, .. } => Ok(Created::Refused(text)),
                problem => Err(problem),
            },
        }
    }

    /// Replaces the object, which must still have the resourceVersion in `body`. Returns the stored
    /// object.
    pub(super) async fn replace(&self, at: &Location, body: &Value) -> Result<Value, Problem> {
        self.put(at, ObjectRequest::replace(at, body)).await
    }

    /// Does the same as [`Requests::replace`] for a copy, and stores no copy that would lack a
    /// field of its source.
    pub(super) async fn replace_copy(&self, at: &Location, body: &Value) -> Result<Value, Problem> {
        self.put(at, strict(ObjectRequest::replace(at, body))).await
    }

    /// Lets the API server check a replacement, and stores nothing. Returns the object that would
    /// be stored.
    pub(super) async fn check_replacement(
        &self,
        at: &Location,
        body: &Value,
    ) -> Result<Value, Problem> {
        self.put(at, trial(ObjectRequest::replace(at, body))).await
    }

    /// Replaces the status of the object, which must still have the resourceVersion in `body`.
    /// Returns the stored object.
    pub(super) async fn replace_status(
        &self,
        at: &Location,
        body: &Value,
    ) -> Result<Value, Problem> {
        self.put(at, ObjectRequest::replace_status(at, body)).await
    }

    async fn put(&self, at: &Location, request: ObjectRequest) -> Result<Value, Problem> {
        match self.send(&request).await {
            Ok(stored) => checked(at, stored),
            Err(failure) if matches!(failure.code(), Some(404 | 409)) => Err(Problem::Lost),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Deletes the object if it fulfils the conditions. A missing object is a success.
    pub(super) async fn delete(
        &self,
        at: &Location,
        conditions: &Preconditions,
    ) -> Result<(), Problem> {
        match self.send(&ObjectRequest::delete(at, conditions)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            Err(failure) if failure.code() == Some(409) => Err(Problem::Lost),
            Err(failure) => Err(failure.problem()),
        }
    }

    /// Sends the request, up to [`TRIES`] times. A repeated write is safe: a creation finds the
    /// object that the first attempt created, and any other write names the revision or the uid of
    /// the object.
    async fn send(&self, request: &ObjectRequest) -> Result<Value, CallFailure> {
        let is_read = matches!(request.verb(), ApiVerb::Get | ApiVerb::List);
        let mut failures = 0;
        loop {
            if !is_read && !self.elected.holds() {
                return Err(CallFailure::MayNotWrite);
            }
            let failure = match request.send(&self.client).await {
                Ok(answer) => return Ok(answer),
                Err(error) => CallFailure::Failed(error),
            };
            failures += 1;
            if failures == TRIES || !failure.is_transient() {
                return Err(failure);
            }
            if let Some(retries) = &self.retries {
                let kind = request.kind().unwrap_or("APIGroup");
                retries
                    .with_label_values(&[kind, request.verb().as_str()])
                    .inc();
            }
            sleep(PAUSES.pause(failures, fastrand::f64())).await;
        }
    }

    /// Reads a page of a list. `what` names the list in an error.
    async fn page(&self, list: &ObjectRequest, what: &str) -> Result<ListPage<Value>, Problem> {
        let answer = self.send(list).await.map_err(CallFailure::problem)?;
        list.page_of(answer)
            .map_err(|error| unreadable(what, &error))
    }
}

/// Lets the API server refuse an object with a field that its definition lacks. Otherwise the API
/// server drops the field.
fn strict(write: ObjectRequest) -> ObjectRequest {
    write.query("fieldValidation", "Strict")
}

/// Lets the API server check the write, and store nothing.
fn trial(write: ObjectRequest) -> ObjectRequest {
    write.query("dryRun", "All")
}

fn unreadable(what: &str, reason: &dyn Display) -> Problem {
    Problem::Transient(format!("cannot read {what}: {reason}"))
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

#[cfg(test)]
mod tests;
