//! [`Tasks`]: the calls and actors of a simulation, each a future that runs alone until it waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::schedule::{Operation, Schedule, TaskId, Wait};

/// The calls and actors of a simulation. Cheap to clone.
#[derive(Clone)]
pub struct Tasks {
    schedule: Schedule,
    next: Rc<Cell<TaskId>>,
    running: Rc<RefCell<BTreeMap<TaskId, Task>>>,
}

struct Task {
    name: Arc<str>,
    /// The node of a call; `None` for an actor, which no schedule stops.
    node: Option<usize>,
    /// Lasts as long as a call.
    _operation: Option<Operation>,
    future: Pin<Box<dyn Future<Output = ()>>>,
    wake: Arc<WakeFlag>,
}

struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process that a schedule stops between two changes of the kernel panics with this value.
pub struct Stopped;

/// The end of a step of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepEnd {
    /// The task waits.
    Waits,
    /// The task has ended.
    Ended,
    /// The task stopped between two changes of the kernel.
    Stopped,
}

/// A call that was started.
pub struct Started<T> {
    schedule: Schedule,
    tasks: Tasks,
    task: TaskId,
    result: Rc<RefCell<Option<T>>>,
}

impl<T> Started<T> {
    /// Waits for the end of the call. Returns `None` if the process of the call was stopped.
    pub async fn ended(self) -> Option<T> {
        if self.tasks.running.borrow().contains_key(&self.task) {
            self.schedule.wait(Wait::Task(self.task)).await;
        }
        self.result.borrow_mut().take()
    }

    /// Returns the number of the call.
    pub fn task(&self) -> TaskId {
        self.task
    }
}

impl Tasks {
    /// Creates an empty set of tasks.
    pub fn new(schedule: &Schedule) -> Self {
        Tasks {
            schedule: schedule.clone(),
            next: Rc::default(),
            running: Rc::default(),
        }
    }

    /// Starts an actor.
    pub fn start_actor(&self, name: &str, actor: impl Future<Output = ()> + 'static) {
        self.add(name, None, Box::pin(actor));
    }

    /// Starts a call on a node.
    pub fn start_call<T: 'static>(
        &self,
        name: &str,
        node: usize,
        call: impl Future<Output = T> + 'static,
    ) -> Started<T> {
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        let store_result = async move { *slot.borrow_mut() = Some(call.await) };
        let task = self.add(name, Some(node), Box::pin(store_result));
        Started {
            schedule: self.schedule.clone(),
            tasks: self.clone(),
            task,
            result,
        }
    }

    fn add(
        &self,
        name: &str,
        node: Option<usize>,
        future: Pin<Box<dyn Future<Output = ()>>>,
    ) -> TaskId {
        let id = self.next.get();
        self.next.set(id + 1);
        let wake = Arc::new(WakeFlag(AtomicBool::new(true)));
        let task = Task {
            name: name.into(),
            node,
            _operation: node.map(|_| self.schedule.begin_operation()),
            future,
            wake,
        };
        self.running.borrow_mut().insert(id, task);
        id
    }

    /// Returns the name of a task.
    pub fn name(&self, task: TaskId) -> Arc<str> {
        let running = self.running.borrow();
        running
            .get(&task)
            .map_or_else(|| "ended".into(), |task| Arc::clone(&task.name))
    }

    /// Returns true if the task is a call, and not an actor.
    pub(crate) fn is_call(&self, task: TaskId) -> bool {
        self.running
            .borrow()
            .get(&task)
            .is_some_and(|task| task.node.is_some())
    }

    /// Returns the first task that can go on without the end of a wait.
    pub(crate) fn woken(&self) -> Option<TaskId> {
        let running = self.running.borrow();
        let mut tasks = running.iter();
        let woken = tasks.find(|(_, task)| task.wake.0.load(Ordering::Relaxed));
        woken.map(|(id, _)| *id)
    }

    /// Returns the calls, of all nodes or of one.
    pub(crate) fn calls(&self, of_node: Option<usize>) -> Vec<TaskId> {
        let running = self.running.borrow();
        let calls = running
            .iter()
            .filter(|(_, task)| task.node.is_some() && (of_node.is_none() || task.node == of_node));
        calls.map(|(id, _)| *id).collect()
    }

    /// Lets a task go on until it waits or ends.
    pub(crate) fn step(&self, id: TaskId) -> StepEnd {
        // The task may start others meanwhile.
        let task = self.running.borrow_mut().remove(&id);
        let Some(mut task) = task else {
            return StepEnd::Ended;
        };
        self.schedule.begin_step(id, &task.name, task.node);
        task.wake.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.wake));
        let future = task.future.as_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.poll(&mut Context::from_waker(&waker))
        }));
        match polled {
            Ok(Poll::Pending) => {
                self.running.borrow_mut().insert(id, task);
                StepEnd::Waits
            }
            Ok(Poll::Ready(())) => {
                drop(task);
                self.end(id);
                StepEnd::Ended
            }
            Err(panic) if panic.is::<Stopped>() => {
                drop_stopped(task);
                self.end(id);
                StepEnd::Stopped
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Stops the process of a call.
    pub(crate) fn stop(&self, id: TaskId) {
        let task = self.running.borrow_mut().remove(&id);
        if let Some(task) = task {
            self.schedule.choose_for(&task.name);
            drop_stopped(task);
        }
        self.end(id);
    }

    /// Drops all tasks.
    pub(crate) fn drop_all(&self) {
        let tasks = std::mem::take(&mut *self.running.borrow_mut());
        tasks.into_values().for_each(drop_stopped);
    }

    fn end(&self, id: TaskId) {
        self.schedule.end_task(id);
    }
}

/// Drops a task whose process was stopped. A thread of the process may complete the deletion of an
/// interface meanwhile, or stop as well.
fn drop_stopped(task: Task) {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(task)));
    if let Err(panic) = dropped
        && !panic.is::<Stopped>()
    {
        std::panic::resume_unwind(panic);
    }
}
