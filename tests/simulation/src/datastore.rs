//! [`SharedDatastore`]: the datastore of a simulated cluster, and [`NodeStore`]: its client on a
//! node. Each request waits on the schedule, and can be lost, late or answered by others.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datastore::ClusterStore;
use futures::future::join_all;
use libcalico::store::{
    Answers, EndpointForm, Freshness, Kind, ProfileOrigin, Range, RawEntry, ReadBatch, Revision,
    Sharing, Store, StoreError, Write, WriteError, WriteModel, WriteOp,
};
use memory_store::Pairs;

use crate::api_server::ApiServer;
use crate::schedule::{Fate, Schedule, Wait};

/// The number of former states from which a cache may answer.
const LONGEST_LAG: usize = 12;

/// The content of a datastore.
#[derive(Debug, Clone)]
pub enum Content {
    /// The pairs of an etcd cluster.
    Etcd(Pairs),
    /// The objects of an API server.
    Kubernetes(ApiServer),
}

/// The datastore of a cluster.
#[derive(Clone)]
pub struct SharedDatastore(Arc<Mutex<State>>);

struct State {
    content: Content,
    /// Former states, the latest last.
    former: VecDeque<Content>,
    late: Vec<LateWrites>,
}

/// Writes whose client gave up before they reached the datastore.
#[derive(Debug, Clone)]
pub struct LateWrites {
    /// The writes in words.
    pub text: String,
    writes: Vec<Write>,
}

impl fmt::Debug for SharedDatastore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedDatastore").finish_non_exhaustive()
    }
}

impl SharedDatastore {
    /// Creates a datastore with this content.
    pub fn new(content: Content) -> Self {
        SharedDatastore(Arc::new(Mutex::new(State {
            content,
            former: VecDeque::new(),
            late: Vec::new(),
        })))
    }

    /// Returns the result of `read` on the present content.
    pub fn read<T>(&self, read: impl FnOnce(&Content) -> T) -> T {
        read(&self.state().content)
    }

    /// Changes the content like another process, at once.
    pub fn edit<T>(&self, change: impl FnOnce(&mut Content) -> T) -> T {
        let mut state = self.state();
        state.keep_former();
        change(&mut state.content)
    }

    /// Returns the objects of a kind, in the order of their keys.
    pub fn list<K: Kind>(&self, select: &K::Select) -> Vec<(K::Key, K)> {
        self.read(|content| content.list(select))
    }

    /// Returns the number of changes of the content so far.
    pub fn revision(&self) -> u64 {
        self.read(|content| match content {
            Content::Etcd(pairs) => pairs.revision(),
            Content::Kubernetes(server) => server.revision(),
        })
    }

    /// Returns the number of writes that may still reach the datastore.
    pub(crate) fn late_writes(&self) -> usize {
        self.state().late.len()
    }

    /// Lets late writes reach the datastore, or loses them. Returns them in words.
    pub(crate) fn end_late_writes(&self, index: usize, is_lost: bool) -> String {
        let mut state = self.state();
        let late = state.late.remove(index);
        if !is_lost {
            state.keep_former();
            _ = state.content.write(&late.writes);
        }
        late.text
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep_former(&mut self) {
        let Content::Kubernetes(_) = &self.content else {
            return;
        };
        if self.former.len() == LONGEST_LAG {
            self.former.pop_front();
        }
        self.former.push_back(self.content.clone());
    }

    fn cached(&self, range: &Range, lag: usize) -> &Content {
        let is_fresh_enough = |content: &Content| match &range.freshness {
            Freshness::Latest => false,
            Freshness::Since(revision) => content.has_reached(revision),
            Freshness::Cached => true,
        };
        let former = self.former.iter().rev().take(lag).rev();
        let mut fresh = former.filter(|content| is_fresh_enough(content));
        fresh.next().unwrap_or(&self.content)
    }
}

impl Content {
    /// Returns the objects of a kind, in the order of their keys.
    pub fn list<K: Kind>(&self, select: &K::Select) -> Vec<(K::Key, K)> {
        match self {
            Content::Etcd(pairs) => pairs.list(select),
            Content::Kubernetes(server) => {
                let entries = server.list(select).into_iter();
                entries.map(|entry| (entry.key, entry.value)).collect()
            }
        }
    }

    fn answer(&self, range: &Range) -> Result<Vec<RawEntry>, StoreError> {
        match self {
            Content::Etcd(pairs) => Ok(pairs.answer(range)),
            Content::Kubernetes(server) => server.answer(range),
        }
    }

    /// Applies writes: all or none in etcd, up to the first that fails on an API server.
    fn write(&mut self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        match self {
            Content::Etcd(pairs) => pairs.apply_all(writes),
            Content::Kubernetes(server) => {
                let failed = |index| move |cause| WriteError { index, applied: index, cause };
                let writes = writes.iter().enumerate();
                writes
                    .map(|(index, write)| server.apply(write).map_err(failed(index)))
                    .collect()
            }
        }
    }

    fn has_reached(&self, revision: &Revision) -> bool {
        match self {
            Content::Etcd(_) => true,
            Content::Kubernetes(server) => server.has_reached(revision),
        }
    }
}

/// A client of the datastore.
#[derive(Clone)]
pub struct NodeStore {
    schedule: Schedule,
    datastore: SharedDatastore,
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStore").finish_non_exhaustive()
    }
}

/// A write that the client has sent. If the client ends before the answer, the write is late.
struct Sent<'a> {
    datastore: &'a SharedDatastore,
    writes: Option<LateWrites>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(writes) = self.writes.take() {
            self.datastore.state().late.push(writes);
        }
    }
}

