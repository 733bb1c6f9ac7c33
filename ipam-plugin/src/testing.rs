//! Doubles for tests: a clock that stands still, a store that loses races on purpose, a cluster in it, a call.

mod call;
mod clock;
mod cluster;
mod listings;
mod store;

pub(crate) use self::call::call;
pub(crate) use self::clock::TestClock;
pub(crate) use self::cluster::{Cluster, affinity_key, assert_consistent, cidr, held, take_one};
pub(crate) use self::listings::Reluctant;
pub(crate) use self::store::{Fault, MemoryStore, Pairs};
