//! TLS on both sides of the proxy.

use std::sync::Arc;

use anyhow::Result;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The protocols that clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2, or HTTP/1.1 if the client does not offer HTTP/2.
    Http2,
    /// HTTP/1.1 only.
    Http1,
}

/// The certificate of a server, PEM.
#[derive(Clone)]
pub struct ServerCertificate {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The protocols that the server offers.
    pub protocol: Protocol,
}

impl ServerCertificate {
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let offered: &[&[u8]] = match self.protocol {
            Protocol::Http2 => &[b"h2", b"http/1.1"],
            Protocol::Http1 => &[b"http/1.1"],
        };
        config.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

pub(super) fn connector(authority: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Formats the protocols alone, without the certificate and its key.
impl std::fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCertificate")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}
