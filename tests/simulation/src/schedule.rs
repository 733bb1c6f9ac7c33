//! [`Schedule`]: the waits of all tasks, each of which ends only when the scheduler ends it.
//!
//! Whatever a simulated call awaits is a [`Wait`]. The task that begins one stands still until
//! the scheduler gives the wait its outcome. Between two such points a task runs alone. A wait
//! may be delayed by a number of steps that other tasks take meanwhile; without delays, each task
//! runs to its end before the next one goes on.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::choices::Choices;

/// The number of a task.
pub type TaskId = usize;

/// The longest delay of a wait, in steps of other tasks.
const LONGEST_DELAY: usize = 60;

/// The event that ends a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// A request reaches the datastore, or is lost on its way.
    Request {
        /// The request in words.
        text: String,
        /// True for a write.
        is_write: bool,
        /// True if a cache of the server may answer.
        may_lag: bool,
    },
    /// The answer of a request reaches the client.
    Answer,
    /// This time, measured from the begin of the simulation.
    Until(Duration),
    /// Another task of the node goes on, or the time is over.
    OtherStep {
        /// The number of the node.
        node: usize,
        /// The number of steps of the node when the wait began.
        since: u64,
        /// The end of the wait.
        until: Duration,
    },
    /// The task ends.
    Task(TaskId),
    /// Any later moment.
    Later,
}

/// The outcome of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// The request is served, or the event has come.
    #[default]
    Served,
    /// The request is served, and its answer takes its time.
    ServedSlowly,
    /// The request is a read, and a cache of the server answers that lacks this number of writes.
    ServedFromCache(usize),
    /// The request does not reach the datastore, and the client gets an error that says so.
    Refused,
    /// The request does not reach the datastore, and the client cannot determine this.
    LostRequest,
    /// The request is served, and its answer does not reach the client.
    LostAnswer,
    /// The client gives up. The request may reach the datastore later.
    Late,
    /// Another program answers, and the request does not reach the datastore.
    Foreign,
    /// The request is served, and another program answers.
    ForeignAnswer,
}

/// How often a schedule departs from the plain order: once in this number of waits, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rates {
    /// A wait is delayed.
    pub delay: usize,
    /// A request meets a fault.
    pub fault: usize,
    /// The process of a call is stopped.
    pub stop: usize,
    /// The time that a step takes.
    pub step: Duration,
}

/// The waits of all tasks, the time, and the numbers that determine what happens next.
#[derive(Debug, Clone)]
pub struct Schedule(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    choices: Choices,
    rates: Rates,
    now: Duration,
    /// The number of steps so far.
    steps: u64,
    running: TaskId,
    /// The name of the running task, under which its numbers are chosen.
    name: Arc<str>,
    /// The number of steps of each node, without those that only began another wait for a step.
    of_nodes: BTreeMap<usize, u64>,
    /// True if the running step, or the next one, follows a wait for another step.
    is_retry: bool,
    is_next_retry: bool,
    waits: BTreeMap<u64, Begun>,
    next: u64,
    /// True after the last fault.
    is_calm: bool,
    /// The time that has passed beside the steps.
    long_time: Duration,
    /// The long time at which each operation in progress began.
    operations: BTreeMap<u64, Duration>,
}

#[derive(Debug)]
struct Begun {
    task: TaskId,
    wait: Wait,
    /// The number of the step from which on the wait may end.
    due: u64,
    fate: Option<Fate>,
    /// Wakes the part of the task that waits.
    waker: Waker,
}

/// A wait that may end next.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) id: u64,
    pub(crate) task: TaskId,
    pub(crate) wait: Wait,
}

impl Schedule {
    /// Creates a schedule without tasks.
    pub fn new(choices: Choices) -> Self {
        Schedule(Arc::new(Mutex::new(State {
            choices,
            rates: Rates::default(),
            now: Duration::ZERO,
            steps: 0,
            running: 0,
            name: "cluster".into(),
            of_nodes: BTreeMap::new(),
            is_retry: false,
            is_next_retry: false,
            waits: BTreeMap::new(),
            next: 0,
            is_calm: false,
            long_time: Duration::ZERO,
            operations: BTreeMap::new(),
        })))
    }

    /// Returns the time since the begin of the simulation.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// Waits for an event.
    pub fn wait(&self, wait: Wait) -> Waiting {
        Waiting {
            schedule: self.clone(),
            state: WaitState::New { wait, most: None },
        }
    }

