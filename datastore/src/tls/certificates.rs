//! [`Roots`]: the certificates that a client trusts. [`Identity`]: the certificate of the client
//! itself.

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// The certificates that a client trusts, as authorities and as server certificates.
#[derive(Debug)]
pub(crate) struct Roots {
    authorities: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// Returns the configured certificates without those that cannot be parsed, which upstream
    /// ignores too. Fails if none can be parsed.
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
            _ => Ok(Roots {
                authorities,
                certificates,
            }),
        }
    }

    /// Reads this system's certificates, from the files that `SSL_CERT_FILE` and `SSL_CERT_DIR`
    /// name or from the usual ones. There may be none.
    pub(crate) fn of_system() -> Self {
        let certificates = rustls_native_certs::load_native_certs().certs;
        let mut authorities = RootCertStore::empty();
        authorities.add_parsable_certificates(
            certificates
                .iter()
                .map(|one| CertificateDer::from(one.as_ref())),
        );
        Roots {
            authorities,
            certificates,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.authorities.is_empty()
    }

    pub(super) fn authorities(&self) -> &RootCertStore {
        &self.authorities
    }

    /// Returns true if `certificate` is, byte for byte, one of the trusted certificates.
    pub(super) fn contains(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates
            .iter()
            .any(|trusted| trusted.as_ref() == certificate.as_ref())
    }
}

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
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|e| TlsError::new("key", &describe(&e)))?;
        Ok(Identity { chain, key })
    }
}

/// Returns the certificates of a PEM text, at least one. `object` names the text in errors.
pub(crate) fn parse_certificates(
    object: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|e| TlsError::new(object, &describe(&e)))?;
    if certificates.is_empty() {
        return Err(TlsError::new(
            object,
            &"the PEM block `-----BEGIN CERTIFICATE-----` is missing",
        ));
    }
    Ok(certificates)
}

/// Describes the problem of a PEM text. The parser's message may quote a line, which may contain
/// the key.
fn describe(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "the PEM block is missing, or has an unknown label",
        pem::Error::Base64Decode(_) => "the text between the lines BEGIN and END is not base64",
        pem::Error::MissingSectionEnd { .. } | pem::Error::IllegalSectionStart { .. } => {
            "BEGIN and END of the PEM block are not two lines of their own; keep the line breaks \
             of the text"
        }
        _ => "not a PEM text",
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    #[test]
    fn unparsable_certificates_are_ignored_unless_all_are_unparsable() {
        let good = generate_simple_self_signed(vec!["a".into()])
            .unwrap()
            .cert
            .der()
            .clone();
        let bad = CertificateDer::from(vec![0x30, 0x00]);
        let roots = Roots::configured(vec![bad.clone(), good.clone()]).unwrap();
        assert!(!roots.is_empty() && roots.contains(&good));
        let error = Roots::configured(vec![bad]).unwrap_err().to_string();
        assert!(error.starts_with("CA certificates: "), "{error}");
    }

    #[test]
    fn identity_is_parsed_from_certificate_and_key() {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["client".into()]).unwrap();
        let (chain, key) = (cert.pem().repeat(2), signing_key.serialize_pem());
        let identity = Identity::parse(chain.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(identity.chain, [cert.der().clone(), cert.der().clone()]);
        assert_eq!(identity.key.secret_der(), signing_key.serialize_der());
        let error = |certificate: &str, key: &str| {
            Identity::parse(certificate.as_bytes(), key.as_bytes())
                .err()
                .expect("no identity")
                .to_string()
        };
        assert!(error(&key, &key).starts_with("certificate: the PEM block"));
        assert_eq!(
            error(&cert.pem(), &cert.pem()),
            "key: the PEM block is missing, or has an unknown label"
        );
    }

    /// Variables and folded YAML often lose the line breaks of a key.
    #[test]
    fn text_without_line_breaks_is_refused_without_quoting_it() {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["client".into()]).unwrap();
        let (chain, key) = (cert.pem(), signing_key.serialize_pem().replace('\n', " "));
        let until_end = key.split("-----END").next().unwrap();
        for text in [key.as_str(), until_end] {
            for (chain, key, object) in [
                (chain.as_str(), text, "key"),
                (text, key.as_str(), "certificate"),
            ] {
                let error = Identity::parse(chain.as_bytes(), key.as_bytes())
                    .err()
                    .expect("no identity")
                    .to_string();
                let reason = "BEGIN and END of the PEM block are not two lines of their own; keep \
                              the line breaks of the text";
                assert_eq!(error, format!("{object}: {reason}"));
            }
        }
        let damaged = signing_key.serialize_pem().replacen("\nM", "\n*", 1);
        let error = Identity::parse(chain.as_bytes(), damaged.as_bytes())
            .err()
            .expect("no identity")
            .to_string();
        assert_eq!(
            error,
            "key: the text between the lines BEGIN and END is not base64"
        );
    }
}
