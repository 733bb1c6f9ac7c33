//! [`Collecting`]: the kinds of datastore, API server, clock and right to write on
//! which a simulated pass of garbage collection acts.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use allocation::write_gate::WriteGate;
use datastore::watch::WatchEvent;
use futures::{Stream, StreamExt, stream};
use kube_controllers::gc::{Background, ClusterApi, ListedStore, PassGate, PodPage, Posted, World};
use kube_controllers::runtime::ReconcileError;
use kube_controllers::watched::{Pod, Projection, ProjectionOptions};
use libcalico::api::ObjectKey;
use libcalico::failure::Failure;
use libcalico::kubernetes::Resource;
use libcalico::store::{Entry, Kind, ReadBatch, Store};
use os::clock::Clock;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;

use crate::datastore::NodeStore;
use crate::kubernetes_objects::KubernetesObjects;
use crate::node_time::right_date;
use crate::plants::Plant;
use crate::schedule::{Fate, Schedule, Wait};

/// The pause after a list that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// The kinds on which a simulated pass acts.
#[derive(Debug)]
pub struct Collecting;

impl World for Collecting {
    type Store = NodeStore;
    type Api = SimulatedApi;
    type Clock = LeaderClock;
    type Gate = OpenTerm;
    type Background = Beside;
}

impl ListedStore for NodeStore {
    fn events<K: Kind>(
        &self,
        select: &K::Select,
    ) -> Option<impl Stream<Item = WatchEvent<Entry<K>, K::Key>> + Send> {
        let mut batch = ReadBatch::new();
        let ticket = batch.list::<K>(select);
        let read = async move {
            loop {
                match self.read(&batch).await {
                    Ok(answers) => return answers,
                    Err(_) => self.pause(PAUSE).await,
                }
            }
        };
        let listed = stream::once(read).flat_map(move |answers| {
            let entries = answers.each(&ticket).filter_map(|(_, entry)| entry.ok());
            let upserts: Vec<_> = entries.map(WatchEvent::Upsert).collect();
            let begin = std::iter::once(WatchEvent::ListStart);
            stream::iter(
                begin
                    .chain(upserts)
                    .chain(std::iter::once(WatchEvent::ListEnd)),
            )
        });
        Some(listed)
    }
}

/// The API server, whose answers wait on the schedule.
#[derive(Debug, Clone)]
pub struct SimulatedApi {
    /// The waits of all calls.
    pub schedule: Schedule,
    /// The objects.
    pub objects: KubernetesObjects,
    /// A planted fault.
    pub plant: Plant,
}

impl SimulatedApi {
    async fn ask(&self, text: String) -> Result<(), ReconcileError> {
        let wait = Wait::Request {
            text,
            is_write: false,
            may_lag: false,
        };
        match self.schedule.wait(wait).await {
            Fate::Served | Fate::ServedFromCache(_) => Ok(()),
            Fate::ServedSlowly => {
                self.schedule.wait(Wait::Answer).await;
                Ok(())
            }
            fate => Err(ReconcileError::Retry(format!("{fate:?}"))),
        }
    }
}

impl ClusterApi for SimulatedApi {
    async fn exists(&self, resource: Resource, key: &ObjectKey) -> Result<bool, ReconcileError> {
        self.ask(format!("look up {} {key}", resource.kind)).await?;
        Ok(resource.kind == "Node" && self.objects.has_node(&key.name))
    }

    async fn pod(&self, key: &ObjectKey) -> Result<Option<Box<RawValue>>, ReconcileError> {
        self.ask(format!("look up Pod {key}")).await?;
        let pod = self.objects.pod(&key.name);
        let found = pod.filter(|_| self.plant != Plant::AbsentOwners);
        Ok(found
            .map(|pod| RawValue::from_string(pod.json().to_string()).expect("the text is JSON")))
    }

    async fn pods_of_node(&self, node: &str, _: Option<&str>) -> Result<PodPage, ReconcileError> {
        self.ask(format!("look up the pods of {node}")).await?;
        let project = |text: String| {
            Pod::project(&text, ProjectionOptions::default()).expect("the pod can be read")
        };
        let pods = self.objects.pods_of_node(node).into_iter();
        Ok(PodPage {
            pods: pods.map(|pod| project(pod.json().to_string())).collect(),
            next: None,
        })
    }

    async fn serves(&self, group: &str, _: &[&str]) -> Result<bool, ReconcileError> {
        self.ask(format!("look up {group}")).await?;
        Ok(false)
    }

    async fn time(&self) -> Result<OffsetDateTime, Failure> {
        let asked = self.ask("read the time".into()).await;
        asked.map_err(|error| Failure::new(format_args!("{error}")))?;
        let date = right_date(&self.schedule);
        Ok(date.replace_nanosecond(0).unwrap_or(date))
    }

    async fn post_event(&self, may_write: bool, _: Value) -> Posted {
        match may_write {
            true => Posted::Created,
            false => Posted::Failed,
        }
    }
}

/// The clock of a leader. Grace periods follow the long time of the schedule; the time of one
/// operation follows its steps.
#[derive(Debug, Clone)]
pub struct LeaderClock {
    schedule: Schedule,
    /// The begin of the operation, or `None` for grace periods.
    operation: Option<Duration>,
}

impl LeaderClock {
    /// Creates the clock of grace periods.
    pub fn new(schedule: &Schedule) -> Self {
        LeaderClock {
            schedule: schedule.clone(),
            operation: None,
        }
    }
}

impl Clock for LeaderClock {
    fn now(&self) -> OffsetDateTime {
        right_date(&self.schedule)
    }

    fn elapsed(&self) -> Duration {
        match self.operation {
            None => self.schedule.long_time(),
            Some(began) => self.schedule.now().saturating_sub(began),
        }
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        let waiting = self
            .schedule
            .wait(Wait::Until(self.schedule.now() + duration));
        async move {
            waiting.await;
        }
    }

    fn restarted(&self) -> Self {
        LeaderClock {
            schedule: self.schedule.clone(),
            operation: Some(self.schedule.now()),
        }
    }
}

/// The right to write of a leader whose term ends with its task.
#[derive(Debug, Default)]
pub struct OpenTerm;

impl WriteGate for OpenTerm {
    async fn admit(&self, _: usize) -> bool {
        true
    }
}

impl PassGate for OpenTerm {
    fn is_open(&self) -> bool {
        true
    }

    async fn pace(&self, _: usize) {}

    async fn while_leading<F: Future>(&self, work: F) -> Option<F::Output> {
        Some(work.await)
    }

    async fn report_wait(&self) {}
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The work beside the passes of a leader, which goes on when the leader does. Clones share it.
#[derive(Clone, Default)]
pub struct Beside(Arc<Mutex<Option<Work>>>);

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Beside").finish_non_exhaustive()
    }
}

impl Background for Beside {
    fn start_if_idle(&mut self, work: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.get_or_insert_with(|| Box::pin(work));
    }
}

impl Beside {
    /// Lets the work go on. Returns true if there is none.
    pub fn poll(&self, context: &mut Context<'_>) -> bool {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(work) = &mut *running
            && work.as_mut().poll(context) == Poll::Ready(())
        {
            *running = None;
        }
        running.is_none()
    }
}
