//! Selects the datastore and the settings for reaching it.
//!
//! A setting has three sources. In order of precedence: `CALICO_X` in the environment, the network configuration
//! ([`Settings`]), and `X` in the environment. The caller passes the environment as a lookup function, so this module
//! has no side effects.

use std::path::PathBuf;
use std::time::Duration;

use crate::kubernetes::config::KubernetesConfig;

/// Default path of the embedded datastore.
pub const DEFAULT_PATH: &str = "/var/lib/calico/calico.db";

/// Default time limit of one request. Upstream sets no limit (DS-125), but a plugin that hangs blocks the kubelet.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

const ETCD: &str = "etcdv3";
const LOCAL: &str = "local";
const KUBERNETES: &str = "kubernetes";

/// The datastore settings of a network configuration. An empty string means not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// `datastore_type`: `kubernetes`, `etcdv3` or `local`.
    pub datastore_type: String,
    /// `datastore_path`: file of the embedded datastore.
    pub datastore_path: String,
    /// `etcd_endpoints`: comma-separated list of URLs.
    pub etcd_endpoints: String,
    /// `etcd_discovery_srv`: DNS domain. Rejected, see [`ConfigError::Discovery`].
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

/// Settings for reaching etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// At least one URL, each with its scheme.
    pub endpoints: Vec<String>,
    /// TLS settings; present if the endpoints are `https://`.
    pub tls: Option<TlsConfig>,
    /// User name and password.
    pub credentials: Option<(String, String)>,
    /// Time limit of one request, including the connection.
    pub deadline: Duration,
}

/// Sources of the certificates and the key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// CA certificates that verify etcd's certificate; the system's if absent.
    pub authorities: Option<Pem>,
    /// The client certificate and its key.
    pub identity: Option<(Pem, Pem)>,
}

/// A PEM text.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// A PEM file.
    File {
        /// The setting that names the file, for errors.
        setting: &'static str,
        /// The path of the file.
        path: PathBuf,
    },
    /// A text in the configuration, as PEM or as base64 of PEM.
    Inline {
        /// The setting that contains the text, for errors.
        setting: &'static str,
        /// The text.
        text: String,
    },
}

/// Settings of the embedded datastore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalConfig {
    /// The database file.
    pub path: PathBuf,
    /// Time limit for one request to wait for other processes.
    pub deadline: Duration,
}

/// A configuration that selects no usable datastore.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No setting selects or locates a datastore. Upstream would try the API server (DS-8).
    #[error(
        "no datastore is configured; set datastore_type to `kubernetes` (with kubernetes.kubeconfig), to `etcdv3` (with \
         etcd_endpoints) or to `local` (one file, {DEFAULT_PATH}), in the network configuration or as DATASTORE_TYPE in \
         the environment"
    )]
    Nothing,
    /// A datastore type that is not supported.
    #[error("unknown datastore type: {found}; datastore_type must be `kubernetes`, `etcdv3` or `local`")]
    UnknownType {
        /// The configured type.
        found: String,
    },
    /// `local` in a program that is built without the embedded datastore.
    #[error("datastore_type `local` is for the plugins: this program takes `kubernetes` or `etcdv3`")]
    NoLocal,
    /// `etcdv3` without endpoints.
    #[error(
        "no etcd endpoints specified; set etcd_endpoints in the network configuration or ETCD_ENDPOINTS in the \
         environment, for example `https://10.0.0.1:2379`"
    )]
    NoEndpoints,
    /// An endpoint that is not an etcd URL.
    #[error(
        "etcd_endpoints: `{found}` is not an etcd URL; write `https://HOST:PORT` or `http://HOST:PORT`, a user into \
         ETCD_USERNAME and ETCD_PASSWORD"
    )]
    Endpoint {
        /// The invalid endpoint.
        found: String,
    },
    /// DNS discovery, which would cost a DNS query per CNI call and is not supported.
    #[error("etcd_discovery_srv `{domain}` is not supported; list the servers in etcd_endpoints instead")]
    Discovery {
        /// The configured domain.
        domain: String,
    },
    /// A TLS setting that this client cannot satisfy. Ignoring the setting silently could weaken the connection (DS-7).
    #[error(
        "{variable}={value} is not supported: TLS 1.2 and 1.3 with rustls' own cipher suites are offered; unset it"
    )]
    TlsTuning {
        /// `TLS_MIN_VERSION` or `TLS_CIPHER_SUITES`.
        variable: &'static str,
        /// The value of the variable.
        value: String,
    },
    /// TLS files together with inline texts (DS-17).
    #[error("{file} and {inline} exclude each other; give etcd's certificates either as files or inline")]
    MixedTls {
        /// A setting that names a file.
        file: &'static str,
        /// A setting that contains a text.
        inline: &'static str,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("{present} is set but {missing} is not; set both, or neither")]
    HalfIdentity {
        /// The setting that is set.
        present: &'static str,
        /// The setting that is missing.
        missing: &'static str,
    },
    /// A setting that is not the number or Boolean that it must be.
    #[error("{setting}: `{found}` is not {wanted}")]
    Value {
        /// The name of the setting.
        setting: &'static str,
        /// The value found.
        found: String,
        /// The values allowed.
        wanted: &'static str,
    },
    /// TLS material that cannot be read.
    #[error("{setting}: {reason}")]
    Pem {
        /// The name of the setting.
        setting: &'static str,
        /// The problem, and the file that has it.
        reason: String,
    },
}

