//! [`simulate`]: draws a cluster and a schedule, and lets the schedule end.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::choices::Choices;
use crate::cluster::Cluster;
use crate::datastore::SharedDatastore;
use crate::invariants::{Invariants, Violation};
use crate::schedule::{Fate, Schedule, TaskId, Wait};
use crate::tasks::{StepEnd, Tasks};
use crate::{actors, drawn_cluster, pods};

/// The number of steps after which a schedule is stuck.
const MOST_STEPS: usize = 20_000;

/// The number of faults of a schedule at most.
const MOST_FAULTS: usize = 6;

/// The result of a schedule.
#[derive(Debug)]
pub struct Outcome {
    /// The number of steps.
    pub steps: usize,
    /// The number of faults.
    pub faults: usize,
    /// The first invariant that did not hold.
    pub violation: Option<Violation>,
    /// The steps in words, if they were wanted.
    pub story: Vec<String>,
    /// The numbers that determine the schedule.
    pub choices: Vec<u32>,
}

/// Whether to write the story of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Story {
    /// Each step in words.
    Told,
    /// None, which is faster.
    Omitted,
}

/// Runs one schedule. Files of the nodes are below `directory`.
pub fn simulate(choices: Choices, directory: &Path, story: Story) -> Outcome {
    // The shipped code draws handles' names and blocks from this generator.
    fastrand::seed(1);
    let schedule = Schedule::default();
    let choices = Rc::new(RefCell::new(choices));
    let drawn = drawn_cluster::draw(&mut choices.borrow_mut(), directory);
    let cluster = Cluster {
        tasks: Tasks::new(&schedule),
        schedule,
        choices: Rc::clone(&choices),
        datastore: SharedDatastore::new(drawn.content),
        nodes: Rc::new(drawn.nodes),
        sandboxes: Rc::default(),
        waiting: Rc::default(),
        is_calm: Rc::default(),
    };
    let rates = Rates::draw(&mut choices.borrow_mut());
    for (pod, node) in drawn.pods {
        let life = pods::live(cluster.clone(), pod.clone(), node);
        cluster.tasks.start_actor(&pod, life);
    }
    actors::start(&cluster);
    let mut run = Run {
        invariants: Invariants::default(),
        rates,
        last: 0,
        steps: 0,
        faults: 0,
        story: (story == Story::Told).then(Vec::new),
        cluster,
    };
    let violation = run.to_the_end().err();
    let Run {
        steps,
        faults,
        story,
        cluster,
        ..
    } = run;
    // The tasks contain the cluster, which contains the tasks.
    cluster.tasks.drop_all();
    drop(cluster);
    let choices = Rc::into_inner(choices).expect("no task is left").into_inner();
    Outcome {
        steps,
        faults,
        violation,
        story: story.unwrap_or_default(),
        choices: choices.into_made(),
    }
}

/// How often a schedule departs from the plain order: once in this number of steps, or never.
#[derive(Debug)]
struct Rates {
    change_of_task: usize,
    fault: usize,
    stop: usize,
    time: usize,
}

impl Rates {
    fn draw(choices: &mut Choices) -> Self {
        let mut one_of = |rates: [usize; 4]| rates[choices.below(4)];
        Rates {
            change_of_task: one_of([2, 1, 5, 20]),
            fault: one_of([0, 10, 30, 100]),
            stop: one_of([0, 30, 100, 300]),
            time: one_of([100, 10, 30, 0]),
        }
    }
}

struct Run {
    cluster: Cluster,
    invariants: Invariants,
    rates: Rates,
    /// The task of the last step.
    last: TaskId,
    steps: usize,
    faults: usize,
    story: Option<Vec<String>>,
}

/// A step that is possible now.
enum Step {
    /// A wait whose event may come.
    End(u64, TaskId, Wait),
    /// A task that can go on by itself.
    GoOn(TaskId),
    /// A write that reaches the datastore late.
    LateWrite(usize),
}

impl Run {
    fn to_the_end(&mut self) -> Result<(), Violation> {
        loop {
            self.let_tasks_end()?;
            if *self.cluster.is_calm.borrow() {
                break;
            }
            self.calm_down();
        }
        let end = actors::clean_up(self.cluster.clone());
        self.cluster.tasks.start_actor("clean-up", end);
        self.let_tasks_end()?;
        self.invariants.at_rest(&self.cluster)
    }

