//! Synchronization of Kubernetes objects to Calico objects in etcd. Each Calico object, the target,
//! is made from one Kubernetes object, the source.
//!
//! A target is recognized by its name alone: every object whose name has the controller's prefix
//! belongs to the controller (KC-222). An update of a readable target replaces `spec` and keeps
//! other writers' metadata (KC-224). Before a deletion the source that the name stands for is
//! looked up in Kubernetes, because a watch may lag behind the writes of another replica.

mod reconcile;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use libcalico::api::{Object, ObjectKey, Spec};
use libcalico::kubernetes::Resource;
use libcalico::validation_error::ValidationError;

use self::reconcile::SyncReconciler;
use super::cached::{CachedController, ResyncKey};
use crate::settings::ControllerName;
use crate::watched::Watched;
use crate::watches::{Cache, Event, Subscribers, Watches};

/// The controller of one kind.
pub type SyncController<K> = CachedController<SyncReconciler<K>>;

/// A kind of source, and its conversion to targets.
pub trait SyncedKind: Send + Sync + 'static {
    /// The controller's name in logs and metrics.
    const NAME: &'static str;
    /// The controller's name in the settings.
    const CONTROLLER: ControllerName;
    /// The source's kind in the API server.
    const RESOURCE: Resource;
    /// Prefix of the names of all targets.
    const PREFIX: &'static str;
    /// The source, as its watch delivers it.
    type Source: Watched<Key = ObjectKey>;
    /// The part of the source that is cached.
    type Cached: Clone + PartialEq + Send + Sync + 'static;
    /// The `spec` of the target.
    type Target: Spec;

    /// Returns the watch of the sources.
    fn watch(watches: &mut Watches) -> &mut Subscribers<Self::Source>;
    /// Returns the uid of a source.
    fn uid(source: &Self::Source) -> &str;
    /// Returns the part of a source to cache. `before` is the part that was cached before.
    fn cache(source: &Self::Source, before: Option<&Self::Cached>) -> Self::Cached;
    /// Returns the key of a source's target.
    fn target_of(source: &ObjectKey) -> ObjectKey;
    /// Returns the key of a target's source, or `None` if no source has a target with this key.
    fn source_of(target: &ObjectKey) -> Option<ObjectKey>;
    /// Converts a source to the `spec` of its target. Also returns a description of each part of
    /// the source that cannot be converted.
    fn convert(source: &ObjectKey, cached: &Self::Cached) -> (Self::Target, Vec<String>);
    /// Completes and validates an object before it is written.
    fn admit(object: Object<Self::Target>) -> Result<Object<Self::Target>, ValidationError>;
}

/// A cached source.
#[derive(PartialEq)]
struct CachedSource<C> {
    uid: Box<str>,
    part: C,
}

/// The cached sources.
pub struct SourceCache<K: SyncedKind> {
    sources: Cache<ObjectKey, CachedSource<K::Cached>>,
    /// Targets that failed the validation, with the reason.
    rejected: HashMap<ObjectKey, String>,
    /// Targets without a part of their source.
    incomplete: HashSet<ObjectKey>,
}

impl<K: SyncedKind> Default for SourceCache<K> {
    fn default() -> Self {
        SourceCache {
            sources: Cache::default(),
            rejected: HashMap::new(),
            incomplete: HashSet::new(),
        }
    }
}

impl<K: SyncedKind> SourceCache<K> {
    /// Applies an event. Returns the targets of the changed sources. At the end of the first
    /// complete list returns [`ResyncKey::All`]. Before that, the cache is incomplete, and the
    /// result is empty.
    fn apply(&mut self, event: &Event<'_, K::Source>) -> Vec<ResyncKey> {
        let was_synced = self.sources.is_synced();
        let before = match event {
            Event::Upsert(source) => self
                .sources
                .get(&source.key())
                .map(|cached| cached.part.clone()),
            _ => None,
        };
        let cached = |source: &K::Source| CachedSource {
            uid: K::uid(source).into(),
            part: K::cache(source, before.as_ref()),
        };
        let changed = self.sources.apply(event, |source| Some(cached(source)));
        let targets: Vec<ObjectKey> = changed.iter().map(K::target_of).collect();
        for target in &targets {
            self.rejected.remove(target);
        }
        match (was_synced, self.sources.is_synced()) {
            (true, _) => targets.into_iter().map(ResyncKey::One).collect(),
            (false, true) => vec![ResyncKey::All],
            (false, false) => Vec::new(),
        }
    }

    /// Returns the desired `spec` of the target under `key`, and a description of each part of its
    /// source that was left out. Returns `None` if the target has no source.
    fn desired(&mut self, key: &ObjectKey) -> Option<(K::Target, Vec<String>)> {
        let source = K::source_of(key)?;
        let desired = self
            .sources
            .get(&source)
            .map(|cached| K::convert(&source, &cached.part));
        if desired
            .as_ref()
            .is_some_and(|(_, left_out)| !left_out.is_empty())
        {
            self.incomplete.insert(key.clone());
        } else {
            self.incomplete.remove(key);
        }
        desired
    }

    /// Returns the uid of a source, or `None` if the source is not cached.
    fn uid_of(&self, source: &ObjectKey) -> Option<String> {
        self.sources
            .get(source)
            .map(|cached| cached.uid.to_string())
    }

    /// Returns the number of sources that have no target, or a target without a part of the source.
    fn unmirrored(&self) -> usize {
        self.rejected
            .keys()
            .filter(|key| !self.incomplete.contains(key))
            .count()
            + self.incomplete.len()
    }

    /// Returns the keys of all desired targets, except those that failed the validation.
    fn targets(&self) -> Vec<ObjectKey> {
        let all = self.sources.iter().map(|(source, _)| K::target_of(source));
        all.filter(|target| !self.rejected.contains_key(target))
            .collect()
    }

    /// Records that a target failed the validation. Returns true if the reason is new.
    fn reject(&mut self, key: &ObjectKey, reason: &str) -> bool {
        self.rejected
            .insert(key.clone(), reason.to_owned())
            .is_none_or(|before| before != reason)
    }
}
