//! A store in memory, for tests. Objects change and faults occur between any two requests.

mod pairs;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use libcalico::ipam::Block;
use libcalico::store::{
    Answers, EndpointForm, Kind, ProfileOrigin, Range, ReadBatch, Revision, Sharing, Store,
    StoreError, Write, WriteError, WriteModel,
};

pub use pairs::Pairs;

/// The fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is served.
    None,
    /// The request does not reach the store, and the client gets an error that says so.
    Refused,
    /// The request does not reach the store, and the client cannot determine this.
    LostRequest,
    /// The request is served, and its answer does not reach the client.
    LostAnswer,
    /// The request does not reach the store, and another program answers.
    Foreign,
    /// The writes, or without transactions the first of them, take effect, and another program
    /// answers. No fault of a read.
    ForeignAnswer,
    /// This number of writes takes effect, then the connection breaks. No fault with transactions.
    Cut(usize),
    /// This number of writes takes effect with responses, and one more without. No fault with
    /// transactions.
    CutAnswer(usize),
    /// The connection breaks after `applied` writes. The next one takes effect after `after` more
    /// requests, or in [`MemoryStore::end_faults`]. With transactions, this applies to the whole
    /// list.
    Late {
        /// Number of writes that take effect at once.
        applied: usize,
        /// Number of further requests before the next write takes effect.
        after: usize,
    },
}

type Hook = Box<dyn FnMut(usize, Option<&[Write]>, &mut Pairs) -> Fault + Send>;

/// A store in memory. Each request passes a hook, which may change pairs or inject a fault.
pub struct MemoryStore {
    transactional: bool,
    labels_affinities: bool,
    given_up: AtomicBool,
    state: Mutex<State>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").finish_non_exhaustive()
    }
}

struct State {
    pairs: Pairs,
    /// The content of the cache, if the cache has been stopped.
    cache: Option<Pairs>,
    cached: usize,
    /// Number of reads of all blocks of a family, and of blocks that were read in full besides.
    surveys: (usize, usize),
    reads: usize,
    writes: usize,
    hook: Option<Hook>,
    /// Writes in progress, each with the number of requests before it.
    late_writes: Vec<(usize, Vec<Write>)>,
}

impl MemoryStore {
    /// Creates a store that applies a list of writes as a whole.
    pub fn transactional() -> Self {
        Self::new(true)
    }

    /// Creates a store that applies writes one by one, and stops at the first that fails.
    pub fn sequential() -> Self {
        Self::new(false)
    }

    /// Creates an API server on which no affinity has labels: lists by owner are empty (DS-70).
    pub fn without_labels() -> Self {
        MemoryStore {
            labels_affinities: false,
            ..Self::sequential()
        }
    }

    fn new(transactional: bool) -> Self {
        let (pairs, late_writes) = (Pairs::default(), Vec::new());
        let state = State {
            pairs,
            cache: None,
            cached: 0,
            surveys: (0, 0),
            reads: 0,
            writes: 0,
            hook: None,
            late_writes,
        };
        let (given_up, state) = (AtomicBool::new(false), Mutex::new(state));
        MemoryStore {
            transactional,
            labels_affinities: true,
            given_up,
            state,
        }
    }

    /// Makes [`Store::has_given_up`] return true from now on.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Calls `hook` before each request, with its number (from 0), its writes if there are any, and
    /// the pairs.
    pub fn before_each(
        &self,
        hook: impl FnMut(usize, Option<&[Write]>, &mut Pairs) -> Fault + Send + 'static,
    ) {
        let mut state = self.state.lock().unwrap();
        (state.reads, state.writes) = (0, 0);
        state.hook = Some(Box::new(hook));
    }

    /// Stops the cache: it receives no more writes.
    pub fn stop_cache(&self) {
        let mut state = self.state.lock().unwrap();
        state.cache = Some(state.pairs.clone());
    }

    /// Returns the number of reads of blocks that the stopped cache served.
    pub fn blocks_from_cache(&self) -> usize {
        self.state.lock().unwrap().cached
    }

    /// Ends all faults. Writes in progress take effect.
    pub fn end_faults(&self) {
        let mut state = self.state.lock().unwrap();
        state.hook = None;
        state.apply_late_writes(usize::MAX);
    }

    /// Returns the number of reads of all blocks of a family since the last call, and of blocks
    /// that were read in full besides.
    pub fn take_surveys(&self) -> (usize, usize) {
        std::mem::take(&mut self.state.lock().unwrap().surveys)
    }

    /// Returns the number of reads and of writes since the last call, or since
    /// [`MemoryStore::before_each`].
    pub fn take_counts(&self) -> (usize, usize) {
        let mut state = self.state.lock().unwrap();
        (
            std::mem::take(&mut state.reads),
            std::mem::take(&mut state.writes),
        )
    }

    /// Returns a copy of all pairs.
    pub fn pairs(&self) -> Pairs {
        self.state.lock().unwrap().pairs.clone()
    }

    /// Changes pairs at once, like another process.
    pub fn edit(&self, change: impl FnOnce(&mut Pairs)) {
        change(&mut self.state.lock().unwrap().pairs);
    }

    /// Stores an object at once, like another process.
    pub fn put<K: Kind>(&self, key: &K::Key, value: &K) {
        self.edit(|pairs| pairs.put(K::path(key), value.encode().unwrap()));
    }
}

