//! Selects the datastore and the settings for reaching it.
//!
//! Read `lookup` first, which says where a setting comes from.

mod etcd;
mod kubernetes;
mod lookup;

use std::path::PathBuf;
use std::time::Duration;

pub use etcd::{EtcdConfig, Pem, TlsConfig};
pub(crate) use kubernetes::without_user;
pub use kubernetes::{KubernetesConfig, Overrides, Rate};
use lookup::SettingLookup;
pub use lookup::{DEFAULT_DEADLINE, DatastoreSettings};

pub use crate::error::{ConfigError, DEFAULT_PATH};

const ETCD: &str = "etcdv3";
const LOCAL: &str = "local";
const KUBERNETES: &str = "kubernetes";

/// A datastore and the settings for reaching it. Creating the value neither opens nor reads anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatastoreConfig {
    /// An etcd cluster.
    Etcd(EtcdConfig),
    /// A SQLite file on this node.
    Local(LocalConfig),
    /// A Kubernetes API server.
    Kubernetes(Box<KubernetesConfig>),
}

/// Settings of the embedded datastore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalConfig {
    /// The database file.
    pub path: PathBuf,
    /// Time limit for one request to wait for other processes.
    pub deadline: Duration,
}

impl DatastoreConfig {
    /// Selects the datastore and collects its settings. `env` looks up an environment variable. An empty variable is
    /// `Some("")` and hides sources of lower precedence (DS-3).
    pub fn new(settings: &DatastoreSettings, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let lookup = SettingLookup::new(&env);
        let endpoints = lookup.get(&settings.etcd_endpoints, "ETCD_ENDPOINTS");
        let path = lookup.get(&settings.datastore_path, "DATASTORE_PATH");
        let deadline = settings.deadline.unwrap_or(DEFAULT_DEADLINE);
        let datastore_type = lookup.get(&settings.datastore_type, "DATASTORE_TYPE");
        let chosen = match datastore_type.as_str() {
            "" if !endpoints.is_empty() => ETCD,
            "" if !path.is_empty() => LOCAL,
            // Upstream defaults to Kubernetes (DS-8). This implementation does so only if a setting locates an API
            // server.
            "" if KubernetesConfig::is_hinted_at(settings, &lookup) => KUBERNETES,
            "" => return Err(ConfigError::Nothing),
            other => other,
        };
        match chosen {
            ETCD => EtcdConfig::new(settings, &lookup, &endpoints, deadline).map(DatastoreConfig::Etcd),
            LOCAL => {
                let path = if path.is_empty() { DEFAULT_PATH.into() } else { path };
                Ok(DatastoreConfig::Local(LocalConfig { path: path.into(), deadline }))
            }
            KUBERNETES => {
                KubernetesConfig::new(settings, &lookup, deadline).map(Box::new).map(DatastoreConfig::Kubernetes)
            }
            other => Err(ConfigError::UnknownType { found: other.into() }),
        }
    }
}

#[cfg(test)]
mod tests;
