//! The Kubernetes API server as a datastore: Calico's data as custom resources, pods as WorkloadEndpoints.
//!
//! Read `config` and `access` first, which find the server and the credentials, then `client`, `store` and `watch`.

mod access;
mod client;
pub mod config;
mod credential_files;
mod discovery;
mod failure;
mod language;
mod login;
mod migration;
mod pages;
mod reply;
mod request;
mod store;
mod streaming;
mod survey;
mod throttle;
mod tls;
mod transport;
mod turns;
mod watch;

pub use access::AccessError;
pub use client::client;
pub use migration::{changed_group, settled_group};
pub use store::Kubernetes;
pub use turns::WhenBusy;
pub use watch::{ApiSource, CalicoObjects, Decode};

/// File in which a process that had to discover the API group stores the group for later processes (DS-22).
pub const GROUP_FILE: &str = "/var/lib/calico/api-group.json";