// === impl DatastoreConfig ===

impl DatastoreConfig {
    /// Selects the datastore and collects its settings. `env` looks up an environment variable. An empty variable is
    /// `Some("")` and hides sources of lower precedence (DS-3).
    pub fn new(settings: &Settings, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let source = Source::new(&env);
        let endpoints = source.get(&settings.etcd_endpoints, "ETCD_ENDPOINTS");
        let path = source.get(&settings.datastore_path, "DATASTORE_PATH");
        let deadline = settings.deadline.unwrap_or(DEFAULT_DEADLINE);
        let asked = source.get(&settings.datastore_type, "DATASTORE_TYPE");
        let chosen = match asked.as_str() {
            "" if !endpoints.is_empty() => ETCD,
            "" if !path.is_empty() => LOCAL,
            // Upstream defaults to Kubernetes (DS-8). This implementation does so only if a setting locates an API
            // server.
            "" if KubernetesConfig::is_hinted_at(settings, &source) => KUBERNETES,
            "" => return Err(ConfigError::Nothing),
            other => other,
        };
        match chosen {
            ETCD => EtcdConfig::new(settings, &source, &endpoints, deadline).map(DatastoreConfig::Etcd),
            LOCAL => {
                let path = if path.is_empty() { DEFAULT_PATH.into() } else { path };
                Ok(DatastoreConfig::Local(LocalConfig { path: path.into(), deadline }))
            }
            KUBERNETES => {
                KubernetesConfig::new(settings, &source, deadline).map(Box::new).map(DatastoreConfig::Kubernetes)
            }
            other => Err(ConfigError::UnknownType { found: other.into() }),
        }
    }
}

/// A lookup of settings in their three sources.
pub(crate) struct Source<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(env: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Source { env }
    }

    /// Returns `CALICO_X` if it is set, else the configured value, else `X`, else the empty string.
    pub(crate) fn get(&self, configured: &str, variable: &str) -> String {
        self.lookup(configured, variable).unwrap_or_default()
    }

    /// Returns the same as [`get`](Self::get), but `None` instead of the empty string for a setting without a value.
    pub(crate) fn lookup(&self, configured: &str, variable: &str) -> Option<String> {
        match (self.env)(&format!("CALICO_{variable}")) {
            None if !configured.is_empty() => Some(configured.to_owned()),
            None => (self.env)(variable),
            value => value,
        }
    }
}

// === impl EtcdConfig ===

impl EtcdConfig {
    fn new(settings: &Settings, source: &Source<'_>, endpoints: &str, deadline: Duration) -> Result<Self, ConfigError> {
        let domain = source.get(&settings.etcd_discovery_srv, "ETCD_DISCOVERY_SRV");
        if !domain.is_empty() {
            return Err(ConfigError::Discovery { domain });
        }
        let (endpoints, encrypted) = parse_endpoints(endpoints)?;
        // The TLS settings are validated even if they are not used: an `http://` endpoint is served in plain text
        // regardless of them.
        let material = tls_config(settings, source)?;
        let tls = encrypted.then_some(material);
        if encrypted {
            refuse_tls_tuning(source)?;
        }
        let user = source.get("", "ETCD_USERNAME");
        let password = source.get("", "ETCD_PASSWORD");
        let credentials = (!user.is_empty() && !password.is_empty()).then_some((user, password));
        Ok(EtcdConfig { endpoints, tls, credentials, deadline })
    }
}

