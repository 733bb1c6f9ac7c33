//! [`SharedDatastore`]: the datastore of a simulated cluster, and [`NodeStore`]: its client on a
//! node. Each request waits on the schedule, and can be lost, late or answered by others.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use datastore::ClusterStore;
use futures::future::join_all;
use libcalico::store::{
    Answers, EndpointForm, Freshness, Kind, ProfileOrigin, Range, RawEntry, ReadBatch, Revision,
    Sharing, Store, StoreError, Write, WriteError, WriteModel, WriteOp,
};
use memory_store::Pairs;

use crate::api_server::ApiServer;
use crate::plants::Plant;
use crate::schedule::{Fate, Operation, Schedule, Wait};

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
    /// Former states, the latest last: all, or the last [`LONGEST_LAG`].
    former: Vec<Content>,
    keeps_all: bool,
    late: Vec<LateWrites>,
    /// The paths of the objects that late writes changed.
    changed_late: BTreeSet<String>,
}

/// Writes whose client gave up before they reached the datastore.
#[derive(Debug)]
struct LateWrites {
    text: String,
    writes: Vec<Write>,
    /// The number of the step in which they reach the datastore, or are lost.
    due: u64,
    is_lost: bool,
    /// Lasts until the writes reach the datastore or are lost.
    _operation: Operation,
}

/// The longest time that a late write takes, in steps.
const LONGEST_WAY: usize = 80;

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
            former: Vec::new(),
            keeps_all: false,
            late: Vec::new(),
            changed_late: BTreeSet::new(),
        })))
    }

    /// Keeps all former states from now on, for watches.
    pub(crate) fn keep_all(&self) {
        self.state().keeps_all = true;
    }

    /// Returns the number of former states.
    pub(crate) fn former_states(&self) -> usize {
        self.state().former.len()
    }

    /// Returns the stored pairs in a state: a former one, or the present one after all of these.
    pub(crate) fn pairs_in_state(&self, number: usize, range: &Range) -> Vec<RawEntry> {
        let state = self.state();
        let content = state.former.get(number).unwrap_or(&state.content);
        content.answer(range).unwrap_or_default()
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

    /// Returns true if a late write has changed the object.
    pub fn is_changed_late(&self, path: &str) -> bool {
        self.state().changed_late.contains(path)
    }

    /// Lets the first late writes that are due by this step reach the datastore, or loses them.
    /// Returns them in words, and true if they are lost.
    pub(crate) fn end_late_writes(&self, step: u64) -> Option<(String, bool)> {
        let mut state = self.state();
        let late = state
            .late
            .iter()
            .enumerate()
            .filter(|(_, late)| late.due <= step);
        let (first, _) = late.min_by_key(|(_, late)| late.due)?;
        let late = state.late.remove(first);
        if !late.is_lost {
            state.keep_former();
            _ = state.content.write(&late.writes);
            let paths = late.writes.iter().map(|write| write.path.clone());
            state.changed_late.extend(paths);
        }
        Some((late.text, late.is_lost))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep_former(&mut self) {
        if self.former.len() == LONGEST_LAG && !self.keeps_all {
            self.former.remove(0);
        }
        self.former.push(self.content.clone());
    }

    fn cached(&self, range: &Range, lag: usize) -> &Content {
        let former = match range.freshness {
            // The model of an API server does not compare revisions.
            Freshness::Latest | Freshness::Since(_) => None,
            Freshness::Cached => self.former.len().checked_sub(lag),
        };
        let former = former.and_then(|number| self.former.get(number));
        former.unwrap_or(&self.content)
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
                let failed = |index| {
                    move |cause| WriteError {
                        index,
                        applied: index,
                        cause,
                    }
                };
                let writes = writes.iter().enumerate();
                writes
                    .map(|(index, write)| server.apply(write).map_err(failed(index)))
                    .collect()
            }
        }
    }

    /// Applies writes as a datastore with a planted fault does.
    fn write_with(&mut self, plant: Plant, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let is_planted = |write: &Write| match (&write.op, plant) {
            (WriteOp::Update(..) | WriteOp::UpdateStatus(..), Plant::UncheckedUpdates)
            | (WriteOp::Delete(_), Plant::UncheckedDeletes)
            | (WriteOp::Create(_), Plant::UncheckedCreates) => true,
            _ => plant == Plant::TornTransactions,
        };
        if !writes.iter().any(is_planted) {
            return self.write(writes);
        }
        let mut revisions = Vec::new();
        for (index, write) in writes.iter().enumerate() {
            let write = match is_planted(write) && plant != Plant::TornTransactions {
                true => self.unchecked(write),
                false => write.clone(),
            };
            let written = self.write(std::slice::from_ref(&write));
            revisions.extend(written.map_err(|error| WriteError { index, ..error })?);
        }
        Ok(revisions)
    }

    /// Returns a write that succeeds whatever the state of its object is.
    fn unchecked(&self, write: &Write) -> Write {
        let range = Range {
            kind: write.kind,
            path: write.path.clone(),
            is_prefix: false,
            keys_only: false,
            freshness: Freshness::Latest,
        };
        let found = self.answer(&range).unwrap_or_default().into_iter().next();
        let op = match (&write.op, found) {
            (WriteOp::Create(value) | WriteOp::Update(value, _), Some(found)) => {
                WriteOp::Update(value.clone(), found.revision)
            }
            (WriteOp::UpdateStatus(value, _), Some(found)) => {
                WriteOp::UpdateStatus(value.clone(), found.revision)
            }
            (WriteOp::Delete(_), Some(_)) => WriteOp::Delete(None),
            (op, None) => op.clone(),
        };
        Write {
            op,
            ..write.clone()
        }
    }
}

