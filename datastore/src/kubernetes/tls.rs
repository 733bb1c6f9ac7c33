//! TLS of the connection to the API server: the CA certificates and the client certificate.

use std::sync::Arc;

use data_encoding::BASE64;
use kube::Config;
use kube::config::AuthInfo;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};

use super::access_error::AccessError;

const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

pub(super) fn client_config(config: &Config) -> Result<ClientConfig, AccessError> {
    let provider = Arc::new(crypto_provider());
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| tls_error("TLS protocol versions", &e))?;
    let builder = if config.accept_invalid_certs {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyServer(algorithms)))
    } else {
        builder.with_root_certificates(load_roots(config).map_err(|e| tls_error("CA certificates", &e))?)
    };
    let mut tls = match load_identity(&config.auth_info)? {
        Some((chain, key)) => {
            builder.with_client_auth_cert(chain, key).map_err(|e| tls_error("certificate and key", &e))?
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    Ok(tls)
}

/// The key exchange over P-256 comes first, because API servers support it and it takes ring half as much time as
/// X25519.
fn crypto_provider() -> CryptoProvider {
    let kx_groups = vec![ring::kx_group::SECP256R1, ring::kx_group::X25519, ring::kx_group::SECP384R1];
    CryptoProvider { kx_groups, ..ring::default_provider() }
}

pub(super) fn parse_certificates(object: &'static str, pem: &[u8]) -> Result<Vec<Vec<u8>>, AccessError> {
    let certificates =
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|e| tls_error(object, &e))?;
    if certificates.is_empty() {
        return Err(tls_error(object, &"the PEM block `-----BEGIN CERTIFICATE-----` is missing"));
    }
    Ok(certificates.into_iter().map(|certificate| certificate.to_vec()).collect())
}

fn load_roots(config: &Config) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let Some(ca_certificates) = &config.root_cert else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for authority in ca_certificates {
        roots.add(CertificateDer::from(authority.as_slice()))?;
    }
    Ok(roots)
}

pub(super) fn tls_error(object: &'static str, reason: &impl ToString) -> AccessError {
    AccessError::Tls { object, reason: reason.to_string() }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn load_identity(auth_info: &AuthInfo) -> Result<Option<Identity>, AccessError> {
    use secrecy::ExposeSecret;
    let key_data = auth_info.client_key_data.as_ref().map(|secret| secret.expose_secret());
    let certificate =
        read_pem("certificate", auth_info.client_certificate_data.as_deref(), auth_info.client_certificate.as_deref())?;
    let key = read_pem("key", key_data, auth_info.client_key.as_deref())?;
    let (Some(certificate), Some(key)) = (certificate, key) else { return Ok(None) };
    let chain = parse_certificates("certificate", &certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| tls_error("key", &e))?;
    Ok(Some((chain.into_iter().map(CertificateDer::from).collect(), key)))
}

/// Returns the PEM text of base64 data in the kubeconfig, or else of a file, or `None` if neither is configured.
fn read_pem(object: &'static str, inline: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, AccessError> {
    match (inline, file) {
        (Some(text), _) => {
            let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            BASE64.decode(&text).map(Some).map_err(|_| tls_error(object, &"the data in the kubeconfig is not base64"))
        }
        (None, Some(file)) => std::fs::read(file).map(Some).map_err(|e| tls_error(object, &format!("{file}: {e}"))),
        (None, None) => Ok(None),
    }
}

/// A verifier that accepts any server certificate, for `insecure-skip-tls-verify`.
#[derive(Debug)]
struct AcceptAnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
