//! [`ServerVerifier`]: checks a server's certificate as webpki does, and also accepts a CA
//! certificate that is itself trusted.
//!
//! `openssl req -x509` makes a certificate for which `CA:TRUE` holds. webpki refuses such a
//! certificate as a server's, and Go accepts it if it is among the trusted ones (DS-17). This
//! verifier does the same. The dates, the extended key usages, the name and the signature of the
//! handshake are checked for such a certificate too.

use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{self, WebPkiSupportedAlgorithms};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use super::usages::permits_server_authentication;
use super::{Roots, Trust};

/// A check of server certificates.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    pub(super) fn new(trust: Trust, algorithms: WebPkiSupportedAlgorithms) -> Self {
        ServerVerifier { trust, algorithms }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Trust::Roots(roots) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            roots.authorities(),
            intermediates,
            now,
            algorithms,
        )
        .or_else(|error| accept_trusted_authority(certificate, roots, error))?;
        verify_server_name(&parsed, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns `error` unless it only says that a trusted certificate is an authority's. webpki checks
/// the dates before that, and the extended key usages after it.
fn accept_trusted_authority(
    certificate: &CertificateDer<'_>,
    roots: &Roots,
    error: Error,
) -> Result<(), Error> {
    if !is_authority_as_server(&error) || !roots.contains(certificate) {
        return Err(error);
    }
    if !permits_server_authentication(certificate) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    Ok(())
}

fn is_authority_as_server(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else {
        return false;
    };
    matches!(
        other.0.downcast_ref::<webpki::Error>(),
        Some(webpki::Error::CaUsedAsEndEntity)
    )
}

#[cfg(test)]
mod tests;
