//! TLS of the connections to etcd and to the API server: one [`client_config`] for both.
//!
//! Read `policy` first, which holds the minimum version and the cipher suites, then `certificates`
//! and `verifier`, which decide whether a server's certificate is trusted.

mod certificates;
mod cipher_suites;
mod policy;
mod usages;
mod verifier;

use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};

pub(crate) use certificates::{Identity, Roots, parse_certificates};
pub use policy::TlsPolicy;
use verifier::ServerVerifier;

/// Maximum size in bytes of a file of certificates or of a key. A bundle of CA certificates may
/// have those of many organizations, with their texts.
pub(crate) const MAX_FILE_BYTES: usize = 16 << 20;

/// Settings of one connection.
pub(crate) struct TlsParameters<'a> {
    pub(crate) trust: Trust,
    /// The client certificate and its key; `None` if the client has no certificate.
    pub(crate) identity: Option<Identity>,
    pub(crate) policy: &'a TlsPolicy,
    /// Names of application protocols, in order of preference.
    pub(crate) alpn: &'a [&'a [u8]],
}

/// The servers that a client accepts.
#[derive(Debug)]
pub(crate) enum Trust {
    /// Servers with the name of the URL whose certificate these certificates verify.
    Roots(Roots),
    /// Any server, for `insecure-skip-tls-verify`.
    AnyServer,
}

/// A certificate, a key or another setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{object}: {reason}")]
pub(crate) struct TlsError {
    /// For example `CA certificates`, `certificate` or `key`.
    pub(crate) object: &'static str,
    /// The problem.
    pub(crate) reason: String,
}

impl TlsError {
    pub(crate) fn new(object: &'static str, reason: &impl ToString) -> Self {
        TlsError {
            object,
            reason: reason.to_string(),
        }
    }
}

pub(crate) fn client_config(parameters: TlsParameters<'_>) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(crypto_provider(parameters.policy));
    let verifier =
        ServerVerifier::new(parameters.trust, provider.signature_verification_algorithms);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(parameters.policy.versions())
        .map_err(|e| TlsError::new("TLS protocol versions", &e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match parameters.identity {
        Some(Identity { chain, key }) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|e| TlsError::new("certificate and key", &e))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = parameters.alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

/// The key exchange over P-256 comes first, because API servers and etcd support it and it takes
/// ring half as much time as X25519.
fn crypto_provider(policy: &TlsPolicy) -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.kx_groups = vec![
        ring::kx_group::SECP256R1,
        ring::kx_group::X25519,
        ring::kx_group::SECP384R1,
    ];
    provider.cipher_suites.retain(|suite| policy.permits(suite));
    provider
}
