//! For tests: a clock that the test moves, a cluster in a store in memory.

mod clock;
mod cluster;

pub use memory_store::{Fault, MemoryStore, Pairs};

pub use self::clock::TestClock;
pub use self::cluster::{Cluster, affinity_key, assert_consistent, cidr, held, take_one};
