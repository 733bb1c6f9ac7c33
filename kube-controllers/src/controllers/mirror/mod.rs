//! Synchronization of Kubernetes objects to Calico objects in etcd. Each Calico object, the target, is made from one
//! Kubernetes object, the source. Three controllers work this way; [`Mirrored`] describes their differences.
//!
//! A target is recognized by its name alone: every object whose name has the controller's prefix belongs to the
//! controller, regardless of its writer (KC-222). Only targets that differ are written. An update replaces `spec` and
//! keeps other writers' metadata (KC-224). Before a deletion the source is looked up in Kubernetes, because a watch may
//! lag behind the writes of another replica.

mod known;
mod reconcile;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use libcalico::api::{Object, ObjectKey, Spec};
use libcalico::kubernetes::Resource;
use libcalico::validation::ValidationError;
use prometheus::{IntGauge, Opts};

use self::known::Known;
use self::reconcile::Reconciler;
use super::work::Work;
use crate::context::{Context, Controller, Mode};
use crate::feed::{Event, Feed, Feeds};
use crate::runtime::{self, Queue};
use crate::settings::ControllerName;
use crate::watched::Watched;

/// A kind of source, and its conversion to targets.
pub trait Mirrored: Send + Sync + 'static {
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
    type Kept: Clone + PartialEq + Send + Sync + 'static;
    /// The `spec` of the target.
    type Mirror: Spec;

    /// Returns the watch of the sources.
    fn feed(feeds: &mut Feeds) -> &mut Feed<Self::Source>;
    /// Returns the part of a source to cache. `known` is the part that was cached before.
    fn keep(source: &Self::Source, known: Option<&Self::Kept>) -> Self::Kept;
    /// Returns the key of a source's target.
    fn mirror_of(source: &ObjectKey) -> ObjectKey;
    /// Returns the key of a target's source, or `None` if no source has a target with this key.
    fn source_of(mirror: &ObjectKey) -> Option<ObjectKey>;
    /// Converts a source to its target.
    fn reflect(source: &ObjectKey, kept: &Self::Kept) -> Reflection<Self::Mirror>;
    /// Completes and validates an object before it is written.
    fn admit(object: Object<Self::Mirror>) -> Result<Object<Self::Mirror>, ValidationError>;
}

/// The result of converting a source.
#[derive(Debug, Clone, PartialEq)]
pub struct Reflection<S> {
    /// The target's `spec`.
    pub spec: S,
    /// Descriptions of the parts of the source that cannot be converted.
    pub left_out: Vec<String>,
}

/// The controller of one kind.
pub struct Mirror<M: Mirrored> {
    known: Known<M>,
    queue: Queue<Work>,
}

impl<S> From<S> for Reflection<S> {
    fn from(spec: S) -> Self {
        Reflection { spec, left_out: Vec::new() }
    }
}

impl<M: Mirrored> Mirror<M> {
    /// Creates a controller that is not subscribed to any watch.
    fn deaf() -> Self {
        Mirror { known: Known::default(), queue: Queue::default() }
    }

    /// Applies an event. The first complete list queues the first comparison of all objects, even if the reconcile
    /// period is zero. Before that, the cache is incomplete and nothing is queued.
    fn hear(&self, event: &Event<'_, M::Source>) {
        let heard = self.known.follow(event);
        if heard.first_list_complete {
            self.queue.add(Work::All);
        }
        heard.changed.into_iter().for_each(|source| self.queue.add(Work::One(M::mirror_of(&source))));
    }
}

impl<M: Mirrored> Controller for Mirror<M> {
    const NAME: &'static str = M::NAME;

    fn new(context: &Context, feeds: &mut Feeds) -> Self {
        let mirror = Mirror::deaf();
        if context.mode == Mode::Etcd {
            let ear = Mirror { known: mirror.known.clone(), queue: mirror.queue.clone() };
            M::feed(feeds).subscribe(move |event: &Event<'_, M::Source>| ear.hear(event));
        }
        mirror
    }

    async fn run(self, context: Context) {
        if context.mode != Mode::Etcd {
            tracing::warn!(
                controller = M::NAME,
                "not needed: with Calico's data in Kubernetes there is nothing to mirror"
            );
            return;
        }
        let invalid = gauge(M::NAME);
        let registered = invalid.as_ref().is_some_and(|gauge| context.metrics.register(gauge.clone()).is_ok());
        let workers = context.settings.borrow().workers_of(M::CONTROLLER);
        let reconciler = Reconciler::new(self.known, self.queue.clone(), context.clone(), invalid.clone());
        runtime::run(Arc::new(reconciler), self.queue, workers, context.clone()).await;
        if let Some(gauge) = invalid.filter(|_| registered) {
            // Only this controller registers the metric.
            let _ = context.metrics.unregister(gauge);
        }
    }
}

/// Creates the gauge of targets that cannot be written because Calico's validation is stricter than that of Kubernetes.
fn gauge(controller: &str) -> Option<IntGauge> {
    let help = "How many objects of Kubernetes cannot be mirrored, for Calico's rules forbid it.";
    IntGauge::with_opts(Opts::new("kube_controllers_unmirrored_objects", help).const_label("controller", controller))
        .ok()
}
