//! [`Roots`]: the certificates that a client trusts.

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::TlsError;

/// The certificates that a client trusts, as authorities and as server certificates.
#[derive(Debug)]
pub(crate) struct Roots {
    authorities: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// Returns the configured certificates without those that cannot be parsed, which upstream ignores too. Fails if
    /// none can be parsed.
    pub(crate) fn configured(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        let mut authorities = RootCertStore::empty();
        let mut problem = None;
        for certificate in &certificates {
            if let Err(error) = authorities.add(certificate.clone()) {
                problem = Some(error);
            }
        }
        match problem {
            Some(error) if authorities.is_empty() => Err(TlsError::new("CA certificates", &error)),
            _ => Ok(Roots { authorities, certificates }),
        }
    }

    /// Reads this system's certificates, from the files that `SSL_CERT_FILE` and `SSL_CERT_DIR` name or from the usual
    /// ones. There may be none.
    pub(crate) fn of_system() -> Self {
        let certificates = rustls_native_certs::load_native_certs().certs;
        let mut authorities = RootCertStore::empty();
        authorities.add_parsable_certificates(certificates.iter().map(|one| CertificateDer::from(one.as_ref())));
        Roots { authorities, certificates }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.authorities.is_empty()
    }

    pub(super) fn authorities(&self) -> &RootCertStore {
        &self.authorities
    }

    /// Returns true if `certificate` is, byte for byte, one of the trusted certificates.
    pub(super) fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.iter().any(|trusted| trusted.as_ref() == certificate.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;

    use super::*;

    #[test]
    fn unparsable_certificates_are_ignored_unless_all_are_unparsable() {
        let good = generate_simple_self_signed(vec!["a".into()]).unwrap().cert.der().clone();
        let bad = CertificateDer::from(vec![0x30, 0x00]);
        let roots = Roots::configured(vec![bad.clone(), good.clone()]).unwrap();
        assert!(!roots.is_empty() && roots.contains(&good));
        let error = Roots::configured(vec![bad]).unwrap_err().to_string();
        assert!(error.starts_with("CA certificates: "), "{error}");
    }
}
