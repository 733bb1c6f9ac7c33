//! [`Watcher`]: drives a [`WatchSource`] forever.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::source::{
    NextPage, ObjectChange, PAGE_DEADLINE, Page, WatchFailure, WatchSource, WatchStep,
};
use super::stats::StatsHandle;
use crate::backoff::Backoff;

/// A server that asks for a longer pause gets one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Minimum lifetime of a watch. A watch that ends earlier counts as a failure.
const MIN_WATCH_LIFETIME: Duration = Duration::from_millis(250);
/// Number of rejections, without a message in between, after which the watcher lists again
/// (KC-409).
const MAX_REFUSALS: u32 = 5;
/// Shortest and longest pause between requests for a kind that the server does not have. The pause
/// is as long as the kind has been missing: a kind of a cluster that is being installed is found
/// soon, and one that a cluster never gets, such as those of KubeVirt, causes few requests.
const MISSING_KIND_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_MISSING_KIND_PAUSE: Duration = Duration::from_secs(60);
/// Time for which a known kind must be missing before its objects count as deleted. A server that
/// is starting may not serve all kinds yet.
const MISSING_CONFIRMATION_TIME: Duration = Duration::from_secs(30);

/// An event of a watch. An object that is not delivered between [`WatchEvent::ListStart`] and
/// [`WatchEvent::ListEnd`] no longer exists or cannot be read. A list may restart before it is
/// complete.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent<V, K> {
    /// A full list begins.
    ListStart,
    /// The object exists. It is new, changed, or part of a list.
    Upsert(V),
    /// The object no longer exists.
    Delete(K),
    /// The list is complete.
    ListEnd,
}

/// A watch of one kind: the objects, and then their changes, without end.
pub struct Watcher<S: WatchSource> {
    source: S,
    state: WatcherState<S>,
    pending: VecDeque<WatchEvent<S::Value, S::Key>>,
    backoff: Backoff,
    refusals: u32,
    /// The instant since which the server has not had the kind; `None` while it has the kind.
    missing_since: Option<Instant>,
    /// Names of the unreadable objects, each of which is logged once per list.
    unreadable: HashSet<String>,
    has_warned: bool,
    stats: StatsHandle,
}

enum WatcherState<S: WatchSource> {
    /// The next request is for a page. `is_started` is true if [`WatchEvent::ListStart`] has been
    /// delivered.
    Listing {
        page: Option<S::Token>,
        is_started: bool,
    },
    /// The next request opens a watch from this position.
    Listed(S::Position),
    /// The watch is open.
    Watching {
        position: S::Position,
        opened: Instant,
    },
}

impl<S: WatchSource> Watcher<S> {
    /// Creates a watch. Sends no request.
    pub fn new(source: S) -> Self {
        Watcher {
            source,
            state: WatcherState::Listing {
                page: None,
                is_started: false,
            },
            pending: VecDeque::new(),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            refusals: 0,
            missing_since: None,
            unreadable: HashSet::new(),
            has_warned: false,
            stats: StatsHandle::default(),
        }
    }

    /// Returns a handle to the statistics of the watch.
    pub fn stats(&self) -> StatsHandle {
        self.stats.clone()
    }

