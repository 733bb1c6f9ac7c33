//! [`EtcdConfig`]: settings for reaching etcd.

use std::path::PathBuf;
use std::time::Duration;

use super::{DatastoreSettings, SettingLookup};
use crate::error::ConfigError;
use crate::server_url;
use crate::tls::TlsPolicy;

/// Settings for reaching etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// At least one URL, each with its scheme.
    pub endpoints: Vec<String>,
    /// TLS settings; `None` if the endpoints are `http://`.
    pub tls: Option<TlsConfig>,
    /// User name and password; `None` unless both are configured.
    pub credentials: Option<(String, String)>,
    /// Time limit of one request, including the time to connect.
    pub deadline: Duration,
}

/// Sources of the certificates and the key, and what TLS offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// CA certificates that verify etcd's certificate; the system's if absent.
    pub ca_certificates: Option<Pem>,
    /// The client certificate and its key; `None` if the client has no certificate.
    pub identity: Option<(Pem, Pem)>,
    /// Versions and cipher suites, from `TLS_MIN_VERSION` and `TLS_CIPHER_SUITES`.
    pub policy: TlsPolicy,
    /// Warnings about values of these two variables that have no effect, for the log or the user.
    pub warnings: Vec<String>,
}

/// A source of PEM text: a file, or the configuration.
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

impl EtcdConfig {
    pub(super) fn new(
        settings: &DatastoreSettings,
        lookup: &SettingLookup<'_>,
        endpoints: &str,
    ) -> Result<Self, ConfigError> {
        let domain = lookup.get(&settings.etcd_discovery_srv, "ETCD_DISCOVERY_SRV");
        if !domain.is_empty() {
            return Err(ConfigError::SrvDiscovery(domain));
        }
        let (endpoints, is_encrypted) = parse_endpoints(endpoints)?;
        // Contradictory settings of certificates are errors even if the connection does not use
        // them.
        let material = tls_config(settings, lookup)?;
        let tls = if is_encrypted {
            let (version, suites) = (
                lookup.get("", "TLS_MIN_VERSION"),
                lookup.get("", "TLS_CIPHER_SUITES"),
            );
            let (policy, warnings) = TlsPolicy::parse(&version, &suites)?;
            Some(TlsConfig {
                policy,
                warnings,
                ..material
            })
        } else {
            None
        };
        let user = lookup.get("", "ETCD_USERNAME");
        let password = lookup.get("", "ETCD_PASSWORD");
        let credentials = (!user.is_empty() && !password.is_empty()).then_some((user, password));
        Ok(EtcdConfig {
            endpoints,
            tls,
            credentials,
            deadline: settings.deadline(),
        })
    }
}

/// Returns the URLs, and true if they use TLS. The first URL's scheme applies to all, and a missing
/// scheme means TLS (DS-17).
fn parse_endpoints(list: &str) -> Result<(Vec<String>, bool), ConfigError> {
    let items: Vec<&str> = list
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .collect();
    let is_encrypted = !items
        .first()
        .ok_or(ConfigError::NoEndpoints)?
        .starts_with("http://");
    let scheme = if is_encrypted { "https" } else { "http" };
    let urls = items
        .into_iter()
        .map(|item| parse_endpoint(item, scheme))
        .collect::<Result<_, _>>()?;
    Ok((urls, is_encrypted))
}

fn parse_endpoint(item: &str, scheme: &str) -> Result<String, ConfigError> {
    let rest = item
        .strip_prefix("https://")
        .or_else(|| item.strip_prefix("http://"))
        .unwrap_or(item);
    let authority = rest.trim_end_matches('/');
    // The text before an `@` may contain a password, which must not get into an error, a log or the
    // journal.
    let redacted = item
        .rsplit_once('@')
        .map_or(item.to_owned(), |(_, host)| format!("...@{host}"));
    let url = format!("{scheme}://{authority}");
    let parsed = url
        .parse::<tonic::transport::Uri>()
        .ok()
        .filter(|uri| uri.path() == "/" && uri.query().is_none());
    let is_server = parsed.is_some_and(|uri| server_url::parse(&uri.to_string()).is_ok());
    if is_server && !authority.contains('@') {
        Ok(url)
    } else {
        Err(ConfigError::InvalidEndpoint(redacted))
    }
}

fn tls_config(
    settings: &DatastoreSettings,
    lookup: &SettingLookup<'_>,
) -> Result<TlsConfig, ConfigError> {
    let file = |setting, configured: &str, variable| {
        let path = lookup.get(configured, variable);
        (!path.is_empty()).then(|| Pem::File {
            setting,
            path: path.into(),
        })
    };
    let inline = |setting, text: &str| {
        (!text.is_empty()).then(|| Pem::Inline {
            setting,
            text: text.into(),
        })
    };

    let files = [
        file(
            "etcd_ca_cert_file",
            &settings.etcd_ca_cert_file,
            "ETCD_CA_CERT_FILE",
        ),
        file("etcd_cert_file", &settings.etcd_cert_file, "ETCD_CERT_FILE"),
        file("etcd_key_file", &settings.etcd_key_file, "ETCD_KEY_FILE"),
    ];
    let texts = [
        inline("etcd_ca_cert", &settings.etcd_ca_cert),
        inline("etcd_cert", &settings.etcd_cert),
        inline("etcd_key", &settings.etcd_key),
    ];
    let first_setting = |list: &[Option<Pem>]| list.iter().flatten().next().map(Pem::setting);
    let (names, [ca_certificates, certificate, key]) =
        match (first_setting(&files), first_setting(&texts)) {
            (Some(file), Some(inline)) => return Err(ConfigError::MixedTls { file, inline }),
            (_, None) => (["etcd_cert_file", "etcd_key_file"], files),
            (None, Some(_)) => (["etcd_cert", "etcd_key"], texts),
        };
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(ConfigError::IncompleteIdentity {
                present: names[0],
                missing: names[1],
            });
        }
        (None, Some(_)) => {
            return Err(ConfigError::IncompleteIdentity {
                present: names[1],
                missing: names[0],
            });
        }
    };
    Ok(TlsConfig {
        ca_certificates,
        identity,
        ..TlsConfig::default()
    })
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

impl Pem {
    /// Returns the name of the setting.
    pub fn setting(&self) -> &'static str {
        match self {
            Pem::File { setting, .. } | Pem::Inline { setting, .. } => setting,
        }
    }
}

/// An inline text may be a key, so it is not shown.
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
