//! Synchronization of Kubernetes objects to Calico objects in etcd. Each Calico object, the target, is made from one
//! Kubernetes object, the source. Three controllers work this way; [`SyncedKind`] describes their differences.
//!
//! A target is recognized by its name alone: every object whose name has the controller's prefix belongs to the
//! controller, regardless of its writer (KC-222). Only targets that differ are written. An update replaces `spec` and
//! keeps other writers' metadata (KC-224). Before a deletion the source is looked up in Kubernetes, because a watch may
//! lag behind the writes of another replica.

mod cache;
mod reconcile;
#[cfg(test)]
mod tests;

use libcalico::api::{Object, ObjectKey, Spec};
use libcalico::kubernetes::Resource;
use libcalico::validation::ValidationError;

use self::reconcile::Reconciler;
use super::cached::CachedController;
use crate::settings::ControllerName;
use crate::watched::Watched;
use crate::watches::{Subscribers, Watches};

/// The controller of one kind.
pub type SyncController<M> = CachedController<Reconciler<M>>;

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
    /// Returns the part of a source to cache. `before` is the part that was cached before.
    fn cache(source: &Self::Source, before: Option<&Self::Cached>) -> Self::Cached;
    /// Returns the key of a source's target.
    fn target_of(source: &ObjectKey) -> ObjectKey;
    /// Returns the key of a target's source, or `None` if no source has a target with this key.
    fn source_of(target: &ObjectKey) -> Option<ObjectKey>;
    /// Converts a source to its target.
    fn convert(source: &ObjectKey, cached: &Self::Cached) -> SyncedSpec<Self::Target>;
    /// Completes and validates an object before it is written.
    fn admit(object: Object<Self::Target>) -> Result<Object<Self::Target>, ValidationError>;
}

/// The result of converting a source.
#[derive(Debug, Clone, PartialEq)]
pub struct SyncedSpec<S> {
    /// The target's `spec`.
    pub spec: S,
    /// Descriptions of the parts of the source that cannot be converted.
    pub left_out: Vec<String>,
}

impl<S> From<S> for SyncedSpec<S> {
    fn from(spec: S) -> Self {
        SyncedSpec { spec, left_out: Vec::new() }
    }
}
