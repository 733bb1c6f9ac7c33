//! How to reach an API server (DS-19..DS-21): kubeconfig, what overrides it, or the cluster that this process runs in.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use libcalico::kubernetes::ApiGroup;

/// Everything that the settings say about the API server. Nothing has been read yet.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KubernetesConfig {
    /// Kubeconfig files. One must exist; of several the missing ones are skipped, and earlier ones win.
    pub kubeconfig: Vec<PathBuf>,
    /// A kubeconfig as text, used alone (DS-20).
    pub kubeconfig_inline: Option<String>,
    /// Overrides the kubeconfig.
    pub overrides: Overrides,
    /// `calico_api_group`; asked from the API server when absent (DS-22).
    pub group: Option<ApiGroup>,
    /// Requests per second, and how many at once above that; no limit when absent (DS-122).
    pub rate: Option<Rate>,
    /// What names of host interfaces begin with, if not `cali` (CNI-88): an endpoint's is computed, not stored.
    pub interface_prefix: Option<String>,
    /// How long one request may take, connecting included.
    pub deadline: Duration,
}

/// Settings that are stronger than the kubeconfig.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The context of the kubeconfig to use.
    pub context: Option<String>,
    /// URL of the API server.
    pub server: Option<String>,
    /// Bearer token.
    pub token: Option<String>,
    /// Authorities for the API server's certificate.
    pub authorities: Option<PathBuf>,
    /// Our certificate.
    pub certificate: Option<PathBuf>,
    /// The key of our certificate.
    pub key: Option<PathBuf>,
    /// Whether any certificate of the API server will do.
    pub insecure: bool,
}

/// A client-side limit of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second, at least 1.
    pub per_second: u32,
    /// Requests that need not wait.
    pub burst: u32,
}

// By hand: kubeconfig and token are secrets.
impl fmt::Debug for KubernetesConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesConfig")
            .field("kubeconfig", &self.kubeconfig)
            .field("kubeconfig_inline", &self.kubeconfig_inline.is_some())
            .field("overrides", &self.overrides)
            .field("group", &self.group)
            .field("rate", &self.rate)
            .field("interface_prefix", &self.interface_prefix)
            .field("deadline", &self.deadline)
            .finish()
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overrides")
            .field("context", &self.context)
            .field("server", &self.server)
            .field("token", &self.token.is_some())
            .field("authorities", &self.authorities)
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .field("insecure", &self.insecure)
            .finish()
    }
}
