//! [`Identity`]: a client certificate with its key. [`parse_certificates`]: the certificates of a PEM text.

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// A client certificate with its key.
pub(crate) struct Identity {
    /// The client certificate, followed by the certificates of intermediate authorities.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Parses PEM texts. Does not check that the key belongs to the certificate.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = parse_certificates("certificate", certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| TlsError::new("key", &e))?;
        Ok(Identity { chain, key })
    }
}

/// Returns the certificates of a PEM text, at least one. `object` names the text in errors.
pub(crate) fn parse_certificates(object: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates =
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|e| TlsError::new(object, &e))?;
    if certificates.is_empty() {
        return Err(TlsError::new(object, &"the PEM block `-----BEGIN CERTIFICATE-----` is missing"));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    #[test]
    fn identity_is_parsed_from_certificate_and_key() {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec!["client".into()]).unwrap();
        let (chain, key) = (cert.pem().repeat(2), signing_key.serialize_pem());
        let identity = Identity::parse(chain.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(identity.chain, [cert.der().clone(), cert.der().clone()]);
        assert_eq!(identity.key.secret_der(), signing_key.serialize_der());
        let error = |certificate: &str, key: &str| {
            Identity::parse(certificate.as_bytes(), key.as_bytes()).err().expect("no identity").to_string()
        };
        assert!(error(&key, &key).starts_with("certificate: the PEM block"));
        assert!(error(&cert.pem(), &cert.pem()).starts_with("key: "));
    }
}
