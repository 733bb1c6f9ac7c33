use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use tokio_rustls::rustls::crypto::ring;

use super::*;

const NAME: &str = "etcd.test";

fn params() -> CertificateParams {
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, "home-made");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn self_signed(params: CertificateParams) -> CertificateDer<'static> {
    params
        .self_signed(&KeyPair::generate().unwrap())
        .unwrap()
        .der()
        .clone()
}

/// Checks the certificate of a server as a client that trusts `trusted` and connects to `name`.
/// Returns the text of the error.
fn verify_as(
    name: &str,
    trusted: &CertificateDer<'static>,
    server: &CertificateDer<'static>,
    intermediates: &[CertificateDer<'static>],
) -> Option<String> {
    let roots = Roots::configured(vec![trusted.clone()]).unwrap();
    let algorithms = ring::default_provider().signature_verification_algorithms;
    let verifier = ServerVerifier::new(Trust::Roots(roots), algorithms);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let verified = verifier.verify_server_cert(server, intermediates, &name, &[], UnixTime::now());
    verified.err().map(|error| error.to_string())
}

fn verify(trusted: &CertificateDer<'static>, server: &CertificateDer<'static>) -> Option<String> {
    verify_as(NAME, trusted, server, &[])
}

/// Returns the error for a trusted self-signed CA certificate with one change, as its server
/// presents it.
fn verify_own(change: impl FnOnce(&mut CertificateParams)) -> Option<String> {
    let mut params = params();
    change(&mut params);
    let certificate = self_signed(params);
    verify(&certificate, &certificate)
}

#[test]
fn trusted_self_signed_certificate_is_accepted() {
    assert_eq!(verify_own(|_| {}), None);
    let server_only = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    assert_eq!(
        verify_own(|params| params.extended_key_usages = server_only),
        None
    );
    // Other certificates that the server sends have no effect.
    let certificate = self_signed(params());
    assert_eq!(
        verify_as(NAME, &certificate, &certificate, &[self_signed(params())]),
        None
    );
}

#[test]
fn trusted_self_signed_certificate_with_another_name_is_refused() {
    let certificate = self_signed(params());
    for name in ["other.test", "127.0.0.1"] {
        let error = verify_as(name, &certificate, &certificate, &[]).unwrap();
        assert!(error.contains("not valid for name"), "{error}");
    }
}

#[test]
fn trusted_self_signed_certificate_outside_its_dates_is_refused() {
    let error = verify_own(|params| params.not_after = date_time_ymd(2020, 1, 1)).unwrap();
    assert!(error.contains("certificate expired"), "{error}");
    let error = verify_own(|params| params.not_before = date_time_ymd(4000, 1, 1)).unwrap();
    assert!(error.contains("certificate not valid yet"), "{error}");
}

#[test]
fn trusted_self_signed_certificate_of_another_purpose_is_refused() {
    for purpose in [
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::Any,
    ] {
        let error = verify_own(|params| params.extended_key_usages = vec![purpose]).unwrap();
        assert!(error.contains("InvalidPurpose"), "{error}");
    }
}

#[test]
fn copy_of_a_trusted_certificate_with_another_key_is_refused() {
    let error = verify(&self_signed(params()), &self_signed(params())).unwrap();
    assert!(error.contains("CaUsedAsEndEntity"), "{error}");
}

#[test]
fn ca_certificate_that_is_not_trusted_is_refused() {
    let issuer = CertifiedIssuer::self_signed(params(), KeyPair::generate().unwrap()).unwrap();
    let mut intermediate = params();
    intermediate
        .distinguished_name
        .push(DnType::CommonName, "intermediate");
    let signed = intermediate
        .signed_by(&KeyPair::generate().unwrap(), &issuer)
        .unwrap()
        .der()
        .clone();
    let error = verify(issuer.der(), &signed).unwrap();
    assert!(error.contains("CaUsedAsEndEntity"), "{error}");
}

#[test]
fn trusted_self_signed_certificate_signing_a_leaf_still_works() {
    let issuer = CertifiedIssuer::self_signed(params(), KeyPair::generate().unwrap()).unwrap();
    let leaf = |name: &str| {
        let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
        leaf.signed_by(&KeyPair::generate().unwrap(), &issuer)
            .unwrap()
            .der()
            .clone()
    };
    assert_eq!(verify(issuer.der(), &leaf(NAME)), None);
    assert!(
        verify(issuer.der(), &leaf("other.test"))
            .unwrap()
            .contains("not valid for name")
    );
    let stranger = self_signed(params());
    assert!(verify(&stranger, &leaf(NAME)).is_some());
}

#[test]
fn trusted_self_signed_certificate_without_ca_flag_is_accepted() {
    assert_eq!(verify_own(|params| params.is_ca = IsCa::NoCa), None);
}

#[test]
fn any_certificate_is_accepted_without_verification() {
    let algorithms = ring::default_provider().signature_verification_algorithms;
    let verifier = ServerVerifier::new(Trust::AnyServer, algorithms);
    let name = ServerName::try_from("other.test").unwrap();
    let invalid = CertificateDer::from(vec![0]);
    assert!(
        verifier
            .verify_server_cert(&invalid, &[], &name, &[], UnixTime::now())
            .is_ok()
    );
}