    /// Waits for a moment that is at most this number of steps away.
    pub fn later(&self, most: usize) -> Waiting {
        Waiting {
            schedule: self.clone(),
            state: WaitState::New {
                wait: Wait::Later,
                most: Some(most),
            },
        }
    }

    /// Waits until another task of the node has gone on, or until `until`.
    pub fn other_step(&self, node: usize, until: Duration) -> Waiting {
        let since = self
            .state()
            .of_nodes
            .get(&node)
            .copied()
            .unwrap_or_default();
        self.wait(Wait::OtherStep { node, since, until })
    }

    /// Returns the time that has passed beside the steps. Grace periods, which are far longer than
    /// any operation, follow this time.
    pub fn long_time(&self) -> Duration {
        self.state().long_time
    }

    /// Moves the long time forward, unless an operation in progress would last longer than
    /// `longest`. Returns true if the time has moved.
    pub fn pass_long_time(&self, by: Duration, longest: Duration) -> bool {
        let mut state = self.state();
        let next = state.long_time + by;
        let may_pass = state
            .operations
            .values()
            .all(|began| next <= *began + longest);
        if may_pass {
            state.long_time = next;
        }
        may_pass
    }

    /// Begins an operation, which lasts until the value is dropped.
    pub fn begin_operation(&self) -> Operation {
        let mut state = self.state();
        let (id, began) = (state.next, state.long_time);
        state.next += 1;
        state.operations.insert(id, began);
        drop(state);
        Operation {
            schedule: self.clone(),
            id,
        }
    }

    /// Chooses a number below `limit` for the running task.
    pub fn below(&self, limit: usize) -> usize {
        self.state()
            .choose(|choices, name| choices.below(name, limit))
    }

    /// Chooses true once in `times` for the running task; never if `times` is 0.
    pub fn one_in(&self, times: usize) -> bool {
        self.state()
            .choose(|choices, name| choices.one_in(name, times))
    }

    /// Returns true after the last fault.
    pub fn is_calm(&self) -> bool {
        self.state().is_calm
    }

    pub(crate) fn calm_down(&self) {
        self.state().is_calm = true;
    }

    /// Returns how often the schedule departs from the plain order.
    pub(crate) fn rates(&self) -> Rates {
        self.state().rates
    }

    pub(crate) fn set_rates(&self, rates: Rates) {
        self.state().rates = rates;
    }

    /// Moves the time forward.
    pub(crate) fn advance_to(&self, time: Duration) {
        let mut state = self.state();
        state.now = state.now.max(time);
    }

    /// Begins a step of a task on a node.
    pub(crate) fn begin_step(&self, task: TaskId, name: &Arc<str>, node: Option<usize>) {
        let mut state = self.state();
        state.running = task;
        state.name = Arc::clone(name);
        state.is_retry = std::mem::take(&mut state.is_next_retry);
        state.steps += 1;
        let took = state.rates.step;
        state.now += took;
        if let Some(node) = node {
            *state.of_nodes.entry(node).or_default() += 1;
        }
    }

    /// Lets the next choices be those of a task.
    pub(crate) fn choose_for(&self, name: &Arc<str>) {
        self.state().name = Arc::clone(name);
    }

    /// Returns the wait to end next: of those that are due, the one that became so last; else the
    /// one that will be due first.
    pub(crate) fn next_wait(&self) -> Option<Candidate> {
        let state = self.state();
        let waits = state
            .waits
            .iter()
            .filter(|(_, begun)| state.has_come(begun));
        let next = waits.max_by_key(|(id, begun)| match begun.due <= state.steps {
            true => (true, begun.due, **id),
            false => (false, u64::MAX - begun.due, **id),
        });
        next.map(|(id, begun)| Candidate {
            id: *id,
            task: begun.task,
            wait: begun.wait.clone(),
        })
    }

