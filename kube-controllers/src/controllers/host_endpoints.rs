//! Automatic HostEndpoints of nodes, on etcd and on an API server.
//!
//! Only endpoints with Calico's own label are changed or deleted. The endpoints of a missing node
//! are deleted only after the datastore has confirmed that the node is missing.

mod cache;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use datastore::Datastore;
use libcalico::api::{HostEndpoint, Node as CalicoNode, ObjectKey};
use libcalico::host_endpoints::{DesiredEndpoints, HostNode, desired, differs, is_ours};
use libcalico::store::{Entry, Store, StoreError, WriteModel, ignore_missing};
use libcalico::validation::validate_host_endpoint;
use regex_lite::Regex;
use time::OffsetDateTime;
use tokio::sync::watch;
use uuid::Uuid;

use self::cache::HostEndpointCache;
use super::cached::{CachedController, CachedReconcile, SharedCache};
use crate::context::Context;
use crate::runtime::{NextReconcile, Reconcile, ReconcileError};
use crate::settings::{ControllerName, Settings};
use crate::watches::Watches;

/// Delay before the next look when the cache lags behind the datastore.
const CACHE_LAG: Duration = Duration::from_secs(1);

/// The controller. Its keys are names of Calico nodes, also of missing ones that an automatic
/// HostEndpoint names.
pub type HostEndpoints = CachedController<HostEndpointReconciler>;

/// The reconciler of the endpoints of one node.
pub struct HostEndpointReconciler {
    store: Arc<Datastore>,
    settings: watch::Receiver<Arc<Settings>>,
    cache: SharedCache<HostEndpointCache>,
    patterns: PatternCache,
}

enum DueWrite {
    Create(HostEndpoint),
    Update(Box<Entry<HostEndpoint>>, HostEndpoint),
    Delete(Entry<HostEndpoint>),
}

impl CachedReconcile for HostEndpointReconciler {
    type Cache = HostEndpointCache;
    const CONTROLLER: Option<ControllerName> = Some(ControllerName::Node);

    fn subscribe(controller: &HostEndpoints, watches: &mut Watches) {
        controller.subscribe(&mut watches.calico_nodes, HostEndpointCache::apply_node);
        controller.subscribe(
            &mut watches.host_endpoints,
            HostEndpointCache::apply_endpoint,
        );
    }

    fn new(context: &Context, controller: &HostEndpoints) -> Self {
        let (store, settings) = (context.calico.clone(), context.settings.clone());
        let (cache, patterns) = (controller.cache.clone(), PatternCache::default());
        HostEndpointReconciler {
            store,
            settings,
            cache,
            patterns,
        }
    }

    fn all_keys(cache: &HostEndpointCache) -> Vec<String> {
        cache.names()
    }
}

impl Reconcile for HostEndpointReconciler {
    const NAME: &'static str = "host-endpoints";
    type Key = String;

    async fn reconcile(&self, node: &String) -> Result<NextReconcile, ReconcileError> {
        let state = self.cache.lock().state_of(node);
        // The caches are incomplete.
        let Some((host_node, endpoints)) = state else {
            return Ok(NextReconcile::AwaitChange);
        };
        if host_node.is_none() && !endpoints.is_empty() && !self.is_missing(node).await? {
            return Ok(NextReconcile::After(CACHE_LAG));
        }
        let desired = self.desired(host_node);
        let mut problems: Vec<String> = desired.problems.iter().map(ToString::to_string).collect();
        let mut retry = None;
        for write in due_writes(desired.endpoints, endpoints, desired.keep) {
            match self.write(write).await {
                Ok(()) => {}
                Err(ReconcileError::Permanent(problem)) => problems.push(problem),
                Err(failure) => retry = Some(failure),
            }
        }
        match retry {
            Some(failure) => Err(failure),
            None if problems.is_empty() => Ok(NextReconcile::AwaitChange),
            None => Err(ReconcileError::Permanent(problems.join("; "))),
        }
    }
}

impl HostEndpointReconciler {
    /// Returns true if the node is missing. A watch reports an unreadable node as deleted, which is
    /// not a proof.
    async fn is_missing(&self, node: &str) -> Result<bool, ReconcileError> {
        match self.store.get::<CalicoNode>(&ObjectKey::global(node)).await {
            Err(StoreError::NotFound { .. }) => Ok(true),
            Ok(_) => Ok(false),
            // The watch reports the node once it is readable again.
            Err(error @ StoreError::Corrupt { .. }) => Err(ReconcileError::Permanent(format!(
                "cannot read node {node}, and its HostEndpoints stay as they are; correct or \
                 delete the node: {error}"
            ))),
            Err(error) => Err(error.into()),
        }
    }

