//! [`ApiSource`]: the objects of one kind on the API server, listed page by page and then watched.
//!
//! A page or an event is first split into the texts of its objects, and each text is decoded separately. Fields that
//! are not needed are never decoded, and an unreadable object does not affect others.

mod calico;
mod decode;
mod events;

use std::borrow::Cow;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Request;
use hyper::header::ACCEPT;
use kube::client::Body;
use libcalico::kubernetes::escaped;
use serde::Deserialize;
use serde_json::value::RawValue;

pub use calico::CalicoObjects;
pub use decode::Decode;
use events::{Event, Events};

use super::client::{OwnDeadline, retry_after};
use super::failure::{Failure, Refusal};
use crate::error_chain::chain;
use crate::watch::{Change, Next, Page, PageSize, Source, Step, WatchFailure};

/// Time after which the server is asked to end a watch.
const WATCH_SECONDS: u64 = 290;
/// Upper limit of the `Retry-After` header.
const LONGEST_ADVICE: Duration = Duration::from_secs(60);

/// Returns the client to use. The argument is true if the client must read its credentials again.
pub(super) type Clients = Box<dyn FnMut(bool) -> BoxFuture<'static, Result<kube::Client, String>> + Send>;

/// The objects of one kind, as `D` decodes them.
pub struct ApiSource<D> {
    clients: Clients,
    decode: D,
    page: PageSize,
    events: Option<Events>,
    stale_login: bool,
}

impl<D: Decode> ApiSource<D> {
    /// Creates a source that uses `client`.
    pub fn new(client: kube::Client, decode: D) -> Self {
        let clients: Clients = Box::new(move |_| {
            let client = client.clone();
            Box::pin(async move { Ok(client) })
        });
        Self::with_clients(clients, decode)
    }

    pub(super) fn with_clients(clients: Clients, decode: D) -> Self {
        ApiSource { clients, decode, page: PageSize::default(), events: None, stale_login: false }
    }

    async fn client(&mut self) -> Result<kube::Client, WatchFailure> {
        let renew = std::mem::take(&mut self.stale_login);
        (self.clients)(renew).await.map_err(WatchFailure::lost)
    }

    async fn fetch(&mut self, target: &str) -> Result<hyper::body::Bytes, WatchFailure> {
        let client = self.client().await?;
        let answer = client.send(get(target)?).await.map_err(|error| lost(error.into()))?;
        let (parts, body) = answer.into_parts();
        let bytes = body.collect_bytes().await.map_err(|error| lost(error.into()))?;
        match parts.status.is_success() {
            true => Ok(bytes),
            false => Err(self.refused(&Refusal::parse(parts.status, &bytes, retry_after(&parts.headers))).await),
        }
    }

    async fn refused(&mut self, refusal: &Refusal) -> WatchFailure {
        let reason = refusal.to_string();
        match refusal.status.code {
            401 => {
                self.stale_login = true;
                WatchFailure::lost(reason)
            }
            404 => {
                self.decode.is_missing().await;
                WatchFailure::Missing(reason)
            }
            410 => WatchFailure::Expired(reason),
            429 | 500.. => {
                WatchFailure::Lost { reason, retry_after: refusal.retry_after.map(|wait| wait.min(LONGEST_ADVICE)) }
            }
            _ => WatchFailure::Refused(reason),
        }
    }
}

impl<D: Decode> Source for ApiSource<D> {
    type Value = D::Value;
    type Key = D::Key;
    type Token = String;
    /// A `resourceVersion`.
    type Position = String;

    /// Slightly more than the time after which the server ends a watch.
    const LONGEST_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 10);

    fn kind(&self) -> &'static str {
        self.decode.kind()
    }

    async fn list(&mut self, page: Option<String>) -> Result<Page<Self>, WatchFailure> {
        self.events = None;
        let collection = self.decode.collection().await.map_err(WatchFailure::lost)?;
        let mut target = format!("{collection}?limit={}", self.page.get());
        if let Some(token) = &page {
            target.push_str(&format!("&continue={}", escaped(token)));
        }
        let body = self.fetch(&target).await?;
        let unreadable = |e: serde_json::Error| WatchFailure::lost(format!("the list cannot be read: {e}"));
        let list: List<'_> = serde_json::from_slice(&body).map_err(unreadable)?;
        if list.kind.strip_suffix("List") != Some(self.decode.object_kind()) {
            return Err(WatchFailure::lost(format!(
                "the answer is a {:?}, not the list that was asked for",
                list.kind
            )));
        }
        let items = list.items.unwrap_or_default();
        self.page.learn(items.len(), body.len());
        let mut objects = Vec::with_capacity(items.len());
        for item in items {
            objects.extend(self.decode.put(item.get()));
        }
        let ListMetadata { token, resource_version } = list.metadata;
        Ok(Page {
            objects,
            next: match token.filter(|token| !token.is_empty()) {
                Some(token) => Next::Page(token),
                None => Next::Watch(resource_version),
            },
        })
    }

    async fn open(&mut self, from: &String) -> Result<(), WatchFailure> {
        self.events = None;
        let collection = self.decode.collection().await.map_err(WatchFailure::lost)?;
        let target = format!(
            "{collection}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            escaped(from)
        );
        let client = self.client().await?;
        let answer = client.send(get(&target)?).await.map_err(|error| lost(error.into()))?;
        let (parts, body) = answer.into_parts();
        if parts.status.is_success() {
            self.events = Some(Events::new(body));
            return Ok(());
        }
        let bytes = body.collect_bytes().await.map_err(|error| lost(error.into()))?;
        Err(self.refused(&Refusal::parse(parts.status, &bytes, retry_after(&parts.headers))).await)
    }

    async fn next(&mut self) -> Result<Option<Step<Self>>, WatchFailure> {
        let Some(events) = &mut self.events else { return Ok(None) };
        let Some(event) = events.next().await? else { return Ok(None) };
        let (changes, position) = match event {
            Event::Put { object, position } => {
                let change = self.decode.put(object).or_else(|| self.decode.key(object).map(Change::Gone));
                (change.into_iter().collect(), position)
            }
            Event::Gone { object, position } => {
                (self.decode.key(object).map(Change::Gone).into_iter().collect(), position)
            }
            Event::Bookmark { position } => (Vec::new(), position),
            Event::Error(refusal) => return Err(self.refused(&refusal).await),
        };
        Ok(Some(Step { changes, position }))
    }
}

/// A list, split into its objects.
#[derive(Deserialize)]
struct List<'a> {
    kind: Cow<'a, str>,
    metadata: ListMetadata,
    /// The key is required. Go encodes an empty list as `null`.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(rename = "continue", default)]
    token: Option<String>,
    #[serde(default)]
    resource_version: String,
}

fn get(target: &str) -> Result<Request<Body>, WatchFailure> {
    Request::get(target)
        .header(ACCEPT, "application/json")
        .extension(OwnDeadline)
        .body(Body::empty())
        .map_err(|e| WatchFailure::Refused(chain(&e)))
}

fn lost(failure: Failure) -> WatchFailure {
    WatchFailure::lost(failure.to_string())
}

#[cfg(test)]
mod tests;
