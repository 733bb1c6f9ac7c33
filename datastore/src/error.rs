//! [`ConfigError`]: a configuration that selects no usable datastore.

use std::error::Error;

use libcalico::variables::InvalidVariable;

/// Default path of the embedded datastore.
pub const DEFAULT_PATH: &str = "/var/lib/calico/calico.db";

/// A configuration that selects no usable datastore.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No setting selects or locates a datastore. Upstream would try the API server (DS-8).
    #[error(
        "no datastore is configured; set datastore_type to `kubernetes` (with \
         kubernetes.kubeconfig), to `etcdv3` (with etcd_endpoints) or to `local` (one file, \
         {DEFAULT_PATH}), in the network configuration or as DATASTORE_TYPE in the environment"
    )]
    NotConfigured,
    /// A datastore type that is not supported.
    #[error(
        "unknown datastore type: {0}; datastore_type must be `kubernetes`, `etcdv3` or `local`"
    )]
    UnknownType(String),
    /// `local` in a program that is built without the embedded datastore.
    #[error(
        "datastore_type `local` is not supported by this program, only by the plugins; set \
         datastore_type to `kubernetes` or `etcdv3`"
    )]
    LocalNotSupported,
    /// `etcdv3` without endpoints.
    #[error(
        "no etcd endpoints specified; set etcd_endpoints in the network configuration or \
         ETCD_ENDPOINTS in the environment, for example `https://10.0.0.1:2379`"
    )]
    NoEndpoints,
    /// An endpoint that is not an etcd URL, with `...` instead of the text before an `@`.
    #[error(
        "etcd_endpoints: `{0}` is not an etcd URL; write `https://HOST:PORT` or \
         `http://HOST:PORT`, and set the user with ETCD_USERNAME and ETCD_PASSWORD"
    )]
    InvalidEndpoint(String),
    /// The domain of `etcd_discovery_srv`, which would take a DNS query in each CNI call.
    #[error(
        "etcd_discovery_srv `{0}` is not supported; list the servers in etcd_endpoints instead. \
         `dig +short SRV _etcd-client-ssl._tcp.{0}` prints those for https, and \
         `dig +short SRV _etcd-client._tcp.{0}` those for http"
    )]
    SrvDiscovery(String),
    /// A name in `TLS_CIPHER_SUITES` that is not a cipher suite of Go (DS-7).
    #[error(
        "TLS_CIPHER_SUITES: unsupported cipher: `{0}`; write names of cipher suites separated by \
         commas, for example \
         TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or unset \
         TLS_CIPHER_SUITES"
    )]
    UnknownCipherSuite(String),
    /// A list in `TLS_CIPHER_SUITES` of which this client has no cipher suite (DS-7).
    #[error(
        "TLS_CIPHER_SUITES: this program has none of the cipher suites {0}; add one that etcd has \
         too, for example TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, or unset TLS_CIPHER_SUITES"
    )]
    NoCipherSuite(String),
    /// TLS files together with inline texts (DS-17).
    #[error(
        "{file} and {inline} exclude each other; give etcd's certificates either as files or inline"
    )]
    MixedTls {
        /// A setting that names a file.
        file: &'static str,
        /// A setting that contains a text.
        inline: &'static str,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("{present} is set but {missing} is not; set both, or neither")]
    IncompleteIdentity {
        /// The setting that is set.
        present: &'static str,
        /// The setting that is missing.
        missing: &'static str,
    },
    /// A setting that is not the number or Boolean that it must be.
    #[error(transparent)]
    InvalidValue(#[from] InvalidVariable),
    /// A certificate or key that cannot be read or used.
    #[error("{setting}: {reason}")]
    UnreadablePem {
        /// The name of the setting, or of several settings that may have caused the problem.
        setting: &'static str,
        /// The problem.
        reason: String,
    },
}

/// Joins the texts of an error and its causes, without repetitions and without tonic's
/// `transport error`.
pub fn describe_error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let message = cause.to_string();
        if message == "transport error" || text.contains(&message) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&message);
    }
    text
}

pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| <dyn Error>::source(*error))
}
