//! Calico's datastores: the I/O behind [`libcalico::store::Store`].
//!
//! [`Datastore`] is an etcd cluster, a SQLite file or an API server, as [`DatastoreConfig`]
//! selects. The first two store the same pairs, with the paths and the JSON of upstream's etcd
//! layout, so a file can be copied to etcd and back ([`export`]). The API server stores most of
//! Calico's objects as custom resources.
//!
//! Without the feature `local`, the crate has no SQLite and rejects a configuration that selects a
//! file.
//!
//! Read [`config`] first, then one of [`etcd`], `local` and [`kubernetes`], then [`watch`].

mod backoff;
pub mod bootstrap;
mod cluster_store;
pub mod config;
mod datastore;
mod deadline;
mod dial;
mod error;
pub mod etcd;
pub mod export;
pub mod kubernetes;
#[cfg(feature = "local")]
pub mod local;
#[cfg(not(feature = "local"))]
mod local_disabled;
mod paged_list;
mod pairs;
mod request_observer;
mod server_url;
mod tls;
pub mod watch;

pub use cluster_store::ClusterStore;
pub use config::{ConfigError, DatastoreConfig, DatastoreSettings, KubernetesConfig};
pub use datastore::{CalicoWatcher, Datastore};
pub use error::describe_error_chain;
pub use etcd::Etcd;
pub use kubernetes::{BusyRule, Kubernetes};
#[cfg(feature = "local")]
pub use local::Local;
#[cfg(not(feature = "local"))]
pub use local_disabled::LocalDisabled as Local;
pub use paged_list::{ListedPage, PagedList};
pub use request_observer::{Observer, RequestObserver};
