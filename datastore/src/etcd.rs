//! etcd version 3 as a datastore.
//!
//! A read batch is one transaction for every 128 ranges, and a list of writes is one transaction
//! that compares revisions.
//!
//! Read `store` first, then `txn`, `connection` and `login`, then `watch`.

mod compaction;
mod connection;
mod error;
mod login;
mod store;
mod tls;
mod txn;
mod watch;

pub use compaction::{Compaction, Round};
pub use store::Etcd;
pub use watch::EtcdSource;