fn unavailable(outcome_unknown: bool) -> StoreError {
    StoreError::Unavailable {
        datastore: "memory".into(),
        reason: "by order of the test".into(),
        outcome_unknown,
    }
}

fn foreign(outcome_unknown: bool) -> StoreError {
    StoreError::ForeignAnswer {
        datastore: "memory".into(),
        reason: "<html>".into(),
        outcome_unknown,
    }
}

impl State {
    fn apply_late_writes(&mut self, requests: usize) {
        self.late_writes.retain_mut(|(left, writes)| {
            if *left > requests {
                *left -= requests;
                return true;
            }
            _ = self.pairs.apply_all(writes);
            false
        });
    }

    fn fault(&mut self, writes: Option<&[Write]>) -> Fault {
        self.apply_late_writes(1);
        let nth = self.reads + self.writes;
        match writes {
            None => self.reads += 1,
            Some(_) => self.writes += 1,
        }
        let State { hook, pairs, .. } = self;
        hook.as_mut()
            .map_or(Fault::None, |hook| hook(nth, writes, pairs))
    }
}

impl Store for MemoryStore {
    async fn read(&self, batch: &ReadBatch) -> Result<Answers, StoreError> {
        let mut state = self.state.lock().unwrap();
        match state.fault(None) {
            Fault::None | Fault::Cut(_) | Fault::CutAnswer(_) | Fault::ForeignAnswer => {}
            Fault::Foreign => return Err(foreign(false)),
            Fault::Refused | Fault::LostRequest | Fault::LostAnswer | Fault::Late { .. } => {
                return Err(unavailable(false));
            }
        }
        let source = |range: &Range| {
            state
                .cache
                .as_ref()
                .filter(|cache| cache.is_fresh_enough(range))
        };
        let answer = |range: &Range| {
            let pairs = source(range).unwrap_or(&state.pairs);
            if self.labels_affinities {
                pairs.answer(range)
            } else {
                pairs.answer_without_labels(range)
            }
        };
        let answers = batch.ranges().iter().map(answer).collect();
        let cached = batch
            .ranges()
            .iter()
            .filter(|range| range.kind == Block::KIND && source(range).is_some())
            .count();
        state.cached += cached;
        for range in batch
            .ranges()
            .iter()
            .filter(|range| range.kind == Block::KIND && !range.keys_only)
        {
            if range.is_prefix {
                state.surveys.0 += 1;
            } else {
                state.surveys.1 += 1;
            }
        }
        Ok(Answers::new(answers))
    }

    fn write_model(&self) -> WriteModel {
        if self.transactional {
            WriteModel::Transactional
        } else {
            WriteModel::PerObject
        }
    }

    fn endpoint_form(&self) -> EndpointForm {
        EndpointForm::Object
    }

    fn profile_origin(&self) -> ProfileOrigin {
        ProfileOrigin::Stored
    }

    fn sharing(&self) -> Sharing {
        Sharing::Cluster
    }

    fn has_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    async fn write(&self, writes: &[Write]) -> Result<Vec<Revision>, WriteError> {
        let mut state = self.state.lock().unwrap();
        let fault = state.fault(Some(writes));
        let lost = |index, outcome_unknown| WriteError {
            index,
            applied: 0,
            cause: unavailable(outcome_unknown),
        };
        match fault {
            Fault::Refused => return Err(lost(0, false)),
            Fault::LostRequest => return Err(lost(0, true)),
            Fault::Foreign => {
                return Err(WriteError {
                    index: 0,
                    applied: 0,
                    cause: foreign(true),
                });
            }
            Fault::Late { after, .. } if self.transactional => {
                state.late_writes.push((after, writes.to_vec()));
                return Err(lost(0, true));
            }
            Fault::None
            | Fault::LostAnswer
            | Fault::ForeignAnswer
            | Fault::Cut(_)
            | Fault::CutAnswer(_)
            | Fault::Late { .. } => {}
        }
        if self.transactional {
            let revisions = state.pairs.apply_all(writes)?;
            return match fault {
                Fault::LostAnswer => Err(lost(0, true)),
                Fault::ForeignAnswer => Err(WriteError {
                    index: 0,
                    applied: 0,
                    cause: foreign(true),
                }),
                _ => Ok(revisions),
            };
        }
        let mut revisions = Vec::new();
        for (index, write) in writes.iter().enumerate() {
            let broken = WriteError {
                index,
                applied: index,
                cause: unavailable(true),
            };
            match fault {
                Fault::Cut(n) if n == index => return Err(broken),
                Fault::CutAnswer(n) if n == index => {
                    let refused = state.pairs.apply(write).err();
                    return Err(refused.map_or(broken, |cause| WriteError {
                        index,
                        applied: index,
                        cause,
                    }));
                }
                Fault::ForeignAnswer => {
                    let refused = state.pairs.apply(write).err();
                    let cause = refused.unwrap_or_else(|| foreign(true));
                    return Err(WriteError {
                        index,
                        applied: index,
                        cause,
                    });
                }
                Fault::Late { applied, after } if applied == index => {
                    state.late_writes.push((after, vec![write.clone()]));
                    return Err(broken);
                }
                _ => {}
            }
            match state.pairs.apply(write) {
                Ok(revision) => revisions.push(revision),
                Err(cause) => {
                    return Err(WriteError {
                        index,
                        applied: index,
                        cause,
                    });
                }
            }
        }
        if fault == Fault::LostAnswer {
            return Err(lost(0, true));
        }
        Ok(revisions)
    }
}