/// Returns the URLs, and true if they use TLS. The first URL's scheme applies to all, and a missing scheme means TLS
/// (DS-17).
fn parse_endpoints(list: &str) -> Result<(Vec<String>, bool), ConfigError> {
    let items: Vec<&str> = list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    let encrypted = !items.first().ok_or(ConfigError::NoEndpoints)?.starts_with("http://");
    let scheme = if encrypted { "https" } else { "http" };
    let url = |item: &str| {
        let rest = item.strip_prefix("https://").or_else(|| item.strip_prefix("http://")).unwrap_or(item);
        let authority = rest.trim_end_matches('/');
        // The text before an `@` may contain a password, which must not get into an error, a log or the journal.
        let shown = item.rsplit_once('@').map_or(item.to_owned(), |(_, host)| format!("...@{host}"));
        let invalid = || ConfigError::Endpoint { found: shown.clone() };
        let parsed: tonic::transport::Uri = format!("{scheme}://{authority}").parse().map_err(|_| invalid())?;
        let plain = parsed.path() == "/" && parsed.query().is_none() && parsed.host().is_some_and(|h| !h.is_empty());
        let plain = plain && !authority.contains('@');
        match plain {
            true => Ok(format!("{scheme}://{authority}")),
            false => Err(invalid()),
        }
    };
    Ok((items.into_iter().map(url).collect::<Result<_, _>>()?, encrypted))
}

/// Rejects TLS settings that this client cannot satisfy. A `TLS_MIN_VERSION` of 1.2 is the default and needs no
/// rejection.
fn refuse_tls_tuning(source: &Source<'_>) -> Result<(), ConfigError> {
    for (variable, harmless) in [("TLS_MIN_VERSION", "1.2"), ("TLS_CIPHER_SUITES", "")] {
        let value = source.get("", variable);
        if !value.is_empty() && value != harmless {
            return Err(ConfigError::TlsTuning { variable, value });
        }
    }
    Ok(())
}

fn tls_config(settings: &Settings, source: &Source<'_>) -> Result<TlsConfig, ConfigError> {
    let file = |setting, configured: &str, variable| {
        let path = source.get(configured, variable);
        (!path.is_empty()).then(|| Pem::File { setting, path: path.into() })
    };
    let inline = |setting, text: &str| (!text.is_empty()).then(|| Pem::Inline { setting, text: text.into() });

    let files = [
        file("etcd_ca_cert_file", &settings.etcd_ca_cert_file, "ETCD_CA_CERT_FILE"),
        file("etcd_cert_file", &settings.etcd_cert_file, "ETCD_CERT_FILE"),
        file("etcd_key_file", &settings.etcd_key_file, "ETCD_KEY_FILE"),
    ];
    let texts = [
        inline("etcd_ca_cert", &settings.etcd_ca_cert),
        inline("etcd_cert", &settings.etcd_cert),
        inline("etcd_key", &settings.etcd_key),
    ];
    let first = |list: &[Option<Pem>]| list.iter().flatten().next().map(Pem::setting);
    let (names, [authorities, certificate, key]) = match (first(&files), first(&texts)) {
        (Some(file), Some(inline)) => return Err(ConfigError::MixedTls { file, inline }),
        (_, None) => (["etcd_cert_file", "etcd_key_file"], files),
        (None, Some(_)) => (["etcd_cert", "etcd_key"], texts),
    };
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err(ConfigError::HalfIdentity { present: names[0], missing: names[1] }),
        (None, Some(_)) => return Err(ConfigError::HalfIdentity { present: names[1], missing: names[0] }),
    };
    Ok(TlsConfig { authorities, identity })
}

impl std::fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls)
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

// === impl Pem ===

impl Pem {
    /// Returns the name of the setting.
    pub fn setting(&self) -> &'static str {
        match self {
            Pem::File { setting, .. } | Pem::Inline { setting, .. } => setting,
        }
    }
}

/// Formats the setting for errors. An inline text may be a key and is never shown.
impl std::fmt::Display for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pem::File { setting, path } => write!(f, "{setting} {}", path.display()),
            Pem::Inline { setting, .. } => f.write_str(setting),
        }
    }
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests;
