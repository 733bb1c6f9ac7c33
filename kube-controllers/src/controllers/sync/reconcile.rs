//! [`SyncReconciler`]: compares targets with their sources, and writes those that differ.

use std::collections::HashSet;
use std::slice;
use std::time::SystemTime;

use datastore::watch::ObjectChange;
use libcalico::api::{Object, ObjectKey, ObjectSelect, Spec};
use libcalico::store::{Entry, ReadBatch, Revision, Store, StoreError, ignore_missing};
use node_process::metrics::Metric;
use prometheus::IntGauge;
use serde_json::json;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{SourceCache, SyncedKind};
use crate::api_reads;
use crate::context::Context;
use crate::controllers::cached::{CachedController, CachedReconcile, ResyncKey, SharedCache};
use crate::controllers::same_cluster::{hold_and_report, report};
use crate::events::{self, EventPublisher, EventType};
use crate::runtime::{NextReconcile, Queue, Reconcile, ReconcileError};
use crate::settings::ControllerName;
use crate::watches::Watches;

/// Each controller registers the metric with its name as a constant label.
const UNMIRRORED: Metric = Metric {
    name: "kube_controllers_unmirrored_objects",
    help: "Kubernetes objects whose converted form Calico's validation rejects, whole or in part.",
    labels: &["controller"],
    buckets: &[],
};

/// The reconciler of one kind.
pub struct SyncReconciler<K: SyncedKind> {
    cache: SharedCache<SourceCache<K>>,
    queue: Queue<ResyncKey>,
    context: Context,
    events: EventPublisher,
    pub(super) unmirrored: Option<IntGauge>,
}

/// A stored target. `object` is `None` if the bytes are unreadable.
struct StoredTarget<S: Spec> {
    revision: Revision,
    object: Option<Object<S>>,
}

impl<K: SyncedKind> CachedReconcile for SyncReconciler<K> {
    type Cache = SourceCache<K>;
    const CONTROLLER: Option<ControllerName> = Some(K::CONTROLLER);

    fn subscribe(controller: &CachedController<Self>, watches: &mut Watches) {
        controller.subscribe(K::watch(watches), SourceCache::apply);
    }

    fn new(context: &Context, controller: &CachedController<Self>) -> Self {
        let (cache, queue) = (controller.cache.clone(), controller.queue.clone());
        let unmirrored =
            unmirrored(K::NAME).filter(|gauge| context.metrics.register(gauge.clone()).is_ok());
        SyncReconciler {
            cache,
            queue,
            context: context.clone(),
            events: EventPublisher::default(),
            unmirrored,
        }
    }
}

impl<K: SyncedKind> Reconcile for SyncReconciler<K> {
    const NAME: &'static str = K::NAME;
    type Key = ResyncKey;

