//! Mirrors: objects of Calico's in etcd, each made of one object of Kubernetes'. Three controllers are mirrors; what
//! tells them apart is [`Mirrored`].
//!
//! A mirror is known by its name alone (KC-222): every object whose name begins with the controller's prefix is the
//! controller's, whoever wrote it. Only what differs is written. An update changes `spec` and keeps what others put
//! into the metadata (KC-224); a deletion asks Kubernetes first, for a watch may lag behind what another replica has
//! written.

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

/// What is mirrored, and how.
pub trait Mirrored: Send + Sync + 'static {
    /// As the controller is named in logs and metrics.
    const NAME: &'static str;
    /// As it is named in the settings.
    const CONTROLLER: ControllerName;
    /// What is mirrored, in the API server's terms.
    const RESOURCE: Resource;
    /// What the names of all mirrors begin with.
    const PREFIX: &'static str;
    /// What is mirrored, as its feed delivers it.
    type Source: Watched<Key = ObjectKey>;
    /// What of it is kept in memory.
    type Kept: Clone + PartialEq + Send + Sync + 'static;
    /// What it is mirrored as.
    type Mirror: Spec;

    /// Where the sources come from.
    fn feed(feeds: &mut Feeds) -> &mut Feed<Self::Source>;
    /// What to keep of a source, of which `known` was kept before.
    fn keep(source: &Self::Source, known: Option<&Self::Kept>) -> Self::Kept;
    /// The key of a source's mirror.
    fn mirror_of(source: &ObjectKey) -> ObjectKey;
    /// The source that a mirror of this key has; `None` for a key that no source's mirror has.
    fn source_of(mirror: &ObjectKey) -> Option<ObjectKey>;
    /// The mirror.
    fn reflect(source: &ObjectKey, kept: &Self::Kept) -> Reflection<Self::Mirror>;
    /// Completes and checks an object before it is written.
    fn admit(object: Object<Self::Mirror>) -> Result<Object<Self::Mirror>, ValidationError>;
}

/// What a source looks like in the mirror.
#[derive(Debug, Clone, PartialEq)]
pub struct Reflection<S> {
    /// The mirror's `spec`.
    pub spec: S,
    /// What of the source could not be mirrored, in words.
    pub left_out: Vec<String>,
}

/// The controller of one kind of mirror.
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
    /// A controller that hears nothing yet.
    fn deaf() -> Self {
        Mirror { known: Known::default(), queue: Queue::default() }
    }

    /// Takes notice of an event. The first full list brings the first comparison of everything, whatever the reconcile
    /// period is (B-10); before it, nothing is known well enough to act on.
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
            // Registered above, and by nobody else.
            let _ = context.metrics.unregister(gauge);
        }
    }
}

/// How many mirrors cannot be written because Calico has rules that Kubernetes does not have (B-48).
fn gauge(controller: &str) -> Option<IntGauge> {
    let help = "How many objects of Kubernetes cannot be mirrored, for Calico's rules forbid it.";
    IntGauge::with_opts(Opts::new("kube_controllers_unmirrored_objects", help).const_label("controller", controller))
        .ok()
}
