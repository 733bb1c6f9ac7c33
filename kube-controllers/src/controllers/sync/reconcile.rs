//! [`SyncReconciler`]: compares targets with their sources, and writes those that differ.

use std::collections::HashSet;

use datastore::watch::ObjectChange;
use libcalico::api::{Object, ObjectKey, ObjectSelect, Spec};
use libcalico::store::{Entry, ReadBatch, Revision, Store, StoreError, ignore_missing};
use prometheus::{IntGauge, Opts};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{SourceCache, SyncedKind};
use crate::api_reads;
use crate::context::Context;
use crate::controllers::cached::{CachedController, CachedReconcile, ResyncKey, SharedCache};
use crate::runtime::{NextReconcile, Queue, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::Watches;

/// The reconciler of one kind.
pub struct SyncReconciler<K: SyncedKind> {
    cache: SharedCache<SourceCache<K>>,
    queue: Queue<ResyncKey>,
    context: Context,
    invalid: Option<IntGauge>,
}

/// A stored target. `object` is `None` if the bytes are unreadable.
struct StoredTarget<S: Spec> {
    revision: Revision,
    object: Option<Object<S>>,
}

impl<K: SyncedKind> CachedReconcile for SyncReconciler<K> {
    type Cache = SourceCache<K>;
    const CONTROLLER: Option<ControllerName> = Some(K::CONTROLLER);
    const NOT_NEEDED_IN_KUBERNETES: Option<&'static str> = Some("these objects are derived from Kubernetes");

    fn subscribe(controller: &CachedController<Self>, watches: &mut Watches) {
        controller.subscribe(K::watch(watches), SourceCache::apply);
    }

    fn new(context: &Context, controller: &CachedController<Self>) -> Self {
        let (cache, queue) = (controller.cache.clone(), controller.queue.clone());
        let invalid = invalid_targets(K::NAME).filter(|gauge| context.metrics.register(gauge.clone()).is_ok());
        SyncReconciler { cache, queue, context: context.clone(), invalid }
    }
}

impl<K: SyncedKind> Reconcile for SyncReconciler<K> {
    const NAME: &'static str = K::NAME;
    type Key = ResyncKey;

    async fn reconcile(&self, key: &ResyncKey) -> Result<NextReconcile, ReconcileError> {
        // Before the first list is complete, sources that have not been delivered would look deleted.
        if !self.cache.lock().sources.is_synced() {
            return Ok(NextReconcile::AwaitChange);
        }
        match key {
            ResyncKey::All => self.compare_all().await,
            ResyncKey::One(key) => self.sync(key).await,
        }
    }
}

impl<K: SyncedKind> SyncReconciler<K> {
    /// Queues the targets that differ from their sources, have no source, or are missing and did not fail the
    /// validation before. Skips a target with an unreadable key. Returns the time of the next comparison.
    async fn compare_all(&self) -> Result<NextReconcile, ReconcileError> {
        // Objects in namespaces cannot be listed by a prefix of their names.
        let name_prefix = if K::Target::NAMESPACED { String::new() } else { K::PREFIX.to_owned() };
        let mut pages = self.context.calico.pages::<Object<K::Target>>(ObjectSelect { namespace: None, name_prefix });
        let mut missing: HashSet<ObjectKey> = self.cache.lock().targets().into_iter().collect();
        while let Some(page) = pages.next().await? {
            let listed = page.into_iter().filter_map(key_and_spec);
            for (key, spec) in listed.filter(|(key, _)| key.name.starts_with(K::PREFIX)) {
                missing.remove(&key);
                let desired = self.desired(&key);
                if !desired.is_some_and(|(wanted, _)| spec.is_some_and(|spec| spec == wanted)) {
                    self.queue.add(ResyncKey::One(key));
                }
            }
        }
        missing.into_iter().for_each(|key| self.queue.add(ResyncKey::One(key)));
        Ok(self.next_comparison())
    }

    /// A period of zero means that only the first comparison happens.
    fn next_comparison(&self) -> NextReconcile {
        let period = self.context.settings.borrow().reconcile_period.get(&K::CONTROLLER).copied();
        period.filter(|period| !period.is_zero()).map_or(NextReconcile::AwaitChange, NextReconcile::After)
    }

    async fn sync(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        let stored = self.stored(key).await?;
        match (self.desired(key), stored) {
            (None, None) => {}
            (None, Some(stored)) => self.delete(key, &stored.revision).await?,
            (Some((wanted, _)), Some(StoredTarget { object: Some(object), .. })) if object.spec == wanted => {}
            (Some(wanted), stored) => self.write(key, wanted, stored).await?,
        }
        self.publish_invalid();
        Ok(NextReconcile::AwaitChange)
    }

    /// Returns the desired `spec` of the target under `key`, and the parts of its source that were left out. Returns
    /// `None` if the target has no source.
    fn desired(&self, key: &ObjectKey) -> Option<(K::Target, Vec<String>)> {
        let source = K::source_of(key)?;
        let cached = self.cache.lock().sources.get(&source)?.clone();
        Some(K::convert(&source, &cached))
    }

    async fn stored(&self, key: &ObjectKey) -> Result<Option<StoredTarget<K::Target>>, StoreError> {
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<Object<K::Target>>(key);
        let answers = self.context.calico.read(&batch).await?;
        let Some(raw) = answers.raw(&ticket) else { return Ok(None) };
        let revision = raw.revision.clone();
        let object = match answers.get(&ticket) {
            Ok(entry) => entry.map(|entry| entry.value),
            Err(error) => {
                tracing::warn!(
                    controller = K::NAME, %key,
                    "an object is unreadable and is to be replaced or deleted: {error}"
                );
                None
            }
        };
        Ok(Some(StoredTarget { revision, object }))
    }

    async fn write(
        &self,
        key: &ObjectKey,
        (spec, problems): (K::Target, Vec<String>),
        stored: Option<StoredTarget<K::Target>>,
    ) -> Result<(), ReconcileError> {
        let (revision, object) = match stored {
            Some(StoredTarget { revision, object }) => (Some(revision), object),
            None => (None, None),
        };
        let mut object = object.unwrap_or_else(|| new_target(key));
        object.spec = spec;
        object.metadata.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        let object = match K::admit(object) {
            Ok(object) => object,
            Err(error) => return self.reject(key, error.to_string()),
        };
        for problem in problems {
            tracing::warn!(controller = K::NAME, %key, "leaving out a rule, which then allows nothing: {problem}");
        }
        self.context.leadership.may_write()?;
        match revision {
            Some(revision) => self.context.calico.update(key, &object, &revision).await?,
            None => self.context.calico.create(key, &object).await?,
        };
        tracing::info!(controller = K::NAME, %key, "wrote an object converted from Kubernetes");
        Ok(())
    }

    async fn delete(&self, key: &ObjectKey, revision: &Revision) -> Result<(), ReconcileError> {
        if let Some(source) = K::source_of(key)
            && api_reads::exists(&self.context.kubernetes, K::RESOURCE, &source).await?
        {
            let text = format!("{} {source} exists, although the watch does not show it yet", K::RESOURCE.kind);
            return Err(ReconcileError::Retry(text));
        }
        self.context.leadership.may_write()?;
        ignore_missing(self.context.calico.delete::<Object<K::Target>>(key, Some(revision)).await)?;
        tracing::info!(controller = K::NAME, %key, "deleted an object that has no Kubernetes object");
        Ok(())
    }

    /// Records the failed validation. Returns an error only if the reason is new, so that comparisons do not repeat the
    /// error.
    fn reject(&self, key: &ObjectKey, reason: String) -> Result<(), ReconcileError> {
        let is_new = self.cache.lock().reject(key, &reason);
        self.publish_invalid();
        if !is_new {
            return Ok(());
        }
        Err(ReconcileError::Permanent(format!("Calico's validation rejects the converted object: {reason}")))
    }

    fn publish_invalid(&self) {
        if let Some(gauge) = &self.invalid {
            gauge.set(self.cache.lock().rejected.len().try_into().unwrap_or(i64::MAX));
        }
    }
}

/// Creates the gauge of targets that cannot be written because Calico's validation is stricter than that of Kubernetes.
fn invalid_targets(controller: &str) -> Option<IntGauge> {
    let help = "Kubernetes objects whose converted form Calico's validation rejects.";
    IntGauge::with_opts(Opts::new("kube_controllers_unmirrored_objects", help).const_label("controller", controller))
        .ok()
}

/// Returns the key of a listed object, and the `spec` if the object is readable. Returns `None` if even the key is
/// unreadable.
fn key_and_spec<S: Spec>(change: ObjectChange<Entry<Object<S>>, ObjectKey>) -> Option<(ObjectKey, Option<S>)> {
    match change {
        ObjectChange::Upsert(entry) => Some((entry.key, Some(entry.value.spec))),
        ObjectChange::Unreadable { key, .. } => Some((key?, None)),
        ObjectChange::Delete(_) => None,
    }
}

fn new_target<S: Spec>(key: &ObjectKey) -> Object<S> {
    let mut object = Object::new(key.name.clone(), S::default());
    object.metadata.namespace = key.namespace.clone().unwrap_or_default();
    object
}