    /// Returns the number of steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Returns the first time for which a task waits.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        let state = self.state();
        let waits = state.waits.values().filter(|begun| begun.fate.is_none());
        let times = waits.filter_map(|begun| match begun.wait {
            Wait::Until(time) | Wait::OtherStep { until: time, .. } => Some(time),
            _ => None,
        });
        times.filter(|time| *time > state.now).min()
    }

    /// Ends a wait.
    pub(crate) fn end(&self, id: u64, fate: Fate) {
        let mut state = self.state();
        let begun = state.waits.get_mut(&id).expect("the wait has begun");
        begun.fate = Some(fate);
        let (waker, wait) = (begun.waker.clone(), begun.wait.clone());
        state.is_next_retry = matches!(wait, Wait::OtherStep { .. });
        drop(state);
        waker.wake();
    }

    /// Ends all waits for the end of `task`.
    pub(crate) fn end_task(&self, task: TaskId) {
        let mut state = self.state();
        let waits = state.waits.values_mut();
        let of_task = waits.filter(|begun| begun.wait == Wait::Task(task));
        let wakers = of_task.map(|begun| {
            begun.fate = Some(Fate::Served);
            begun.waker.clone()
        });
        let wakers: Vec<Waker> = wakers.collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the numbers chosen so far.
    pub(crate) fn take_choices(&self) -> Choices {
        let empty = Choices::given(BTreeMap::new());
        std::mem::replace(&mut self.state().choices, empty)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn choose<T>(&mut self, choose: impl FnOnce(&mut Choices, &Arc<str>) -> T) -> T {
        choose(&mut self.choices, &self.name)
    }

    fn has_come(&self, begun: &Begun) -> bool {
        begun.fate.is_none()
            && match &begun.wait {
                Wait::Request { .. } | Wait::Answer | Wait::Later => true,
                Wait::Until(time) => *time <= self.now,
                Wait::OtherStep { node, since, until } => {
                    let steps = self.of_nodes.get(node).copied().unwrap_or_default();
                    steps > *since || *until <= self.now
                }
                Wait::Task(_) => false,
            }
    }

    /// Leaves a step that only begins another wait for a step out of the steps of the node, so that
    /// two tasks do not wake each other while a third one holds what they wait for.
    fn discount_retry(&mut self, wait: &mut Wait) {
        if let Wait::OtherStep { node, since, .. } = wait
            && std::mem::take(&mut self.is_retry)
        {
            let steps = self.of_nodes.entry(*node).or_default();
            *steps = steps.saturating_sub(1);
            *since = (*since).min(*steps);
        }
    }

    fn delay(&mut self, wait: &Wait, most: Option<usize>) -> usize {
        let times = self.rates.delay;
        match (wait, most) {
            (Wait::Task(_), _) => 0,
            (_, Some(most)) => self.choose(|choices, name| choices.below(name, most)),
            (_, None) if times == 0 => 0,
            (_, None) => {
                self.choose(|choices, name| choices.mostly_zero(name, LONGEST_DELAY, times))
            }
        }
    }
}

/// An operation in progress, such as a call. No grace period passes before it ends.
#[derive(Debug)]
pub struct Operation {
    schedule: Schedule,
    id: u64,
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.schedule.state().operations.remove(&self.id);
    }
}

/// A wait of a task.
#[derive(Debug)]
pub struct Waiting {
    schedule: Schedule,
    state: WaitState,
}

#[derive(Debug)]
enum WaitState {
    New {
        wait: Wait,
        /// The longest delay, if the wait has its own.
        most: Option<usize>,
    },
    Begun(u64),
    Ended,
}

impl Future for Waiting {
    type Output = Fate;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fate> {
        let this = &mut *self;
        let mut state = this
            .schedule
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &this.state {
            WaitState::New { wait, most } => {
                let id = state.next;
                state.next += 1;
                let delay = state.delay(wait, *most);
                let mut wait = wait.clone();
                state.discount_retry(&mut wait);
                let begun = Begun {
                    task: state.running,
                    wait,
                    due: state.steps + delay as u64,
                    fate: None,
                    waker: cx.waker().clone(),
                };
                state.waits.insert(id, begun);
                this.state = WaitState::Begun(id);
                Poll::Pending
            }
            WaitState::Begun(id) => {
                let begun = state.waits.get_mut(id).expect("the wait has begun");
                let Some(fate) = begun.fate else {
                    begun.waker = cx.waker().clone();
                    return Poll::Pending;
                };
                state.waits.remove(id);
                this.state = WaitState::Ended;
                Poll::Ready(fate)
            }
            WaitState::Ended => panic!("polled after the end"),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let WaitState::Begun(id) = self.state {
            self.schedule.state().waits.remove(&id);
        }
    }
}
