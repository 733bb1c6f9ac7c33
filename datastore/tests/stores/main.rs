//! Tests of the stores on real etcd servers and on SQLite files.
#![allow(
    unreachable_pub,
    reason = "other test programs include single files of the harness"
)]

mod bootstrap;
mod compaction;
mod contention;
mod etcd_faults;
mod export;
mod harness;
mod local_faults;
mod store;
