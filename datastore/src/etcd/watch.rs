//! [`EtcdSource`]: the pairs of one kind, listed page by page at one revision and then watched from
//! that revision.

use std::marker::PhantomData;
use std::time::Duration;

use etcd_client::{Client, EventType, KeyValue, WatchOptions, WatchResponse, WatchStream};
use libcalico::store::{Entry, Kind, StoreError};
use tokio::time::Instant;
use tonic::Status;

use super::connection::{Connection, LoginNumber, MAX_RESPONSE_BYTES};
use super::error::{EtcdFailure, await_response, is_token_refusal};
use super::txn;
use crate::watch::{NextPage, ObjectChange, Page, PageSize, WatchFailure, WatchSource, WatchStep};

/// The source of a watch of one kind: lists and watches the pairs below `prefix`.
pub struct EtcdSource<K> {
    connection: Connection,
    deadline: Duration,
    prefix: String,
    page: PageSize,
    watch: Option<WatchStream>,
    /// The login of the last request.
    login: LoginNumber,
    kind: PhantomData<fn() -> K>,
}

/// The position of a page in a list.
#[derive(Debug, Clone)]
pub struct PageToken {
    /// All pages are read at this revision, as one snapshot.
    revision: i64,
    /// The last path of the previous page.
    after: Vec<u8>,
}

impl<K> EtcdSource<K> {
    pub(super) fn new(connection: Connection, deadline: Duration, prefix: String) -> Self {
        EtcdSource {
            connection,
            deadline,
            prefix,
            page: PageSize::default(),
            watch: None,
            login: LoginNumber::default(),
            kind: PhantomData,
        }
    }

    async fn client(&mut self, deadline: Instant) -> Result<Client, WatchFailure> {
        let (client, login) = self
            .connection
            .get(deadline)
            .await
            .map_err(|error| watch_failure(&error))?;
        self.login = login;
        Ok(client)
    }

    /// Ends the watch, and switches to another member if the connection failed. The next request
    /// logs in again if etcd has refused the token.
    async fn end_watch(&mut self, failure: &EtcdFailure) -> WatchFailure {
        self.watch = None;
        let error = self
            .connection
            .handle_failure(failure, false, self.login)
            .await;
        match failure {
            EtcdFailure::Status(status) if status.message().contains("has been compacted") => {
                WatchFailure::Expired(status.message().into())
            }
            _ if failure.token_refusal().is_some() && self.connection.has_credentials() => {
                WatchFailure::lost(error.to_string())
            }
            _ => watch_failure(&error),
        }
    }
}

fn watch_failure(error: &StoreError) -> WatchFailure {
    match error {
        StoreError::Unavailable { .. } => WatchFailure::lost(error.to_string()),
        error => WatchFailure::Refused(error.to_string()),
    }
}

impl<K: Kind> WatchSource for EtcdSource<K> {
    type Value = Entry<K>;
    type Key = K::Key;
    type Token = PageToken;
    type Position = i64;

    /// etcd reports progress every 11 minutes at most, but skips a report after an event. Pings
    /// detect a dead connection earlier.
    const LONGEST_SILENCE: Duration = Duration::from_secs(25 * 60);

    fn kind(&self) -> &'static str {
        K::KIND
    }

    async fn list(&mut self, page: Option<PageToken>) -> Result<Page<Self>, WatchFailure> {
        let deadline = Instant::now() + self.deadline;
        let client = self.client(deadline).await?;
        let mut client = client
            .kv_client()
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        let after = page.as_ref().map(|token| &*token.after);
        let (begin, mut options) = txn::page_range(&self.prefix, after, self.page.get());
        if let Some(PageToken { revision, .. }) = page {
            options = options.with_revision(revision);
        }
        let mut answer =
            match await_response(deadline, self.deadline, client.get(begin, Some(options))).await {
                Ok(answer) => answer,
                Err(failure) => return Err(self.end_watch(&failure).await),
            };
        self.connection.record_response().await;
        let response_revision = answer.header().map(etcd_client::ResponseHeader::revision);
        let revision = page.map(|token| token.revision).or(response_revision);
        let revision = revision.ok_or_else(|| WatchFailure::lost("etcd's answer has no header"))?;
        let has_more = answer.more();
        let pairs = answer.take_kvs();
        self.page.adjust(pairs.len(), txn::byte_size(&pairs));
        let next = match pairs.last() {
            Some(last) if has_more => NextPage::Page(PageToken {
                revision,
                after: last.key().to_vec(),
            }),
            _ => NextPage::Watch(revision),
        };
        Ok(Page {
            objects: pairs.into_iter().filter_map(decode_pair::<K>).collect(),
            next,
        })
    }

    async fn open(&mut self, from: &i64) -> Result<(), WatchFailure> {
        let deadline = Instant::now() + self.deadline;
        let client = self.client(deadline).await?;
        let mut client = client
            .watch_client()
            .max_decoding_message_size(MAX_RESPONSE_BYTES);
        let options = WatchOptions::new()
            .with_range(txn::range_end(&self.prefix))
            .with_start_revision(from + 1)
            .with_progress_notify();
        let watch = await_response(
            deadline,
            self.deadline,
            client.watch(self.prefix.as_str(), Some(options)),
        )
        .await;
        match watch {
            Ok(watch) => self.watch = Some(watch),
            Err(failure) => return Err(self.end_watch(&failure).await),
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Option<WatchStep<Self>>, WatchFailure> {
        loop {
            let Some(watch) = &mut self.watch else {
                return Ok(None);
            };
            let response = match watch.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.end_watch(&EtcdFailure::from(error)).await),
            };
            self.connection.record_response().await;
            if response.canceled() {
                self.watch = None;
                if is_token_refusal(response.cancel_reason()) {
                    let refusal = Status::unauthenticated(response.cancel_reason());
                    return Err(self.end_watch(&EtcdFailure::Status(refusal)).await);
                }
                return Err(cancellation(&response));
            }
            // The first response only reports that the watch is open.
            if response.created() {
                continue;
            }
            let Some(position) = response.header().map(etcd_client::ResponseHeader::revision)
            else {
                continue;
            };
            let changes = response.events().iter().filter_map(|event| {
                let pair = event.kv()?;
                match event.event_type() {
                    EventType::Put => decode_pair::<K>(pair.clone()),
                    EventType::Delete => {
                        Some(ObjectChange::Delete(K::parse_path(pair.key_str().ok()?)?))
                    }
                }
            });
            // etcd sends all events of a revision together, but further events up to the header's
            // revision may follow. The position is therefore that of the last event, if there is
            // one.
            let last = response
                .events()
                .last()
                .and_then(|event| event.kv())
                .map(KeyValue::mod_revision);
            return Ok(Some(WatchStep {
                changes: changes.collect(),
                position: last.unwrap_or(position),
            }));
        }
    }
}

fn decode_pair<K: Kind>(pair: KeyValue) -> Option<ObjectChange<Entry<K>, K::Key>> {
    let raw = txn::raw_entry(pair)?;
    ObjectChange::decode(&raw, &raw.path)
}

fn cancellation(response: &WatchResponse) -> WatchFailure {
    let reason = response.cancel_reason();
    if response.compact_revision() != 0 {
        return WatchFailure::Expired(format!(
            "compacted up to revision {}",
            response.compact_revision()
        ));
    }
    let message = format!("etcd canceled the watch: {reason}");
    let is_transient = reason.is_empty() || reason.contains("no leader");
    if is_transient {
        WatchFailure::lost(message)
    } else {
        WatchFailure::Refused(message)
    }
}
