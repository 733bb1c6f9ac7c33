//! [`TlsPolicy`]: the minimum version of TLS, and the cipher suites. Pure: the caller reads the
//! settings.

use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    ALL_VERSIONS, CipherSuite, SupportedCipherSuite, SupportedProtocolVersion,
};

use super::cipher_suites::{self, NamedSuite};
use crate::error::ConfigError;

static ONLY_TLS13: [&SupportedProtocolVersion; 1] = [&TLS13];

/// The TLS versions and cipher suites that a client offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    min_version: MinVersion,
    /// The suites to offer; `None` offers all. As in Go, the suites of TLS 1.3 are always offered
    /// (DS-7).
    cipher_suites: Option<Vec<CipherSuite>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum MinVersion {
    #[default]
    Tls12,
    Tls13,
}

impl TlsPolicy {
    /// Parses the values of `TLS_MIN_VERSION` and `TLS_CIPHER_SUITES`. An empty text means not set.
    /// Also returns warnings about values without effect.
    ///
    /// # Errors
    /// Returns an error for a suite that Go does not know, and if this client may use TLS 1.2 and
    /// has none of the named suites (DS-7).
    pub(crate) fn parse(
        min_version: &str,
        cipher_suites: &str,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let mut warnings = Vec::new();
        let min_version = match min_version {
            "" | "1.2" => MinVersion::Tls12,
            "1.3" => MinVersion::Tls13,
            other => {
                warnings.push(format!(
                    "TLS_MIN_VERSION: `{other}` is not 1.2 or 1.3; connections to etcd use at \
                     least TLS 1.2"
                ));
                MinVersion::Tls12
            }
        };
        if cipher_suites.is_empty() {
            return Ok((
                TlsPolicy {
                    min_version,
                    cipher_suites: None,
                },
                warnings,
            ));
        }
        let (mut offered, mut lacking) = (Vec::new(), Vec::new());
        for name in cipher_suites.split(',').map(str::trim) {
            match cipher_suites::find(name) {
                Some(NamedSuite::Offered(suite)) => offered.push(suite),
                Some(NamedSuite::Lacking) => lacking.push(name),
                None => return Err(ConfigError::UnknownCipherSuite(name.into())),
            }
        }
        // As in Go, the list has no effect on TLS 1.3.
        let is_used = min_version == MinVersion::Tls12;
        if is_used && offered.is_empty() {
            return Err(ConfigError::NoCipherSuite(lacking.join(", ")));
        }
        if !lacking.is_empty() {
            warnings.push(format!(
                "TLS_CIPHER_SUITES: this program does not have {}; connections to etcd offer the \
                 other cipher suites",
                lacking.join(", ")
            ));
        }
        Ok((
            TlsPolicy {
                min_version,
                cipher_suites: is_used.then_some(offered),
            },
            warnings,
        ))
    }

    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.min_version {
            MinVersion::Tls12 => ALL_VERSIONS,
            MinVersion::Tls13 => &ONLY_TLS13,
        }
    }

    pub(super) fn permits(&self, suite: &SupportedCipherSuite) -> bool {
        let named = self
            .cipher_suites
            .as_ref()
            .is_none_or(|named| named.contains(&suite.suite()));
        named || suite.tls13().is_some()
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::crypto::ring;

    use super::*;

    fn parse(min_version: &str, cipher_suites: &str) -> (TlsPolicy, Vec<String>) {
        TlsPolicy::parse(min_version, cipher_suites).unwrap()
    }

    /// Returns the offered suites of TLS 1.2, in the order of rustls.
    fn offered_in_tls_1_2(policy: &TlsPolicy) -> Vec<CipherSuite> {
        let all = ring::default_provider().cipher_suites.into_iter();
        let (tls13, tls12): (Vec<_>, Vec<_>) = all
            .filter(|s| policy.permits(s))
            .partition(|s| s.tls13().is_some());
        assert_eq!(tls13.len(), 3, "the suites of TLS 1.3 cannot be deselected");
        tls12.iter().map(SupportedCipherSuite::suite).collect()
    }

    #[test]
    fn minimum_version_is_1_2_or_1_3_and_other_values_are_warned_about() {
        for (value, versions, has_warning) in [
            ("", 2, false),
            ("1.2", 2, false),
            ("1.3", 1, false),
            ("1.1", 2, true),
            ("TLSv1.3", 2, true),
        ] {
            let (policy, warnings) = parse(value, "");
            assert_eq!(
                (policy.versions().len(), warnings.len()),
                (versions, usize::from(has_warning)),
                "{value}"
            );
            assert!(
                warnings.iter().all(|text| text.contains(value)),
                "{warnings:?}"
            );
        }
        assert_eq!(parse("1.2", ""), (TlsPolicy::default(), Vec::new()));
    }

    #[test]
    fn named_suites_are_offered_without_those_that_rustls_lacks() {
        let (policy, warnings) = parse(
            "",
            "TLS_RSA_WITH_AES_128_CBC_SHA , TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        );
        assert_eq!(
            offered_in_tls_1_2(&policy),
            [CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
        );
        assert!(
            warnings.len() == 1 && warnings[0].contains("TLS_RSA_WITH_AES_128_CBC_SHA;"),
            "{warnings:?}"
        );
        let (policy, warnings) = parse("1.2", "TLS_AES_128_GCM_SHA256");
        assert_eq!(
            (offered_in_tls_1_2(&policy), warnings),
            (Vec::new(), Vec::new())
        );
        assert_eq!(offered_in_tls_1_2(&TlsPolicy::default()).len(), 6);
    }

    #[test]
    fn unknown_or_empty_name_is_refused() {
        for (list, name) in [
            ("TLS_NULL", "TLS_NULL"),
            ("TLS_AES_128_GCM_SHA256,", ""),
            (" ", ""),
            (
                "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384",
                "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384",
            ),
        ] {
            for version in ["", "1.3"] {
                let refused = ConfigError::UnknownCipherSuite(name.into());
                assert_eq!(TlsPolicy::parse(version, list), Err(refused), "{list}");
            }
        }
    }

    #[test]
    fn list_of_lacking_suites_alone_is_refused_unless_the_minimum_is_1_3() {
        let list = "TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_AES_256_GCM_SHA384";
        let names = "TLS_RSA_WITH_AES_128_CBC_SHA, TLS_RSA_WITH_AES_256_GCM_SHA384";
        assert_eq!(
            TlsPolicy::parse("1.2", list),
            Err(ConfigError::NoCipherSuite(names.into()))
        );
        let (policy, warnings) = parse("1.3", list);
        assert_eq!(policy, parse("1.3", "").0);
        assert!(
            warnings.len() == 1 && warnings[0].contains(names),
            "{warnings:?}"
        );
        assert_eq!(parse("1.3", "TLS_AES_256_GCM_SHA384"), parse("1.3", ""));
    }
}
