//! For tests: a clock that the test moves, a cluster in a store in memory, endpoints that cannot be
//! updated.

mod clock;
mod cluster;
mod listings;

pub use memory_store::{Fault, MemoryStore, Pairs};

pub use self::clock::TestClock;
pub use self::cluster::{Cluster, affinity_key, assert_consistent, cidr, held, take_one};
pub use self::listings::RefusingListings;