/// A client of the datastore.
#[derive(Clone)]
pub struct NodeStore {
    schedule: Schedule,
    datastore: SharedDatastore,
    plant: Plant,
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStore").finish_non_exhaustive()
    }
}

/// A write that the client has sent. If the client ends before the answer, the write is late.
struct Sent<'a> {
    store: &'a NodeStore,
    writes: &'a [Write],
    is_answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let schedule = &self.store.schedule;
        let late = LateWrites {
            text: writes_in_words(self.writes),
            writes: self.writes.to_vec(),
            is_lost: schedule.one_in(2),
            due: schedule.steps() + schedule.below(LONGEST_WAY) as u64,
            _operation: schedule.begin_operation(),
        };
        self.store.datastore.state().late.push(late);
    }
}

impl NodeStore {
    /// Creates a client.
    pub fn new(schedule: &Schedule, datastore: &SharedDatastore, plant: Plant) -> Self {
        NodeStore {
            schedule: schedule.clone(),
            datastore: datastore.clone(),
            plant,
        }
    }

    /// Waits for this time.
    pub(crate) async fn pause(&self, duration: Duration) {
        let until = self.schedule.now() + duration;
        self.schedule.wait(Wait::Until(until)).await;
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
        let mut answers: Result<Vec<Vec<RawEntry>>, StoreError> = {
            let state = self.datastore.state();
            let oldest = state.former.len().saturating_sub(LONGEST_LAG);
            let content = |range: &Range| match (self.plant, state.former.get(oldest)) {
                (Plant::StaleReads, Some(former)) => former,
                _ => state.cached(range, lag),
            };
            ranges
                .iter()
                .map(|range| content(range).answer(range))
                .collect()
        };
        if self.plant == Plant::ShortLists
            && let Ok(answers) = &mut answers
        {
            let lists = answers
                .iter_mut()
                .zip(ranges)
                .filter(|(_, range)| range.is_prefix);
            lists.for_each(|(answer, _)| drop(answer.pop()));
        }
        self.answer(fate).await;
        answers
    }

    async fn write_at_once(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let failed = |cause| WriteError {
            index: 0,
            applied: 0,
            cause,
        };
        let mut sent = Sent {
            store: self,
            writes,
            is_answered: false,
        };
        let wait = Wait::Request {
            text: writes_in_words(writes),
            is_write: true,
            may_lag: false,
        };
        let fate = self.schedule.wait(wait).await;
        let failure = match fate {
            Fate::Served | Fate::ServedSlowly | Fate::ServedFromCache(_) => None,
            Fate::Refused => Some((false, unavailable(false))),
            Fate::LostRequest => Some((false, unavailable(true))),
            Fate::LostAnswer => {
                let is_unknown = self.plant != Plant::DeniedOutcomes;
                Some((true, unavailable(is_unknown)))
            }
            // The writes stay under way.
            Fate::Late => return Err(failed(unavailable(true))),
            Fate::Foreign => Some((false, foreign(true))),
            Fate::ForeignAnswer => Some((true, foreign(true))),
        };
        sent.is_answered = true;
        let is_served = match &failure {
            None => true,
            Some((is_served, _)) => *is_served || self.plant == Plant::ServedRefusals,
        };
        if let (false, Some((_, cause))) = (is_served, &failure) {
            return Err(failed(cause.clone()));
        }
        let outcome = {
            let mut state = self.datastore.state();
            state.keep_former();
            state.content.write_with(self.plant, writes)
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

fn writes_in_words(writes: &[Write]) -> String {
    writes
        .iter()
        .map(write_in_words)
        .collect::<Vec<_>>()
        .join(", ")
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
