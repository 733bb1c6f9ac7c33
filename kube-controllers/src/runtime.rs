//! The runtime of all controllers: a queue of keys, workers, and the traits of a controller:
//! [`Controller`], which subscribes to watches and runs, and [`Reconcile`], its work on one key.

mod queue;
mod workers;

pub use queue::Queue;
pub use workers::run;

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::time::Duration;

use datastore::watch::WatchFailure;
use libcalico::store::StoreError;

use crate::context::Context;
use crate::leader::MayNotWrite;
use crate::watches::Watches;

/// A controller that has subscribed to its watches.
pub trait Controller: Send + 'static {
    /// The controller's name in logs and metrics.
    const NAME: &'static str;
    /// Subscribes to watches. Sends no request and does not wait: the watches start when all
    /// controllers have subscribed.
    fn new(context: &Context, watches: &mut Watches) -> Self;
    /// Runs until `context.stop` is canceled.
    fn run(self, context: Context) -> impl Future<Output = ()> + Send;
}

/// The work of a controller on one key. Level-triggered: read the current state, and write the
/// objects that differ from the desired state. The future may be dropped at any await.
pub trait Reconcile: Send + Sync + 'static {
    /// The controller's name in logs and metrics.
    const NAME: &'static str;
    /// Identifier of one unit of work.
    type Key: Clone + Eq + Hash + Display + Debug + Send + Sync + 'static;

    /// Brings the objects of `key` to the desired state. A panic counts as
    /// [`ReconcileError::Retry`].
    fn reconcile(
        &self,
        key: &Self::Key,
    ) -> impl Future<Output = Result<NextReconcile, ReconcileError>> + Send;
}

/// The time at which a key that succeeded is processed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextReconcile {
    /// When the key is added again, for example by an event.
    AwaitChange,
    /// After this time, or earlier at an event.
    After(Duration),
}

/// The reason why a key failed.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A failure that may go away, such as a conflict or an unreachable server. Retried with a
    /// growing delay.
    #[error("{0}")]
    Retry(String),
    /// A failure that lasts until an object or a setting changes, such as an invalid object. Not
    /// retried; the next event or full pass adds the key again.
    #[error("{0}")]
    Permanent(String),
}

impl From<MayNotWrite> for ReconcileError {
    fn from(refusal: MayNotWrite) -> Self {
        ReconcileError::Retry(refusal.to_string())
    }
}

impl From<StoreError> for ReconcileError {
    fn from(error: StoreError) -> Self {
        ReconcileError::Retry(error.to_string())
    }
}

impl From<WatchFailure> for ReconcileError {
    fn from(failure: WatchFailure) -> Self {
        ReconcileError::Retry(failure.to_string())
    }
}
