//! Automatic HostEndpoints of nodes, in either datastore.
//!
//! [`libcalico::host_endpoints`] computes the desired endpoints; this controller compares them with the stored ones.
//! Only endpoints with Calico's own label are changed or deleted. Those of a missing node are deleted only after the
//! datastore has confirmed that the node is missing.

mod memory;
mod patterns;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datastore::Datastore;
use libcalico::api::{HostEndpoint, Node as CalicoNode, ObjectKey};
use libcalico::host_endpoints::{Desired, HostNode, desired, differs, is_ours};
use libcalico::store::{Entry, Store, StoreError};
use libcalico::validation::validate_host_endpoint;
use time::OffsetDateTime;
use tokio::sync::watch;
use uuid::Uuid;

use self::memory::{Memory, Seen};
use self::patterns::Patterns;
use super::rounds::rounds;
use crate::context::{Context, Controller};
use crate::feed::{Event, Feeds};
use crate::runtime::{self, Failure, Next, Queue, Reconcile};
use crate::settings::{ControllerName, Settings};

/// Delay before the next look when the cache lags behind the datastore.
const LAG: Duration = Duration::from_secs(1);

/// The controller. Its keys are names of Calico nodes. A Kubernetes node of the same name is not required.
pub struct HostEndpoints {
    queue: Queue<String>,
    memory: Arc<Mutex<Memory>>,
}

impl Controller for HostEndpoints {
    const NAME: &'static str = "host-endpoints";

    fn new(_: &Context, feeds: &mut Feeds) -> Self {
        let (queue, memory) = (Queue::default(), Arc::<Mutex<Memory>>::default());
        let nodes = (queue.clone(), memory.clone());
        feeds.calico_nodes.subscribe(move |event: &Event<'_, Entry<CalicoNode>>| {
            let touched = nodes.1.lock().unwrap_or_else(PoisonError::into_inner).hear_node(event);
            touched.into_iter().for_each(|name| nodes.0.add(name));
        });
        let endpoints = (queue.clone(), memory.clone());
        feeds.host_endpoints.subscribe(move |event: &Event<'_, Entry<HostEndpoint>>| {
            let touched = endpoints.1.lock().unwrap_or_else(PoisonError::into_inner).hear_endpoint(event);
            touched.into_iter().for_each(|name| endpoints.0.add(name));
        });
        HostEndpoints { queue, memory }
    }

    async fn run(self, context: Context) {
        let all = || {
            let names = self.memory.lock().unwrap_or_else(PoisonError::into_inner).names();
            names.into_iter().for_each(|name| self.queue.add(name));
        };
        let syncer = Arc::new(Syncer {
            store: context.calico.clone(),
            settings: context.settings.clone(),
            memory: self.memory.clone(),
            patterns: Patterns::default(),
        });
        let workers = context.settings.borrow().workers_of(ControllerName::Node);
        tokio::join!(runtime::run(syncer, self.queue.clone(), workers, context.clone()), rounds(&context, all));
    }
}

struct Syncer {
    store: Arc<Datastore>,
    settings: watch::Receiver<Arc<Settings>>,
    memory: Arc<Mutex<Memory>>,
    patterns: Patterns,
}

/// A write that is due.
enum Due {
    Create(HostEndpoint),
    Update(Box<Entry<HostEndpoint>>, HostEndpoint),
    Delete(Entry<HostEndpoint>),
}

impl Reconcile for Syncer {
    const NAME: &'static str = HostEndpoints::NAME;
    type Key = String;

    async fn reconcile(&self, node: &String) -> Result<Next, Failure> {
        let seen = self.memory.lock().unwrap_or_else(PoisonError::into_inner).of(node);
        // The caches are incomplete. When the last list is complete, all nodes are queued.
        let Some(Seen { node: facts, endpoints }) = seen else { return Ok(Next::Done) };
        if facts.is_none() && !endpoints.is_empty() && !self.is_gone(node).await? {
            return Ok(Next::After(LAG));
        }
        let wanted = self.desired(facts);
        let mut problems: Vec<String> = wanted.problems.iter().map(ToString::to_string).collect();
        let mut retry = None;
        for due in due(wanted.endpoints, endpoints, wanted.keep) {
            match self.write(due).await {
                Ok(()) => {}
                Err(Failure::Permanent(problem)) => problems.push(problem),
                // Continues with the other endpoints of the node.
                Err(failure) => retry = Some(failure),
            }
        }
        match retry {
            Some(failure) => Err(failure),
            None if problems.is_empty() => Ok(Next::Done),
            None => Err(Failure::Permanent(problems.join("; "))),
        }
    }
}

