//! The datastore settings of a network configuration, and their lookup.
//!
//! A setting has three sources. In order of precedence: `CALICO_X` in the environment, the network configuration
//! ([`DatastoreSettings`]), and `X` in the environment. The caller passes the environment as a lookup function, so this
//! module has no side effects.

use std::time::Duration;

/// Default time limit of one request. Upstream sets no limit (DS-125), but a plugin that hangs blocks the kubelet.
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
    /// `etcd_discovery_srv`: DNS domain. Rejected, see `ConfigError::Discovery`.
    pub etcd_discovery_srv: String,
    /// `etcd_ca_cert_file`: the CA certificates that verify etcd's certificate.
    pub etcd_ca_cert_file: String,
    /// `etcd_cert_file`: the client certificate.
    pub etcd_cert_file: String,
    /// `etcd_key_file`: the key of the client certificate.
    pub etcd_key_file: String,
    /// The CA certificates inline, as PEM or as base64 of PEM.
    pub etcd_ca_cert: String,
    /// The client certificate inline, as PEM or as base64 of PEM.
    pub etcd_cert: String,
    /// The key of the client certificate inline, as PEM or as base64 of PEM.
    pub etcd_key: String,
    /// `kubernetes.kubeconfig`: one path, or several separated by colons.
    pub kubeconfig: String,
    /// `kubernetes.k8s_api_root`, or `policy.k8s_api_root` without it: URL of the API server.
    pub k8s_api_root: String,
    /// `policy.k8s_auth_token`.
    pub k8s_auth_token: String,
    /// `policy.k8s_client_certificate`: path of a file.
    pub k8s_client_certificate: String,
    /// `policy.k8s_client_key`: path of a file.
    pub k8s_client_key: String,
    /// `policy.k8s_certificate_authority`: path of a file.
    pub k8s_certificate_authority: String,
    /// `calico_api_group`.
    pub calico_api_group: String,
    /// `qps`: requests per second to the API server; 0 means not set, a negative value means no limit.
    pub qps: i32,
    /// `burst`: requests that may exceed `qps` at once; 0 means not set.
    pub burst: i32,
    /// Time limit of one request; `None` means [`DEFAULT_DEADLINE`].
    pub deadline: Option<Duration>,
}

/// A lookup of settings in their three sources.
pub(crate) struct SettingLookup<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> SettingLookup<'a> {
    pub(crate) fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        SettingLookup { env }
    }

    /// Returns `CALICO_X` if it is set, else the configured value, else `X`, else the empty string.
    pub(crate) fn get(&self, configured: &str, variable: &str) -> String {
        self.find(configured, variable).unwrap_or_default()
    }

    /// Returns the same as [`get`](Self::get), but `None` instead of the empty string for a setting without a value.
    pub(crate) fn find(&self, configured: &str, variable: &str) -> Option<String> {
        match (self.env)(&format!("CALICO_{variable}")) {
            None if !configured.is_empty() => Some(configured.to_owned()),
            None => (self.env)(variable),
            value => value,
        }
    }
}