impl NodeStore {
    /// Creates a client.
    pub fn new(schedule: &Schedule, datastore: &SharedDatastore) -> Self {
        NodeStore {
            schedule: schedule.clone(),
            datastore: datastore.clone(),
        }
    }

    async fn read_at_once(&self, ranges: &[Range]) -> Result<Vec<Vec<RawEntry>>, StoreError> {
        let text = ranges.iter().map(range_in_words);
        let is_lagging = |range: &Range| range.freshness != Freshness::Latest;
        let fate = self
            .schedule
            .wait(Wait::Request {
                text: format!("read {}", text.collect::<Vec<_>>().join(", ")),
                is_write: false,
                may_lag: self.is_api_server() && ranges.iter().any(is_lagging),
            })
            .await;
        let lag = match fate {
            Fate::Served | Fate::ServedSlowly => 0,
            Fate::ServedFromCache(lag) => lag,
            Fate::Refused | Fate::LostRequest | Fate::LostAnswer | Fate::Late => {
                return Err(unavailable(false));
            }
            Fate::Foreign | Fate::ForeignAnswer => return Err(foreign(false)),
        };
        let answers = {
            let state = self.datastore.state();
            let answer = |range: &Range| state.cached(range, lag).answer(range);
            ranges.iter().map(answer).collect()
        };
        self.answer(fate).await;
        answers
    }

    async fn write_at_once(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let text = writes.iter().map(write_in_words).collect::<Vec<_>>().join(", ");
        let failed = |cause| WriteError { index: 0, applied: 0, cause };
        let mut sent = Sent {
            datastore: &self.datastore,
            writes: Some(LateWrites {
                text: text.clone(),
                writes: writes.to_vec(),
            }),
        };
        let wait = Wait::Request {
            text,
            is_write: true,
            may_lag: false,
        };
        let fate = self.schedule.wait(wait).await;
        let failure = match fate {
            Fate::Served | Fate::ServedSlowly | Fate::ServedFromCache(_) => None,
            Fate::Refused => Some((false, unavailable(false))),
            Fate::LostRequest => Some((false, unavailable(true))),
            Fate::LostAnswer => Some((true, unavailable(true))),
            // The writes stay under way.
            Fate::Late => return Err(failed(unavailable(true))),
            Fate::Foreign => Some((false, foreign(true))),
            Fate::ForeignAnswer => Some((true, foreign(true))),
        };
        sent.writes = None;
        if let Some((false, cause)) = failure {
            return Err(failed(cause));
        }
        let outcome = {
            let mut state = self.datastore.state();
            state.keep_former();
            state.content.write(writes)
        };
        self.answer(fate).await;
        match failure {
            None => outcome,
            Some((_, cause)) => Err(failed(cause)),
        }
    }

    async fn answer(&self, fate: Fate) {
        if fate == Fate::ServedSlowly {
            self.schedule.wait(Wait::Answer).await;
        }
    }

    fn is_api_server(&self) -> bool {
        self.datastore
            .read(|content| matches!(content, Content::Kubernetes(_)))
    }
}

impl Store for NodeStore {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        if !self.is_api_server() {
            return self.read_at_once(batch.ranges()).await.map(Answers::new);
        }
        // An API server reads each range at a time of its own.
        let each = batch.ranges().iter().map(std::slice::from_ref);
        let answers = join_all(each.map(|range| self.read_at_once(range))).await;
        let answers: Result<Vec<_>, _> = answers.into_iter().collect();
        Ok(Answers::new(answers?.into_iter().flatten().collect()))
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        match self.write_model() {
            WriteModel::Transactional => self.write_at_once(writes).await,
            WriteModel::PerObject => {
                let mut revisions = Vec::new();
                for (index, write) in writes.iter().enumerate() {
                    let written = self.write_at_once(std::slice::from_ref(write)).await;
                    let failed = |error: WriteError| WriteError {
                        index,
                        applied: index,
                        ..error
                    };
                    revisions.extend(written.map_err(failed)?);
                }
                Ok(revisions)
            }
        }
    }

    fn write_model(&self) -> WriteModel {
        match self.is_api_server() {
            true => WriteModel::PerObject,
            false => WriteModel::Transactional,
        }
    }

    fn endpoint_form(&self) -> EndpointForm {
        match self.is_api_server() {
            true => EndpointForm::PodAnnotations,
            false => EndpointForm::Object,
        }
    }

    fn profile_origin(&self) -> ProfileOrigin {
        match self.is_api_server() {
            true => ProfileOrigin::Derived,
            false => ProfileOrigin::Stored,
        }
    }

    fn sharing(&self) -> Sharing {
        Sharing::Cluster
    }
}

impl ClusterStore for NodeStore {}

fn range_in_words(range: &Range) -> String {
    let name = range.path.rsplit('/').find(|part| !part.is_empty());
    let name = name.unwrap_or_default();
    match range.is_prefix {
        true => format!("list of {}", range.kind),
        false => format!("{} {name}", range.kind),
    }
}

fn write_in_words(write: &Write) -> String {
    let verb = match write.op {
        WriteOp::Create(_) => "create",
        WriteOp::Update(..) | WriteOp::UpdateStatus(..) => "update",
        WriteOp::Delete(_) => "delete",
    };
    format!("{verb} {}", write.key)
}

fn unavailable(outcome_unknown: bool) -> StoreError {
    StoreError::Unavailable {
        datastore: "simulated".into(),
        reason: "by the choice of the schedule".into(),
        outcome_unknown,
    }
}

fn foreign(outcome_unknown: bool) -> StoreError {
    StoreError::ForeignAnswer {
        datastore: "simulated".into(),
        reason: "<html>".into(),
        outcome_unknown,
    }
}