impl Syncer {
    /// Returns true if the node is missing. A watch reports an unreadable node as deleted, which is not a proof.
    async fn is_gone(&self, node: &str) -> Result<bool, Failure> {
        match self.store.get::<CalicoNode>(&ObjectKey::global(node)).await {
            Err(StoreError::NotFound { .. }) => Ok(true),
            Ok(_) => Ok(false),
            // The watch reports the node once it is readable again.
            Err(error @ StoreError::Corrupt { .. }) => Err(Failure::Permanent(format!(
                "the HostEndpoints of node {node} stay as they are until it is mended or deleted: {error}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    fn desired(&self, node: Option<HostNode>) -> Desired {
        let settings = self.settings.borrow().clone();
        let Some(node) = node else { return Desired::default() };
        desired(&node, &settings.host_endpoints, |pattern, interface| self.patterns.is_match(pattern, interface))
    }

    async fn write(&self, due: Due) -> Result<(), Failure> {
        match due {
            Due::Create(mut endpoint) => {
                check(&endpoint)?;
                // An API server assigns uid and creation time itself.
                if self.store.has_transactions() {
                    endpoint.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
                }
                match self.store.create(&endpoint.key(), &endpoint).await {
                    Err(StoreError::AlreadyExists { .. }) => self.settle(&endpoint).await,
                    outcome => Ok(outcome.map(drop)?),
                }
            }
            Due::Update(found, wanted) => self.update(*found, &wanted).await,
            Due::Delete(found) => match self.store.delete::<HostEndpoint>(&found.key, Some(&found.revision)).await {
                // Another writer deleted the endpoint first, which is success.
                Err(StoreError::NotFound { .. }) => Ok(()),
                outcome => Ok(outcome?),
            },
        }
    }

    /// Handles a creation that found an existing endpoint: either ours, which the cache does not contain yet, or a
    /// user's own.
    async fn settle(&self, wanted: &HostEndpoint) -> Result<(), Failure> {
        let found = self.store.get::<HostEndpoint>(&wanted.key()).await?;
        match (is_ours(&found.value), differs(&found.value, wanted)) {
            (false, _) => Err(Failure::Permanent(format!(
                "HostEndpoint {} is not ours and stays as it is; rename it, and the node gets its own",
                found.key
            ))),
            (true, true) => self.update(found, wanted).await,
            (true, false) => Ok(()),
        }
    }

    /// Updates the fields that this controller manages. All other fields stay as they are.
    async fn update(&self, found: Entry<HostEndpoint>, wanted: &HostEndpoint) -> Result<(), Failure> {
        let mut endpoint = found.value;
        endpoint.metadata.labels = wanted.metadata.labels.clone();
        endpoint.metadata.annotations = wanted.metadata.annotations.clone();
        endpoint.spec.node = wanted.spec.node.clone();
        endpoint.spec.interface_name = wanted.spec.interface_name.clone();
        endpoint.spec.expected_ips = wanted.spec.expected_ips.clone();
        endpoint.spec.profiles = wanted.spec.profiles.clone();
        check(&endpoint)?;
        self.store.update(&found.key, &endpoint, &found.revision).await?;
        Ok(())
    }
}

fn check(endpoint: &HostEndpoint) -> Result<(), Failure> {
    let refused = |error| Failure::Permanent(format!("HostEndpoint {}: {error}", endpoint.metadata.name));
    validate_host_endpoint(endpoint).map_err(refused)
}

/// Returns the writes that turn the found endpoints into the wanted ones. With `keep`, none of them is a deletion.
fn due(wanted: Vec<HostEndpoint>, mut found: Vec<Entry<HostEndpoint>>, keep: bool) -> Vec<Due> {
    let mut due = Vec::new();
    for wanted in wanted {
        let key: ObjectKey = wanted.key();
        match found.iter().position(|entry| entry.key == key) {
            None => due.push(Due::Create(wanted)),
            Some(at) => {
                let entry = found.swap_remove(at);
                if differs(&entry.value, &wanted) {
                    due.push(Due::Update(Box::new(entry), wanted));
                }
            }
        }
    }
    if !keep {
        due.extend(found.into_iter().map(Due::Delete));
    }
    due
}
