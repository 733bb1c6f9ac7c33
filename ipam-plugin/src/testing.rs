//! Test doubles: a clock that the test moves, a store with injected faults and races, a cluster in
//! that store, a call.

mod call;
mod clock;
mod cluster;
mod store;

pub(crate) use self::call::call;
pub(crate) use self::clock::TestClock;
pub(crate) use self::cluster::{Cluster, affinity_key, assert_consistent, cidr, held, take_one};
pub(crate) use self::store::{Fault, MemoryStore, Pairs};
