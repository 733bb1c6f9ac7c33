//! [`Schedule`]: the waits of all tasks, each of which ends only when the scheduler ends it.
//!
//! Whatever a simulated call awaits is a [`Wait`]. The task that registers one stands still until
//! [`Schedule::end`] gives the wait its outcome. Between two such points a task runs alone.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The time that each step takes.
const STEP: Duration = Duration::from_millis(1);

/// The number of a task.
pub type TaskId = usize;

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

/// The waits of all tasks, and the time.
#[derive(Debug, Clone, Default)]
pub struct Schedule(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now: Duration,
    running: TaskId,
    /// The number of steps of each node.
    steps: BTreeMap<usize, u64>,
    waits: BTreeMap<u64, Registered>,
    next: u64,
}

#[derive(Debug)]
struct Registered {
    task: TaskId,
    wait: Wait,
    fate: Option<Fate>,
    /// Wakes the part of the task that waits.
    waker: Waker,
}

impl Schedule {
    /// Returns the time since the begin of the simulation.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// Waits for an event.
    pub fn wait(&self, wait: Wait) -> Waiting {
        Waiting {
            schedule: self.clone(),
            state: WaitState::New(wait),
        }
    }

    /// Waits for a moment that the scheduler chooses.
    pub fn later(&self) -> Waiting {
        self.wait(Wait::Later)
    }

    /// Waits until another task of the node has gone on, or until `until`.
    pub fn other_step(&self, node: usize, until: Duration) -> Waiting {
        let since = self.state().steps.get(&node).copied().unwrap_or_default();
        self.wait(Wait::OtherStep { node, since, until })
    }

    /// Moves the time forward.
    pub(crate) fn advance_to(&self, time: Duration) {
        let mut state = self.state();
        state.now = state.now.max(time);
    }

    /// Notes which task runs next, and the node on which it does.
    pub(crate) fn begin_step(&self, task: TaskId, node: Option<usize>) {
        let mut state = self.state();
        state.running = task;
        state.now += STEP;
        if let Some(node) = node {
            *state.steps.entry(node).or_default() += 1;
        }
    }

    /// Calls `visit` with the number, the task and the event of each wait that has not ended, in
    /// the order in which they began.
    pub(crate) fn each_wait(&self, mut visit: impl FnMut(u64, TaskId, &Wait, bool)) {
        let state = self.state();
        for (id, registered) in &state.waits {
            if registered.fate.is_some() {
                continue;
            }
            let has_come = match &registered.wait {
                Wait::Request { .. } | Wait::Answer | Wait::Later => true,
                Wait::Until(time) => *time <= state.now,
                Wait::OtherStep { node, since, until } => {
                    let steps = state.steps.get(node).copied().unwrap_or_default();
                    steps > *since || *until <= state.now
                }
                Wait::Task(_) => false,
            };
            visit(*id, registered.task, &registered.wait, has_come);
        }
    }

    /// Ends a wait. Returns its task.
    pub(crate) fn end(&self, id: u64, fate: Fate) -> TaskId {
        let mut state = self.state();
        let registered = state.waits.get_mut(&id).expect("the wait is registered");
        registered.fate = Some(fate);
        let (task, waker) = (registered.task, registered.waker.clone());
        drop(state);
        waker.wake();
        task
    }

    /// Ends all waits for the end of `task`.
    pub(crate) fn end_task(&self, task: TaskId) {
        let mut state = self.state();
        let waits = state.waits.values_mut();
        let of_task = waits.filter(|registered| registered.wait == Wait::Task(task));
        let wakers = of_task.map(|registered| {
            registered.fate = Some(Fate::Served);
            registered.waker.clone()
        });
        let wakers: Vec<Waker> = wakers.collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    New(Wait),
    Registered(u64),
    Ended,
}

impl Future for Waiting {
    type Output = Fate;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fate> {
        let this = &mut *self;
        let mut state = this.schedule.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &this.state {
            WaitState::New(wait) => {
                let id = state.next;
                state.next += 1;
                let registered = Registered {
                    task: state.running,
                    wait: wait.clone(),
                    fate: None,
                    waker: cx.waker().clone(),
                };
                state.waits.insert(id, registered);
                this.state = WaitState::Registered(id);
                Poll::Pending
            }
            WaitState::Registered(id) => {
                let registered = state.waits.get_mut(id).expect("the wait is registered");
                let Some(fate) = registered.fate else {
                    registered.waker = cx.waker().clone();
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
        if let WaitState::Registered(id) = self.state {
            self.schedule.state().waits.remove(&id);
        }
    }
}
