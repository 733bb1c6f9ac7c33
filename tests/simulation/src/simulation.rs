//! [`simulate`]: draws a cluster and a schedule, and lets the schedule end.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::choices::{Choices, Numbers};
use crate::cluster::Cluster;
use crate::datastore::SharedDatastore;
use crate::invariants::{Excused, Invariants, Violation};
use crate::kubernetes_objects::KubernetesObjects;
use crate::plants::Plant;
use crate::schedule::{Candidate, Fate, Rates, Schedule, TaskId, Wait};
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
    /// The violations that a limit excuses.
    pub excused: Excused,
    /// The first invariant that did not hold.
    pub violation: Option<Violation>,
    /// The steps in words, if they were wanted.
    pub story: Vec<String>,
    /// The numbers that determine the schedule.
    pub choices: Numbers,
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
pub fn simulate(choices: Choices, plant: Plant, directory: &Path, story: Story) -> Outcome {
    // The shipped code draws handles' names and blocks from this generator.
    fastrand::seed(1);
    let schedule = Schedule::new(choices);
    let drawn = drawn_cluster::draw(&schedule, directory);
    let cluster = Cluster {
        tasks: Tasks::new(&schedule),
        schedule: schedule.clone(),
        datastore: SharedDatastore::new(drawn.content),
        nodes: Rc::new(drawn.nodes),
        sandboxes: Rc::default(),
        waiting: Rc::default(),
        kubernetes: KubernetesObjects::default(),
        plant,
    };
    let nodes = cluster.nodes.iter();
    nodes.for_each(|node| cluster.kubernetes.create_node(&node.name));
    schedule.set_rates(draw_rates(&schedule));
    for (pod, node) in drawn.pods {
        let life = pods::live(cluster.clone(), pod.clone(), node);
        cluster.tasks.start_actor(&pod, life);
    }
    actors::start(&cluster);
    let mut run = Run {
        cluster,
        invariants: Invariants::default(),
        steps: 0,
        faults: 0,
        story: (story == Story::Told).then(Vec::new),
    };
    let violation = run.run_to_end().err();
    // The tasks contain the cluster, which contains the tasks.
    run.cluster.tasks.drop_all();
    Outcome {
        steps: run.steps,
        faults: run.faults,
        excused: run.invariants.excused,
        violation,
        story: run.story.unwrap_or_default(),
        choices: schedule.take_choices().into_made(),
    }
}

fn draw_rates(schedule: &Schedule) -> Rates {
    let one_of = |rates: [usize; 4]| rates[schedule.below(4)];
    Rates {
        delay: one_of([0, 2, 8, 40]),
        fault: one_of([0, 10, 30, 100]),
        stop: one_of([0, 20, 60, 200]),
        step: Duration::from_millis([1, 10, 100, 2000][schedule.below(4)]),
    }
}

struct Run {
    cluster: Cluster,
    invariants: Invariants,
    steps: usize,
    faults: usize,
    story: Option<Vec<String>>,
}

impl Run {
    fn run_to_end(&mut self) -> Result<(), Violation> {
        self.let_tasks_end()?;
        self.calm_down();
        let end = actors::clean_up(self.cluster.clone());
        self.cluster.tasks.start_actor("clean-up", end);
        self.let_tasks_end()?;
        self.invariants.at_rest(&self.cluster)
    }

    fn let_tasks_end(&mut self) -> Result<(), Violation> {
        while self.step() {
            self.invariants.after_step(&self.cluster)?;
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
        if self.cluster.is_rough() {
            self.tell(|| "From now on no fault occurs.".into());
            self.cluster.schedule.calm_down();
        }
        while self.end_late_write(u64::MAX) {}
    }

    /// Takes one step. Returns false if none is possible.
    fn step(&mut self) -> bool {
        if self.end_late_write(self.cluster.schedule.steps()) {
            return true;
        }
        if let Some(task) = self.cluster.tasks.woken() {
            self.go_on(task);
            return true;
        }
        match self.cluster.schedule.next_wait() {
            Some(next) => self.end_wait(next),
            None => return self.pass_time() || self.end_late_write(u64::MAX),
        }
        true
    }

    fn end_wait(&mut self, next: Candidate) {
        let schedule = self.cluster.schedule.clone();
        let Candidate { id, task, wait, .. } = next;
        let name = self.cluster.tasks.name(task);
        schedule.choose_for(&name);
        let rates = schedule.rates();
        let is_rough = self.cluster.is_rough();
        if is_rough && self.cluster.tasks.is_call(task) && schedule.one_in(rates.stop) {
            self.faults += 1;
            self.tell(|| format!("{name} is stopped."));
            self.cluster.tasks.stop(task);
            return;
        }
        let fate = match &wait {
            Wait::Request {
                is_write, may_lag, ..
            } => self.fate(*is_write, *may_lag),
            _ => Fate::Served,
        };
        self.tell_wait(&name, &wait, fate);
        schedule.end(id, fate);
        self.go_on(task);
    }

    fn go_on(&mut self, task: TaskId) {
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
        let schedule = &self.cluster.schedule;
        if may_lag && schedule.one_in(3) {
            return Fate::ServedFromCache(schedule.below(12) + 1);
        }
        if !self.cluster.is_rough() || !schedule.one_in(schedule.rates().fault) {
            return Fate::Served;
        }
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
        let fate = fates[schedule.below(fates.len())];
        self.faults += usize::from(fate != Fate::ServedSlowly);
        fate
    }

    /// Moves the time to the next one for which a task waits.
    fn pass_time(&mut self) -> bool {
        let Some(time) = self.cluster.schedule.next_time() else {
            return false;
        };
        self.tell(|| format!("It is {time:?} after the begin."));
        self.cluster.schedule.advance_to(time);
        true
    }

    fn end_late_write(&mut self, step: u64) -> bool {
        let Some((text, is_lost)) = self.cluster.datastore.end_late_writes(step) else {
            return false;
        };
        self.tell(|| match is_lost {
            true => format!("Lost for good: {text}."),
            false => format!("Reaches the datastore late: {text}."),
        });
        true
    }

    fn tell_wait(&mut self, name: &str, wait: &Wait, fate: Fate) {
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
