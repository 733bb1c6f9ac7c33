//! An API server in memory, and a cluster on it, for tests of the migration under tokio's paused
//! clock.
//!
//! [`ApiServer`](server::ApiServer) answers the requests of a `kube::Client`, and can kill the
//! program at each write, report a failure of a write, or hold a write of a former leader.
//! [`MigratedCluster`] is a cluster before a migration.

mod cluster;
mod discovery;
mod paths;
mod server;
mod store;

pub(super) use cluster::{
    DEFINITIONS, Ended, MigratedCluster, api_service, at, define, definition, is_in_phase, object,
};
pub(super) use server::{Interruption, ReceivedRequest, UNKNOWN_FIELD};
pub(super) use store::{ObjectStore, failure};
