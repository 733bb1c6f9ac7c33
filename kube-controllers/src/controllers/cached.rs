//! [`CachedController`]: a controller whose workers read a cache that watches fill.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libcalico::api::ObjectKey;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::context::Context;
use crate::runtime::{self, Controller, Queue, Reconcile};
use crate::settings::ControllerName;
use crate::watched::Watched;
use crate::watches::{Event, Subscribers, Watches};

/// Interval at which the keys of [`CachedReconcile::all_keys`] are added to the queue, regardless
/// of events.
const RESYNC_PERIOD: Duration = Duration::from_secs(300);

/// A cache that event handlers fill and workers read. Clones share it.
#[derive(Debug, Default)]
pub(super) struct SharedCache<C>(Arc<Mutex<C>>);

impl<C> Clone for SharedCache<C> {
    fn clone(&self) -> Self {
        SharedCache(self.0.clone())
    }
}

impl<C> SharedCache<C> {
    /// Locks the cache, also after a panic under the lock. The cache may then be inconsistent; the
    /// next full list repairs most of that.
    pub(super) fn lock(&self) -> MutexGuard<'_, C> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of a controller that reads a cache.
pub trait CachedReconcile: Reconcile {
    /// The cache.
    type Cache: Default + Send + 'static;
    /// The controller's name in the settings, by which its number of workers is set. `None` means
    /// one worker.
    const CONTROLLER: Option<ControllerName>;

    /// Subscribes the cache to watches.
    fn subscribe(controller: &CachedController<Self>, watches: &mut Watches);
    /// Creates the reconciler, which reads the cache of `controller`.
    fn new(context: &Context, controller: &CachedController<Self>) -> Self;
    /// Returns the group of a key. The groups take turns in the queue.
    fn group_of(_: &Self::Key) -> &str {
        ""
    }
    /// Returns the keys to add to the queue every five minutes and after each change of the
    /// settings.
    fn all_keys(_: &Self::Cache) -> Vec<Self::Key> {
        Vec::new()
    }
}

/// A controller with the reconciler `R`.
pub struct CachedController<R: CachedReconcile + ?Sized> {
    pub(super) queue: Queue<R::Key>,
    pub(super) cache: SharedCache<R::Cache>,
}

impl<R: CachedReconcile> CachedController<R> {
    pub(super) fn unsubscribed() -> Self {
        CachedController {
            queue: Queue::grouped(R::group_of),
            cache: SharedCache::default(),
        }
    }

    /// Passes the events of a watch to `apply`, and adds the keys that `apply` returns to the
    /// queue.
    pub(super) fn subscribe<T: Watched>(
        &self,
        subscribers: &mut Subscribers<T>,
        apply: fn(&mut R::Cache, &Event<'_, T>) -> Vec<R::Key>,
    ) {
        let (cache, queue) = (self.cache.clone(), self.queue.clone());
        subscribers.subscribe(move |event: &Event<'_, T>| {
            let changed = apply(&mut cache.lock(), event);
            changed.into_iter().for_each(|key| queue.add(key));
        });
    }

    /// Adds all keys to the queue every [`RESYNC_PERIOD`] and after each change of the settings,
    /// until `context.stop`; then waits forever.
    async fn resync(&self, context: &Context) {
        let mut settings = context.settings.clone();
        settings.mark_unchanged();
        let mut ticks = interval_at(Instant::now() + RESYNC_PERIOD, RESYNC_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = context.stop.cancelled() => return std::future::pending().await,
                _ = ticks.tick() => {}
                Ok(()) = settings.changed() => {}
            }
            R::all_keys(&self.cache.lock())
                .into_iter()
                .for_each(|key| self.queue.add(key));
        }
    }
}

impl<R: CachedReconcile> Controller for CachedController<R> {
    const NAME: &'static str = R::NAME;

    fn new(_: &Context, watches: &mut Watches) -> Self {
        let controller = CachedController::unsubscribed();
        R::subscribe(&controller, watches);
        controller
    }

    async fn run(self, context: Context) {
        let reconciler = Arc::new(R::new(&context, &self));
        let workers = R::CONTROLLER.map_or(1, |name| context.settings.borrow().workers_of(name));
        let work = runtime::run(reconciler, self.queue.clone(), workers, context.clone());
        // The controller ends with its workers, because `resync` never returns.
        tokio::select! {
            () = work => {}
            () = self.resync(&context) => {}
        }
    }
}

/// A unit of work of a controller that also compares all objects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ResyncKey {
    /// Compare all objects.
    All,
    /// Reconcile the object with this key.
    One(ObjectKey),
}

impl fmt::Display for ResyncKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResyncKey::All => f.write_str("all"),
            ResyncKey::One(key) => key.fmt(f),
        }
    }
}
