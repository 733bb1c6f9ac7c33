//! The runtime of all controllers: a queue of keys, workers, and the right to write.

mod queue;
mod reconcile;
mod workers;

pub use queue::Queue;
pub use reconcile::{Controller, NextReconcile, Reconcile, ReconcileError};
pub(crate) use workers::panic_message;
pub use workers::run;
