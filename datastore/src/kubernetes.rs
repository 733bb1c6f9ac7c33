//! The Kubernetes API server as a datastore: Calico's data as custom resources, pods as
//! WorkloadEndpoints.
//!
//! Read `access` first, which finds the server, the proxy and the credentials, then `client`,
//! `store` and `watch`.

mod access;
mod access_error;
mod access_review;
mod api_group;
mod auth;
mod client;
mod credential_plugin;
mod discovery;
mod error;
mod media_type;
mod migration;
mod objects;
mod pages;
mod query;
mod rate_limit;
mod request;
mod store;
mod streaming;
mod tls;
mod transport;
mod turns;
mod watch;

pub use access_error::AccessError;
pub use access_review::{ACCESS_REVIEWS, RULES_REVIEWS, is_allowed, review_access};
pub use client::client;
pub use credential_plugin::may_be_asking;
pub use migration::{wait_for_changed_group, wait_for_stable_group};
pub use objects::{ListPage, ObjectError, ObjectRequest};
pub use store::Kubernetes;
pub use turns::BusyRule;
pub use watch::{ApiSource, CalicoObjects, CollectionError, Decode};

/// File that caches the API group for later processes on the node (DS-22).
pub const API_GROUP_FILE: &str = "/var/lib/calico/api-group.json";