    async fn reconcile(&self, key: &ResyncKey) -> Result<NextReconcile, ReconcileError> {
        // Before the first list is complete, sources that have not been delivered would look
        // deleted.
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
    /// Queues the targets that differ from their sources, have no source, or are missing and did
    /// not fail the validation before. Skips a target with an unreadable key. Returns the time of
    /// the next comparison.
    async fn compare_all(&self) -> Result<NextReconcile, ReconcileError> {
        // Objects in namespaces cannot be listed by a prefix of their names.
        let name_prefix = if K::Target::NAMESPACED {
            String::new()
        } else {
            K::PREFIX.to_owned()
        };
        let mut pages = self
            .context
            .calico
            .pages::<Object<K::Target>>(ObjectSelect {
                namespace: None,
                name_prefix,
            });
        let mut missing: HashSet<ObjectKey> = self.cache.lock().targets().into_iter().collect();
        while let Some(page) = pages.next().await? {
            let listed = page.into_iter().filter_map(key_and_spec);
            for (key, spec) in listed.filter(|(key, _)| key.name.starts_with(K::PREFIX)) {
                missing.remove(&key);
                let desired = self.cache.lock().desired(&key);
                if !desired.is_some_and(|(wanted, _)| spec.is_some_and(|spec| spec == wanted)) {
                    self.queue.add(ResyncKey::One(key));
                }
            }
        }
        missing
            .into_iter()
            .for_each(|key| self.queue.add(ResyncKey::One(key)));
        self.publish_unmirrored();
        Ok(self.next_comparison())
    }

    /// A period of zero means that only the first comparison happens.
    fn next_comparison(&self) -> NextReconcile {
        let period = self
            .context
            .settings
            .borrow()
            .reconcile_period
            .get(&K::CONTROLLER)
            .copied();
        period
            .filter(|period| !period.is_zero())
            .map_or(NextReconcile::AwaitChange, NextReconcile::After)
    }

    async fn sync(&self, key: &ObjectKey) -> Result<NextReconcile, ReconcileError> {
        // While deletions wait, an object without a source costs no read.
        if self.cache.lock().desired(key).is_none()
            && let Some(wait) = report(&self.context).await
        {
            return Ok(NextReconcile::After(wait));
        }
        let stored = self.stored(key).await?;
        let desired = self.cache.lock().desired(key);
        match (desired, stored) {
            (None, None) => {}
            (None, Some(stored)) => {
                if let Some(wait) = hold_and_report(&self.context).await {
                    return Ok(NextReconcile::After(wait));
                }
                self.delete(key, &stored.revision).await?;
            }
            (
                Some((wanted, _)),
                Some(StoredTarget {
                    object: Some(object),
                    ..
                }),
            ) if object.spec == wanted => {}
            (Some(wanted), stored) => self.write(key, wanted, stored).await?,
        }
        self.publish_unmirrored();
        Ok(NextReconcile::AwaitChange)
    }

    async fn stored(&self, key: &ObjectKey) -> Result<Option<StoredTarget<K::Target>>, StoreError> {
        let mut batch = ReadBatch::new();
        let ticket = batch.get::<Object<K::Target>>(key);
        let answers = self.context.calico.read(&batch).await?;
        let Some(raw) = answers.raw(&ticket) else {
            return Ok(None);
        };
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
        (spec, left_out): (K::Target, Vec<String>),
        stored: Option<StoredTarget<K::Target>>,
    ) -> Result<(), ReconcileError> {
        let (revision, object) = match stored {
            Some(StoredTarget { revision, object }) => (Some(revision), object),
            None => (None, None),
        };
        let mut object = object.unwrap_or_else(|| new_target(key));
        object.spec = spec;
        object
            .metadata
            .stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
        let object = match K::admit(object) {
            Ok(object) => object,
            Err(error) => return self.reject(key, error.to_string()).await,
        };
        for problem in &left_out {
            tracing::warn!(
                controller = K::NAME, %key, "an object is converted without a part: {problem}",
            );
        }
        self.context.leadership.may_write()?;
        match revision {
            Some(revision) => self.context.calico.update(key, &object, &revision).await?,
            None => self.context.calico.create(key, &object).await?,
        };
        tracing::info!(controller = K::NAME, %key, "wrote an object converted from Kubernetes");
        self.post(key, "ConvertedInPart", &left_out).await;
        Ok(())
    }

    async fn delete(&self, key: &ObjectKey, revision: &Revision) -> Result<(), ReconcileError> {
        if let Some(source) = K::source_of(key)
            && api_reads::exists(&self.context.kubernetes, K::RESOURCE, &source).await?
        {
            let text = format!(
                "{} {source} exists, although the watch does not show it yet",
                K::RESOURCE.kind
            );
            return Err(ReconcileError::Retry(text));
        }
        self.context.leadership.may_write()?;
        ignore_missing(
            self.context
                .calico
                .delete::<Object<K::Target>>(key, Some(revision))
                .await,
        )?;
        tracing::info!(
            controller = K::NAME, %key, "deleted an object that has no Kubernetes object",
        );
        Ok(())
    }

    /// Records the failed validation. Returns an error only if the reason is new, so that
    /// comparisons do not repeat the error.
    async fn reject(&self, key: &ObjectKey, reason: String) -> Result<(), ReconcileError> {
        let is_new = self.cache.lock().reject(key, &reason);
        self.publish_unmirrored();
        if !is_new {
            return Ok(());
        }
        let problem = format!("Calico's validation rejects the converted object: {reason}");
        self.post(key, "NotConverted", slice::from_ref(&problem))
            .await;
        Err(ReconcileError::Permanent(problem))
    }

    /// Posts an Event of the source about `problems`, if there are any. It comes once as long as it
    /// exists.
    async fn post(&self, key: &ObjectKey, reason: &str, problems: &[String]) {
        let (Some(source), Some(first)) = (K::source_of(key), problems.first()) else {
            return;
        };
        let more = if problems.len() > 1 {
            format!(", and {} more", problems.len() - 1)
        } else {
            String::new()
        };
        let mut object = json!({
            "apiVersion": K::RESOURCE.api_version, "kind": K::RESOURCE.kind, "name": source.name,
        });
        if let Some(namespace) = &source.namespace {
            object["namespace"] = json!(namespace);
        }
        // `kubectl describe` shows only Events with the uid.
        if let Some(uid) = self.cache.lock().uid_of(&source) {
            object["uid"] = json!(uid);
        }
        let event = events::event(
            &object,
            EventType::Warning,
            reason,
            &format!("{first}{more}"),
            SystemTime::now(),
        );
        let parts: Vec<&str> = [K::NAME, reason]
            .into_iter()
            .chain(problems.iter().map(String::as_str))
            .collect();
        let event = events::named_by(event, &source.to_string(), &parts);
        self.events
            .create(
                &self.context.kubernetes,
                self.context.leadership.holds(),
                event,
            )
            .await;
    }

    fn publish_unmirrored(&self) {
        if let Some(gauge) = &self.unmirrored {
            gauge.set(
                self.cache
                    .lock()
                    .unmirrored()
                    .try_into()
                    .unwrap_or(i64::MAX),
            );
        }
    }
}

/// Creates the gauge of sources that are not converted, or not completely, because Calico's
/// validation is stricter than that of Kubernetes.
fn unmirrored(controller: &str) -> Option<IntGauge> {
    let opts = UNMIRRORED.opts().const_label("controller", controller);
    IntGauge::with_opts(opts).ok()
}

/// Returns the key of a listed object, and the `spec` if the object is readable. Returns `None` if
/// even the key is unreadable.
fn key_and_spec<S: Spec>(
    change: ObjectChange<Entry<Object<S>>, ObjectKey>,
) -> Option<(ObjectKey, Option<S>)> {
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
