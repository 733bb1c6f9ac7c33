//! TLS of the connection to the API server: the CA certificates and the client certificate.

use std::path::Path;

use data_encoding::BASE64;
use kube::Config;
use kube::config::AuthInfo;
use os::atomic_file::regular_file;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::access_error::AccessError;
use crate::tls::{self, Identity, Roots, TlsError, TlsParameters, TlsPolicy, Trust};

const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub(super) fn client_config(config: &Config) -> Result<ClientConfig, AccessError> {
    let trust = if config.accept_invalid_certs {
        Trust::AnyServer
    } else {
        Trust::Roots(load_roots(config)?)
    };
    let identity = load_identity(&config.auth_info)?;
    // As upstream's, this connection does not follow TLS_MIN_VERSION and TLS_CIPHER_SUITES (DS-7).
    let policy = &TlsPolicy::default();
    Ok(tls::client_config(TlsParameters {
        trust,
        identity,
        policy,
        alpn: &ALPN,
    })?)
}

pub(super) fn parse_certificates(
    object: &'static str,
    pem: &[u8],
) -> Result<Vec<Vec<u8>>, AccessError> {
    let certificates = tls::parse_certificates(object, pem)?;
    Ok(certificates
        .into_iter()
        .map(|certificate| certificate.to_vec())
        .collect())
}

fn load_roots(config: &Config) -> Result<Roots, TlsError> {
    match &config.root_cert {
        Some(certificates) => Roots::configured(
            certificates
                .iter()
                .cloned()
                .map(CertificateDer::from)
                .collect(),
        ),
        None => Ok(Roots::of_system()),
    }
}

pub(super) fn tls_error(object: &'static str, reason: &impl ToString) -> AccessError {
    TlsError::new(object, reason).into()
}

impl From<TlsError> for AccessError {
    fn from(TlsError { object, reason }: TlsError) -> Self {
        AccessError::Tls { object, reason }
    }
}

fn load_identity(auth_info: &AuthInfo) -> Result<Option<Identity>, AccessError> {
    use secrecy::ExposeSecret;
    let key_data = auth_info
        .client_key_data
        .as_ref()
        .map(|secret| secret.expose_secret());
    let certificate = read_pem(
        "certificate",
        auth_info.client_certificate_data.as_deref(),
        auth_info.client_certificate.as_deref(),
    )?;
    let key = read_pem("key", key_data, auth_info.client_key.as_deref())?;
    let (Some(certificate), Some(key)) = (certificate, key) else {
        return Ok(None);
    };
    Ok(Some(Identity::parse(&certificate, &key)?))
}

/// Returns the PEM text of base64 data in the kubeconfig, or else of a file, or `None` if neither
/// is configured.
fn read_pem(
    object: &'static str,
    inline: Option<&str>,
    file: Option<&str>,
) -> Result<Option<Vec<u8>>, AccessError> {
    match (inline, file) {
        (Some(text), _) => {
            let text: Vec<u8> = text
                .bytes()
                .filter(|byte| !byte.is_ascii_whitespace())
                .collect();
            BASE64
                .decode(&text)
                .map(Some)
                .map_err(|_| tls_error(object, &"the data in the kubeconfig is not base64"))
        }
        (None, Some(file)) => {
            let read = regular_file::contents_up_to(Path::new(file), tls::MAX_FILE_BYTES);
            read.map(Some)
                .map_err(|e| tls_error(object, &format!("{file}: {e}")))
        }
        (None, None) => Ok(None),
    }
}
