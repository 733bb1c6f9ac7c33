//! Selects the datastore and the settings for reaching it.
//!
//! A setting X has up to three sources. In order of precedence: the environment variable
//! `CALICO_X`, the network configuration ([`DatastoreSettings`]), and the environment variable `X`.

mod client_place;
mod etcd;
mod kubernetes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use libcalico::variables::Variables;

pub use client_place::{ClientPlace, ProxyVariables};
pub use etcd::{EtcdConfig, Pem, TlsConfig};
pub(crate) use kubernetes::without_credentials;
pub use kubernetes::{InlineKubeconfig, KubernetesConfig, Overrides, Rate};

pub use crate::error::{ConfigError, DEFAULT_PATH};
pub use crate::tls::TlsPolicy;

const ETCD: &str = "etcdv3";
const LOCAL: &str = "local";
const KUBERNETES: &str = "kubernetes";

/// Default time limit of one request. Upstream sets no limit (DS-125), but the kubelet waits for
/// the plugin.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

/// The datastore settings of a network configuration. An empty string means not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatastoreSettings {
    /// `datastore_type`: `kubernetes`, `etcdv3` or `local`.
    pub datastore_type: String,
    /// `datastore_path`: file of the embedded datastore.
    pub datastore_path: String,
    /// `etcd_endpoints`: comma-separated list of URLs.
    pub etcd_endpoints: String,
    /// `etcd_discovery_srv`: DNS domain. Rejected, see `ConfigError::SrvDiscovery`.
    pub etcd_discovery_srv: String,
    /// `etcd_ca_cert_file`: path of the file with the CA certificates that verify etcd's
    /// certificate.
    pub etcd_ca_cert_file: String,
    /// `etcd_cert_file`: path of the file with the client certificate.
    pub etcd_cert_file: String,
    /// `etcd_key_file`: path of the file with the key of the client certificate.
    pub etcd_key_file: String,
    /// `etcd_ca_cert`: the CA certificates inline, as PEM or as base64 of PEM.
    pub etcd_ca_cert: String,
    /// `etcd_cert`: the client certificate inline, as PEM or as base64 of PEM.
    pub etcd_cert: String,
    /// `etcd_key`: the key of the client certificate inline, as PEM or as base64 of PEM.
    pub etcd_key: String,
    /// `kubernetes.kubeconfig`: one path, or several separated by colons.
    pub kubeconfig: String,
    /// `kubernetes.k8s_api_root`, or if that is not set `policy.k8s_api_root`: URL of the API
    /// server.
    pub k8s_api_root: String,
    /// `policy.k8s_auth_token`: bearer token for the API server.
    pub k8s_auth_token: String,
    /// `policy.k8s_client_certificate`: path of the file with the client certificate for the API
    /// server.
    pub k8s_client_certificate: String,
    /// `policy.k8s_client_key`: path of the file with the key of the client certificate for the API
    /// server.
    pub k8s_client_key: String,
    /// `policy.k8s_certificate_authority`: path of the file with the CA certificates that verify
    /// the API server's certificate.
    pub k8s_certificate_authority: String,
    /// `calico_api_group`: API group of Calico's objects on the API server.
    pub calico_api_group: String,
    /// `qps`: requests per second to the API server; 0 means not set, a negative value means no
    /// limit.
    pub qps: i32,
    /// `burst`: number of requests to the API server that may be sent before `qps` delays further
    /// ones; 0 means not set.
    pub burst: i32,
    /// Time limit of one request; `None` means [`DEFAULT_DEADLINE`].
    pub deadline: Option<Duration>,
}

impl DatastoreSettings {
    fn deadline(&self) -> Duration {
        self.deadline.unwrap_or(DEFAULT_DEADLINE)
    }
}

/// A lookup of settings in the environment and in the network configuration.
pub(crate) struct SettingLookup<'a> {
    variables: Variables<'a>,
}

impl SettingLookup<'_> {
    /// Returns the setting X that `variable` names, or the empty string if no source has it.
    pub(crate) fn get(&self, configured: &str, variable: &str) -> String {
        self.find(configured, variable).unwrap_or_default()
    }

    /// Returns `None` if no source has the setting, and `Some("")` if the source of highest
    /// precedence is an empty environment variable.
    pub(crate) fn find(&self, configured: &str, variable: &str) -> Option<String> {
        match self.variables.get(&format!("CALICO_{variable}")) {
            None if !configured.is_empty() => Some(configured.to_owned()),
            None => self.variables.get(variable),
            value => value,
        }
    }
}

/// A datastore and the settings for reaching it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatastoreConfig {
    /// An etcd cluster.
    Etcd(Box<EtcdConfig>),
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
    /// Selects the datastore and collects its settings. An empty variable hides sources of lower
    /// precedence (DS-3).
    pub fn new(
        settings: &DatastoreSettings,
        variables: Variables<'_>,
    ) -> Result<Self, ConfigError> {
        let lookup = SettingLookup { variables };
        let endpoints = lookup.get(&settings.etcd_endpoints, "ETCD_ENDPOINTS");
        let path = lookup.get(&settings.datastore_path, "DATASTORE_PATH");
        let datastore_type = lookup.get(&settings.datastore_type, "DATASTORE_TYPE");
        let selected = match datastore_type.as_str() {
            "" if !endpoints.is_empty() => ETCD,
            "" if !path.is_empty() => LOCAL,
            // Upstream selects Kubernetes even without a setting (DS-8).
            "" if KubernetesConfig::is_configured(settings, &lookup) => KUBERNETES,
            "" => return Err(ConfigError::NotConfigured),
            other => other,
        };
        match selected {
            ETCD => EtcdConfig::new(settings, &lookup, &endpoints)
                .map(Box::new)
                .map(Self::Etcd),
            LOCAL => {
                let path = if path.is_empty() {
                    DEFAULT_PATH.into()
                } else {
                    path
                };
                Ok(Self::Local(LocalConfig {
                    path: path.into(),
                    deadline: settings.deadline(),
                }))
            }
            KUBERNETES => KubernetesConfig::new(settings, &lookup)
                .map(Box::new)
                .map(Self::Kubernetes),
            other => Err(ConfigError::UnknownType(other.into())),
        }
    }

    /// Returns warnings about settings without effect. The program logs or prints them.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::Etcd(config) => config.tls.as_ref().map_or(&[], |tls| &tls.warnings),
            Self::Local(_) | Self::Kubernetes(_) => &[],
        }
    }

    /// Returns the file of the embedded datastore if it does not exist. The first request creates
    /// the file, even if it only reads.
    pub fn missing_file(&self) -> Option<&Path> {
        match self {
            Self::Local(config) => Some(config.path.as_path()).filter(|path| !path.exists()),
            Self::Etcd(_) | Self::Kubernetes(_) => None,
        }
    }

    /// Sets the place of the API server's client. Has no effect on other datastores.
    #[must_use]
    pub fn placed(mut self, place: ClientPlace) -> Self {
        if let DatastoreConfig::Kubernetes(config) = &mut self {
            config.place = place;
        }
        self
    }
}

#[cfg(test)]
mod tests;
