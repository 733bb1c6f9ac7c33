//! What all controllers run on: a queue of keys, workers, and the right to write.

mod leadership;
mod queue;
mod workers;

pub use leadership::Leadership;
pub use queue::Queue;
pub use workers::{Failure, Next, Reconcile, run};
