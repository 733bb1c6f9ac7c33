//! [`ApiSource`]: the source of a watch on the API server. [`Decode`]: the decoder of its objects.

use std::fmt::Display;
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Request;
use hyper::header::ACCEPT;
use kube::client::Body;
use libcalico::kubernetes::{ContinueTokens, escaped};
use serde_json::value::RawValue;

use super::events::{Event, Events};
use crate::error::describe_error_chain;
use crate::kubernetes::access_error::AccessError;
use crate::kubernetes::client::OwnDeadline;
use crate::kubernetes::error::{ApiStatusError, retry_after};
use crate::kubernetes::media_type::{JSON, METADATA, METADATA_LIST};
use crate::kubernetes::objects::{List, ListPage};
use crate::watch::{NextPage, ObjectChange, Page, PageSize, WatchFailure, WatchSource, WatchStep};

/// Time in seconds after which the server is asked to end a watch.
const WATCH_SECONDS: u64 = 290;
/// Upper limit of the delay in a `Retry-After` header.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A function that returns the client to use. The argument is true if the client must read its
/// credentials again.
pub(in crate::kubernetes) type ClientProvider =
    Box<dyn FnMut(bool) -> BoxFuture<'static, Result<kube::Client, AccessError>> + Send>;

/// A decoder of the objects of one kind, from the JSON of one object.
pub trait Decode: Send + 'static {
    /// The value that the watch delivers for an object.
    type Value: Send + 'static;
    /// The key of an object.
    type Key: Send + 'static;

    /// Returns the kind, for logs.
    fn kind(&self) -> &'static str;

    /// Returns the kind that the API server uses in a list of these objects, without the suffix
    /// `List`.
    fn object_kind(&self) -> &'static str {
        self.kind()
    }

    /// Returns true if the metadata of an object is enough to decode it. The API server then sends
    /// no more, unless it does not know the media type.
    fn is_metadata_only(&self) -> bool {
        false
    }

    /// Returns the URL path of the list of all objects.
    fn collection(&mut self) -> impl Future<Output = Result<String, CollectionError>> + Send;

    /// Decodes an object of a list, or of an event that adds or changes the object. Returns `None`
    /// for an object that does not belong to the watch; after an event, the object then counts as
    /// deleted if it has a key.
    fn decode(&mut self, object: &str) -> Option<ObjectChange<Self::Value, Self::Key>>;

    /// Returns the key of an object, even if other parts of the object are invalid. Returns `None`
    /// if the object has no key of the kind.
    fn decode_key(&mut self, object: &str) -> Option<Self::Key>;

    /// Handles the server's response that the collection does not exist.
    fn handle_missing(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// The reason why the URL path of a kind cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CollectionError(pub String);

/// The source of a watch of one kind, whose objects `D` decodes.
pub struct ApiSource<D> {
    client_provider: ClientProvider,
    decoder: D,
    page: PageSize,
    /// The tokens of the current list.
    tokens: ContinueTokens,
    events: Option<Events>,
    must_renew_credentials: bool,
}

impl<D: Decode> ApiSource<D> {
    /// Creates a source that uses `client`.
    pub fn new(client: kube::Client, decoder: D) -> Self {
        let provider: ClientProvider = Box::new(move |_| {
            let client = client.clone();
            Box::pin(async move { Ok(client) })
        });
        Self::with_provider(provider, decoder)
    }

    pub(in crate::kubernetes) fn with_provider(
        client_provider: ClientProvider,
        decoder: D,
    ) -> Self {
        let (page, tokens) = (PageSize::default(), ContinueTokens::default());
        ApiSource {
            client_provider,
            decoder,
            page,
            tokens,
            events: None,
            must_renew_credentials: false,
        }
    }

    async fn collection(&mut self) -> Result<String, WatchFailure> {
        self.decoder
            .collection()
            .await
            .map_err(|error| WatchFailure::lost(error.to_string()))
    }

    async fn send(&mut self, target: &str, accept: &str) -> Result<Body, WatchFailure> {
        let renew = std::mem::take(&mut self.must_renew_credentials);
        let client = (self.client_provider)(renew)
            .await
            .map_err(|error| WatchFailure::lost(error.to_string()))?;
        let (parts, body) = client.send(get(target, accept)?).await?.into_parts();
        if parts.status.is_success() {
            return Ok(body);
        }
        let bytes = body.collect_bytes().await?;
        Err(self
            .classify_refusal(&ApiStatusError::parse(
                parts.status,
                &bytes,
                retry_after(&parts.headers),
            ))
            .await)
    }

    /// Returns `metadata` if the metadata of the objects is enough, and else the media type of whole
    /// objects.
    fn accept(&self, metadata: &'static str) -> &'static str {
        if self.decoder.is_metadata_only() {
            metadata
        } else {
            JSON
        }
    }

    /// Returns true if `kind` is that of the requested list.
    fn is_expected(&self, kind: &str) -> bool {
        kind.strip_suffix("List") == Some(self.decoder.object_kind())
            || self.decoder.is_metadata_only() && kind == "PartialObjectMetadataList"
    }

    async fn classify_refusal(&mut self, refusal: &ApiStatusError) -> WatchFailure {
        let reason = refusal.to_string();
        let retry_after = refusal.retry_after.map(|wait| wait.min(MAX_RETRY_AFTER));
        match refusal.status.code {
            401 => {
                self.must_renew_credentials = true;
                WatchFailure::lost(reason)
            }
            404 => {
                self.decoder.handle_missing().await;
                WatchFailure::Missing(reason)
            }
            410 => WatchFailure::Expired(reason),
            429 | 500.. => WatchFailure::Lost {
                reason,
                retry_after,
            },
            _ => WatchFailure::Refused(reason),
        }
    }
}

impl<D: Decode> WatchSource for ApiSource<D> {
    type Value = D::Value;
    type Key = D::Key;
    type Token = String;
    type Position = String;

    /// Slightly more than the time after which the server ends a watch.
    const LONGEST_SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 10);

    fn kind(&self) -> &'static str {
        self.decoder.kind()
    }

    async fn list(&mut self, page: Option<String>) -> Result<Page<Self>, WatchFailure> {
        self.events = None;
        let collection = self.collection().await?;
        let mut target = format!("{collection}?limit={}", self.page.get());
        if let Some(token) = &page {
            target.push_str(&format!("&continue={}", escaped(token)));
        }
        let accept = self.accept(METADATA_LIST);
        let body = self.send(&target, accept).await?.collect_bytes().await?;
        let lost =
            |reason: &dyn Display| WatchFailure::lost(format!("cannot read the list: {reason}"));
        let list: List<&RawValue> = serde_json::from_slice(&body).map_err(|error| lost(&error))?;
        let ListPage {
            items,
            next: token,
            revision,
        } = list
            .page(|kind| self.is_expected(kind))
            .map_err(|error| lost(&error))?;
        self.page.adjust(items.len(), body.len());
        let objects = items
            .into_iter()
            .filter_map(|item| self.decoder.decode(item.get()))
            .collect();
        if page.is_none() {
            self.tokens = ContinueTokens::default();
        }
        let token = self
            .tokens
            .record(token)
            .map_err(|error| WatchFailure::lost(error.to_string()))?;
        let next = token.map_or(NextPage::Watch(revision), NextPage::Page);
        Ok(Page { objects, next })
    }

    async fn open(&mut self, from: &String) -> Result<(), WatchFailure> {
        self.events = None;
        let collection = self.collection().await?;
        let target = format!(
            "{collection}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            escaped(from)
        );
        let accept = self.accept(METADATA);
        self.events = Some(Events::new(self.send(&target, accept).await?));
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<WatchStep<Self>>, WatchFailure> {
        let Some(events) = &mut self.events else {
            return Ok(None);
        };
        let Some(event) = events.next().await? else {
            return Ok(None);
        };
        let (change, position) = match event {
            Event::Upsert { object, position } => {
                let change = self
                    .decoder
                    .decode(object)
                    .or_else(|| self.decoder.decode_key(object).map(ObjectChange::Delete));
                (change, position)
            }
            Event::Delete { object, position } => (
                self.decoder.decode_key(object).map(ObjectChange::Delete),
                position,
            ),
            Event::Bookmark { position } => (None, position),
            Event::Error(refusal) => return Err(self.classify_refusal(&refusal).await),
        };
        Ok(Some(WatchStep {
            changes: change.into_iter().collect(),
            position,
        }))
    }
}

fn get(target: &str, accept: &str) -> Result<Request<Body>, WatchFailure> {
    Request::get(target)
        .header(ACCEPT, accept)
        .extension(OwnDeadline)
        .body(Body::empty())
        .map_err(|e| WatchFailure::Refused(describe_error_chain(&e)))
}