    /// Returns the next event, and waits until there is one. Retries all failures.
    pub async fn next(&mut self) -> WatchEvent<S::Value, S::Key> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return event;
            }
            match &self.state {
                WatcherState::Listing { page, is_started } => {
                    self.list(page.clone(), *is_started).await
                }
                WatcherState::Listed(position) => self.open(position.clone()).await,
                WatcherState::Watching { position, opened } => {
                    self.watch(position.clone(), *opened).await
                }
            }
        }
    }

    async fn list(&mut self, page: Option<S::Token>, is_started: bool) {
        match self.source.list_in_time(page).await {
            Ok(Page { objects, next }) => {
                self.record_response();
                self.missing_since = None;
                if !is_started {
                    self.start_list();
                }
                objects.into_iter().for_each(|object| self.push(object));
                self.state = match next {
                    NextPage::Page(token) => WatcherState::Listing {
                        page: Some(token),
                        is_started: true,
                    },
                    NextPage::Watch(position) => {
                        self.end_list(false);
                        WatcherState::Listed(position)
                    }
                };
            }
            Err(WatchFailure::Missing(reason)) => self.handle_missing(&reason).await,
            Err(failure) => {
                if matches!(failure, WatchFailure::Expired(_)) {
                    self.relist();
                }
                self.stats.update(|report| {
                    report.is_refused = matches!(failure, WatchFailure::Refused(_))
                });
                self.pause(&failure).await;
            }
        }
    }

    async fn open(&mut self, position: S::Position) {
        let late = |_| {
            Err(WatchFailure::lost(format!(
                "no answer to the watch request within {PAGE_DEADLINE:?}"
            )))
        };
        match timeout(PAGE_DEADLINE, self.source.open(&position))
            .await
            .unwrap_or_else(late)
        {
            Ok(()) => {
                self.stats.update(|report| report.watches += 1);
                self.state = WatcherState::Watching {
                    position,
                    opened: Instant::now(),
                };
            }
            Err(failure) => self.resume(position, failure).await,
        }
    }

    async fn watch(&mut self, position: S::Position, opened: Instant) {
        let Ok(step) = timeout(S::LONGEST_SILENCE, self.source.next()).await else {
            // The watch may be idle. If the connection is broken, the next open fails.
            tracing::debug!(
                kind = self.source.kind(), silence = ?S::LONGEST_SILENCE,
                "no message from the server; opening the watch again"
            );
            self.state = WatcherState::Listed(position);
            return;
        };
        match step {
            Ok(Some(WatchStep { changes, position })) => {
                self.record_response();
                self.refusals = 0;
                changes.into_iter().for_each(|change| self.push(change));
                self.state = WatcherState::Watching { position, opened };
            }
            // Servers end watches every few minutes.
            Ok(None) if opened.elapsed() >= MIN_WATCH_LIFETIME => {
                self.record_response();
                self.state = WatcherState::Listed(position);
            }
            Ok(None) => {
                self.resume(
                    position,
                    WatchFailure::lost("the server ended the watch immediately"),
                )
                .await
            }
            Err(failure) => {
                if opened.elapsed() >= MIN_WATCH_LIFETIME {
                    self.backoff.reset();
                }
                self.resume(position, failure).await;
            }
        }
    }

    /// Pauses, so that the next request opens the watch again from `position` or, if that may not
    /// succeed, lists again.
    async fn resume(&mut self, position: S::Position, failure: WatchFailure) {
        self.state = WatcherState::Listed(position);
        match failure {
            WatchFailure::Refused(_) => self.refusals += 1,
            WatchFailure::Expired(_) | WatchFailure::Missing(_) => self.refusals = MAX_REFUSALS,
            WatchFailure::Lost { .. } => {}
        }
        if self.refusals >= MAX_REFUSALS {
            self.relist();
        }
        // A single expired position causes only the shortest pause before the list.
        self.pause(&failure).await;
    }

    fn relist(&mut self) {
        self.refusals = 0;
        self.state = WatcherState::Listing {
            page: None,
            is_started: false,
        };
    }

    fn start_list(&mut self) {
        self.stats.update(|report| report.lists += 1);
        self.unreadable.clear();
        self.pending.push_back(WatchEvent::ListStart);
    }

    fn end_list(&mut self, missing: bool) {
        self.stats
            .update(|report| (report.is_synced, report.is_missing) = (true, missing));
        self.pending.push_back(WatchEvent::ListEnd);
    }

    /// Handles the response that the server does not have the kind. Delivers an empty list, but
    /// only once, and for a known kind only after [`MISSING_CONFIRMATION_TIME`].
    async fn handle_missing(&mut self, reason: &str) {
        let report = self.stats.read();
        let was_served = report.is_synced && !report.is_missing;
        let since = *self.missing_since.get_or_insert_with(Instant::now);
        if !report.is_missing && (!was_served || since.elapsed() >= MISSING_CONFIRMATION_TIME) {
            tracing::info!(
                kind = self.source.kind(),
                reason,
                "the server does not serve this kind, which counts as empty"
            );
            self.start_list();
            self.end_list(true);
        }
        self.state = WatcherState::Listing {
            page: None,
            is_started: false,
        };
        self.stats.record_response();
        if !report.is_missing && self.pending.is_empty() {
            sleep(MISSING_KIND_PAUSE).await;
        } else if self.pending.is_empty() {
            sleep(
                since
                    .elapsed()
                    .clamp(MISSING_KIND_PAUSE, LONGEST_MISSING_KIND_PAUSE),
            )
            .await;
        }
    }

    fn push(&mut self, change: ObjectChange<S::Value, S::Key>) {
        let event = match change {
            ObjectChange::Upsert(value) => WatchEvent::Upsert(value),
            ObjectChange::Delete(key) => WatchEvent::Delete(key),
            ObjectChange::Unreadable { name, key, reason } => {
                self.stats.update(|report| report.unreadable += 1);
                if self.unreadable.insert(name.clone()) {
                    let kind = self.source.kind();
                    tracing::error!(
                        kind,
                        name,
                        reason,
                        "cannot decode an object; reporting it as deleted"
                    );
                }
                self.pending.extend(key.map(WatchEvent::Delete));
                return;
            }
        };
        self.stats.update(|report| report.changes += 1);
        self.pending.push_back(event);
    }

    fn record_response(&mut self) {
        self.backoff.reset();
        self.stats.record_response();
        if std::mem::take(&mut self.has_warned) {
            tracing::info!(
                kind = self.source.kind(),
                "can list or watch the objects again"
            );
        }
    }

    async fn pause(&mut self, failure: &WatchFailure) {
        self.stats.update(|report| report.failures += 1);
        let mut wait = self.backoff.next();
        if let WatchFailure::Lost {
            retry_after: Some(retry_after),
            ..
        } = failure
        {
            wait = wait.max(*retry_after);
        }
        if std::mem::replace(&mut self.has_warned, true) {
            tracing::debug!(
                kind = self.source.kind(), %failure, ?wait,
                "still cannot list or watch the objects; retrying"
            );
        } else {
            tracing::warn!(
                kind = self.source.kind(), %failure,
                "cannot list or watch the objects now; retrying",
            );
        }
        sleep(wait).await;
    }
}