    fn let_tasks_end(&mut self) -> Result<(), Violation> {
        while self.step()? {
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return Err(Violation::new("a schedule ends", "too many steps"));
            }
            if self.faults >= MOST_FAULTS && self.cluster.is_rough() {
                self.calm_down();
            }
        }
        Ok(())
    }

    fn calm_down(&mut self) {
        self.tell(|| "From now on no fault occurs.".into());
        *self.cluster.is_calm.borrow_mut() = true;
        while self.cluster.datastore.late_writes() > 0 {
            self.end_late_write(0);
        }
    }

    /// Takes one step. Returns false if none is possible.
    fn step(&mut self) -> Result<bool, Violation> {
        if self.cluster.is_rough() && self.stop_a_call() {
            return self.checked();
        }
        let times = self.rates.time;
        if self.cluster.choices.borrow_mut().one_in(times) && self.pass_time() {
            return self.checked();
        }
        let mut steps = self.possible_steps();
        if steps.is_empty() {
            return Ok(self.pass_time());
        }
        let times = self.rates.change_of_task;
        let chosen = self.cluster.choices.borrow_mut().mostly_zero(steps.len(), times);
        match steps.swap_remove(chosen) {
            Step::GoOn(task) => self.go_on(task),
            Step::LateWrite(index) => self.end_late_write(index),
            Step::End(id, task, wait) => {
                let fate = match &wait {
                    Wait::Request { is_write, may_lag, .. } => self.fate(*is_write, *may_lag),
                    _ => Fate::Served,
                };
                self.tell_wait(task, &wait, fate);
                self.cluster.schedule.end(id, fate);
                self.go_on(task);
            }
        }
        self.checked()
    }

    fn checked(&mut self) -> Result<bool, Violation> {
        self.invariants.after_step(&self.cluster)?;
        Ok(true)
    }

    /// Returns the possible steps. Those of the task that ran last come first.
    fn possible_steps(&self) -> Vec<Step> {
        let tasks = &self.cluster.tasks;
        let mut steps: Vec<Step> = tasks.woken().into_iter().map(Step::GoOn).collect();
        self.cluster.schedule.each_wait(|id, task, wait, has_come| {
            if has_come {
                steps.push(Step::End(id, task, wait.clone()));
            }
        });
        steps.sort_by_key(|step| match step {
            Step::GoOn(task) | Step::End(_, task, _) => *task != self.last,
            Step::LateWrite(_) => true,
        });
        let late = self.cluster.datastore.late_writes();
        steps.extend((0..late).map(Step::LateWrite));
        steps
    }

    fn go_on(&mut self, task: TaskId) {
        self.last = task;
        let name = self.cluster.tasks.name(task);
        match self.cluster.tasks.step(task) {
            StepEnd::Waits => {}
            StepEnd::Ended => self.tell(|| format!("{name} ends.")),
            StepEnd::Stopped => {
                self.faults += 1;
                self.tell(|| format!("{name} is stopped in the kernel."));
            }
        }
    }

    fn fate(&mut self, is_write: bool, may_lag: bool) -> Fate {
        let mut choices = self.cluster.choices.borrow_mut();
        if may_lag && choices.one_in(3) {
            return Fate::ServedFromCache(choices.below(12) + 1);
        }
        if !*self.cluster.is_calm.borrow() && choices.one_in(self.rates.fault) {
            let fates = match is_write {
                true => &[
                    Fate::ServedSlowly,
                    Fate::Refused,
                    Fate::LostRequest,
                    Fate::LostAnswer,
                    Fate::Late,
                    Fate::Foreign,
                    Fate::ForeignAnswer,
                ][..],
                false => &[Fate::ServedSlowly, Fate::Refused, Fate::Foreign],
            };
            let fate = fates[choices.below(fates.len())];
            self.faults += usize::from(fate != Fate::ServedSlowly);
            return fate;
        }
        Fate::Served
    }

    fn stop_a_call(&mut self) -> bool {
        let calls = self.cluster.tasks.calls(None);
        let mut choices = self.cluster.choices.borrow_mut();
        if calls.is_empty() || !choices.one_in(self.rates.stop) {
            return false;
        }
        let call = calls[choices.below(calls.len())];
        drop(choices);
        self.faults += 1;
        let name = self.cluster.tasks.name(call);
        self.tell(|| format!("{name} is stopped."));
        self.cluster.tasks.stop(call);
        true
    }

    /// Moves the time to the next moment for which a task waits.
    fn pass_time(&mut self) -> bool {
        let mut next: Option<Duration> = None;
        self.cluster.schedule.each_wait(|_, _, wait, has_come| {
            if let (Wait::Until(time) | Wait::OtherStep { until: time, .. }, false) =
                (wait, has_come)
            {
                next = Some(next.map_or(*time, |next| next.min(*time)));
            }
        });
        let Some(next) = next else {
            return false;
        };
        self.tell(|| format!("It is {next:?} after the begin."));
        self.cluster.schedule.advance_to(next);
        true
    }

    fn end_late_write(&mut self, index: usize) {
        let is_lost = self.cluster.choices.borrow_mut().one_in(2);
        let text = self.cluster.datastore.end_late_writes(index, is_lost);
        self.tell(|| match is_lost {
            true => format!("A write is lost for good: {text}."),
            false => format!("A late write reaches the datastore: {text}."),
        });
    }

    fn tell_wait(&mut self, task: TaskId, wait: &Wait, fate: Fate) {
        let name = self.cluster.tasks.name(task);
        let text = match wait {
            Wait::Request { text, .. } => text,
            Wait::Answer => "gets its answer",
            Wait::Until(_) => "has waited long enough",
            Wait::OtherStep { .. } => "tries again",
            Wait::Task(_) | Wait::Later => return,
        };
        self.tell(|| match fate {
            Fate::Served => format!("{name}: {text}"),
            fate => format!("{name}: {text} ({fate:?})"),
        });
    }

    fn tell(&mut self, text: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(text());
        }
    }
}
