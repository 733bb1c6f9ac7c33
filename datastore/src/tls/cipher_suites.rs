//! The names of cipher suites that Go's `crypto/tls` has, and their suites in rustls.

use tokio_rustls::rustls::CipherSuite;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedSuite {
    Offered(CipherSuite),
    /// A suite of Go that rustls lacks, because it has no forward secrecy or uses CBC, RC4 or 3DES.
    Lacking,
}

/// The names of Go. Upstream accepts 14 of them, and refuses the others.
const GO_NAMES: [(&str, NamedSuite); 27] = {
    use NamedSuite::{Lacking, Offered};
    [
        (
            "TLS_AES_128_GCM_SHA256",
            Offered(CipherSuite::TLS13_AES_128_GCM_SHA256),
        ),
        (
            "TLS_AES_256_GCM_SHA384",
            Offered(CipherSuite::TLS13_AES_256_GCM_SHA384),
        ),
        (
            "TLS_CHACHA20_POLY1305_SHA256",
            Offered(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
        (
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            Offered(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
        (
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Offered(CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        ),
        (
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Offered(CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            Offered(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
        (
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
            Offered(CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
        ),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", Lacking),
        ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", Lacking),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", Lacking),
        ("TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", Lacking),
        ("TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", Lacking),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", Lacking),
        ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", Lacking),
        ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", Lacking),
        ("TLS_ECDHE_RSA_WITH_RC4_128_SHA", Lacking),
        ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", Lacking),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", Lacking),
        ("TLS_RSA_WITH_AES_128_CBC_SHA256", Lacking),
        ("TLS_RSA_WITH_AES_128_GCM_SHA256", Lacking),
        ("TLS_RSA_WITH_AES_256_CBC_SHA", Lacking),
        ("TLS_RSA_WITH_AES_256_GCM_SHA384", Lacking),
        ("TLS_RSA_WITH_RC4_128_SHA", Lacking),
    ]
};

/// Returns `None` for a name that Go does not know.
pub(super) fn find(name: &str) -> Option<NamedSuite> {
    GO_NAMES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, suite)| *suite)
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    #[test]
    fn each_suite_of_rustls_has_a_name() {
        for suite in ring::default_provider().cipher_suites {
            let named = GO_NAMES
                .iter()
                .any(|(_, named)| *named == NamedSuite::Offered(suite.suite()));
            assert!(named, "{:?}", suite.suite());
        }
    }

    #[test]
    fn lookup_of_the_lists_of_go_and_upstream_finds_each_name() {
        let upstream = [
            "TLS_AES_128_GCM_SHA256",
            "TLS_AES_256_GCM_SHA384",
            "TLS_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
            "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
            "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
            "TLS_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_RSA_WITH_AES_128_GCM_SHA256",
        ];
        assert!(upstream.iter().all(|name| find(name).is_some()));
        assert_eq!(find("TLS_RSA_WITH_RC4_128_SHA"), Some(NamedSuite::Lacking));
        assert_eq!(find("tls_aes_128_gcm_sha256"), None);
    }
}