    fn desired(&self, node: Option<HostNode>) -> DesiredEndpoints {
        let settings = self.settings.borrow().clone();
        let Some(node) = node else {
            return DesiredEndpoints::default();
        };
        desired(&node, &settings.host_endpoints, |pattern, interface| {
            self.patterns
                .is_match(pattern, interface)
                .map_err(|error| format!("`{pattern}`: {error}"))
        })
    }

    async fn write(&self, write: DueWrite) -> Result<(), ReconcileError> {
        match write {
            DueWrite::Create(mut endpoint) => {
                validate(&endpoint)?;
                match self.store.write_model() {
                    WriteModel::Transactional => endpoint
                        .metadata
                        .stamp(Uuid::new_v4(), OffsetDateTime::now_utc()),
                    // An API server assigns uid and creation time itself.
                    WriteModel::PerObject => {}
                }
                match self.store.create(&endpoint.key(), &endpoint).await {
                    Err(StoreError::AlreadyExists { .. }) => self.adopt_existing(&endpoint).await,
                    outcome => Ok(outcome.map(drop)?),
                }
            }
            DueWrite::Update(stored, wanted) => self.update(*stored, &wanted).await,
            DueWrite::Delete(old) => Ok(ignore_missing(
                self.store
                    .delete::<HostEndpoint>(&old.key, Some(&old.revision))
                    .await,
            )?),
        }
    }

    /// Handles a creation that found an existing endpoint. An automatic endpoint, which the cache
    /// does not contain yet, is updated if it differs from `wanted`. An endpoint of a user stays,
    /// and is an error.
    async fn adopt_existing(&self, wanted: &HostEndpoint) -> Result<(), ReconcileError> {
        let stored = self.store.get::<HostEndpoint>(&wanted.key()).await?;
        match (is_ours(&stored.value), differs(&stored.value, wanted)) {
            (false, _) => Err(ReconcileError::Permanent(format!(
                "HostEndpoint {} was not created by kube-controllers and stays as it is; rename it \
                 to give the node an automatic HostEndpoint",
                stored.key
            ))),
            (true, true) => self.update(stored, wanted).await,
            (true, false) => Ok(()),
        }
    }

    /// Updates the fields that this controller manages. Profiles and ports stay, so that people can
    /// change them (KC-488).
    async fn update(
        &self,
        stored: Entry<HostEndpoint>,
        wanted: &HostEndpoint,
    ) -> Result<(), ReconcileError> {
        let mut endpoint = stored.value;
        endpoint.metadata.labels = wanted.metadata.labels.clone();
        endpoint.metadata.annotations = wanted.metadata.annotations.clone();
        endpoint.spec.node = wanted.spec.node.clone();
        endpoint.spec.interface_name = wanted.spec.interface_name.clone();
        endpoint.spec.expected_ips = wanted.spec.expected_ips.clone();
        validate(&endpoint)?;
        Ok(self
            .store
            .update(&stored.key, &endpoint, &stored.revision)
            .await
            .map(drop)?)
    }
}

fn validate(endpoint: &HostEndpoint) -> Result<(), ReconcileError> {
    let refused = |error| {
        ReconcileError::Permanent(format!("HostEndpoint {}: {error}", endpoint.metadata.name))
    };
    validate_host_endpoint(endpoint).map_err(refused)
}

/// Returns the writes that turn the stored endpoints into the wanted ones. With `keep`, none of
/// them is a deletion.
fn due_writes(
    wanted: Vec<HostEndpoint>,
    mut stored: Vec<Entry<HostEndpoint>>,
    keep: bool,
) -> Vec<DueWrite> {
    let mut due = Vec::new();
    for wanted in wanted {
        let key: ObjectKey = wanted.key();
        match stored
            .iter()
            .position(|entry| entry.key == key)
            .map(|at| stored.swap_remove(at))
        {
            None => due.push(DueWrite::Create(wanted)),
            Some(entry) if differs(&entry.value, &wanted) => {
                due.push(DueWrite::Update(Box::new(entry), wanted))
            }
            Some(_) => {}
        }
    }
    if !keep {
        due.extend(stored.into_iter().map(DueWrite::Delete));
    }
    due
}

const MAX_PATTERNS: usize = 64;

/// A cache of the compiled regular expressions of templates.
#[derive(Debug, Default)]
struct PatternCache {
    compiled: Mutex<HashMap<String, Result<Regex, regex_lite::Error>>>,
}

impl PatternCache {
    /// Returns true if `pattern` matches any part of `interface`. Classes such as `\d` are ASCII
    /// only, as in Go.
    fn is_match(&self, pattern: &str, interface: &str) -> Result<bool, regex_lite::Error> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if !compiled.contains_key(pattern) && compiled.len() >= MAX_PATTERNS {
            compiled.clear();
        }
        let regex = compiled
            .entry(pattern.into())
            .or_insert_with(|| Regex::new(pattern));
        regex
            .as_ref()
            .map(|regex| regex.is_match(interface))
            .map_err(Clone::clone)
    }
}
