//! The runtime of all controllers: a queue of keys, workers, and the right to write.

mod backoff;
mod leadership;
mod queue;
mod watchdog;
mod workers;

pub use leadership::{Deadline, Leadership, Tenure};
pub use queue::Queue;
pub use watchdog::Watchdog;
pub use workers::{Failure, Next, Reconcile, run};
