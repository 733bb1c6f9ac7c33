//! The runtime of all controllers: a queue of keys, workers, and the right to write.

mod backoff;
mod queue;
mod reconcile;
mod workers;

pub use queue::Queue;
pub use reconcile::{Controller, Failure, Next, Reconcile};
pub use workers::run;
