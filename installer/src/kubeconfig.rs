//! The kubeconfig of the plugins: `calico-kubeconfig` beside the network configuration (INST-23).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;

use crate::atomic_file::{self, AtomicFileError, Change};
use crate::service_account::ServiceAccount;

/// Its name in the directory of network configurations. Without an extension of CNI's: runtimes pass it over (INST-16).
pub const NAME: &str = "calico-kubeconfig";

/// Who may read it: the token in it is the node's.
pub const MODE: u32 = 0o600;

/// What the file says.
#[derive(Clone, Copy)]
pub struct Kubeconfig<'a> {
    /// URL of the API server.
    pub server: &'a str,
    /// Whom to believe that it is the API server.
    pub trust: Trust<'a>,
    /// The token of the plugins' service account.
    pub token: &'a str,
}

/// Whom to believe that it is the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust<'a> {
    /// Whoever has a certificate of these authorities, PEM.
    Authorities(&'a [u8]),
    /// Anybody: `SKIP_TLS_VERIFY`.
    Anybody,
}

/// Why the file is not written. What was there before still is.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The authorities of the API server.
    #[error("cannot read the API server's authorities {}: {source}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The file itself.
    #[error(transparent)]
    File(#[from] AtomicFileError),
}

/// Writes the kubeconfig of the plugins to `file`, with the API server and the authorities of `pod` as they are now
/// (INST-46). A reader sees the former file or the new one, whole (INST-25).
pub fn write(file: &Path, pod: &ServiceAccount, token: &str) -> Result<Change, KubeconfigError> {
    let authorities = match pod.insecure {
        true => None,
        false => {
            let path = || pod.ca_file.clone();
            Some(fs::read(&pod.ca_file).map_err(|source| KubeconfigError::Authorities { path: path(), source })?)
        }
    };
    if pod.insecure {
        tracing::warn!("SKIP_TLS_VERIFY: the plugins will take any certificate of the API server");
    }
    let trust = authorities.as_deref().map_or(Trust::Anybody, Trust::Authorities);
    let text = Kubeconfig { server: &pod.server, trust, token }.render();
    Ok(atomic_file::replace(file, text.as_bytes(), MODE)?)
}

impl Kubeconfig<'_> {
    /// The file, byte for byte as upstream's installer writes it: no quotes, no line break at the end.
    pub fn render(&self) -> String {
        let mut text = String::from(
            "# Kubeconfig file for Calico CNI plugin.\n\
             apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: local\n  \
               cluster:\n",
        );
        let _ = writeln!(text, "    server: {}", self.server);
        let _ = match self.trust {
            Trust::Authorities(pem) => writeln!(text, "    certificate-authority-data: {}", BASE64.encode(pem)),
            Trust::Anybody => writeln!(text, "    insecure-skip-tls-verify: true"),
        };
        text.push_str("users:\n- name: calico\n  user:\n");
        let _ = writeln!(text, "    token: {}", self.token);
        text.push_str(
            "contexts:\n\
             - name: calico-context\n  \
               context:\n    \
                 cluster: local\n    \
                 user: calico\n\
             current-context: calico-context",
        );
        text
    }
}

// By hand: a token is a secret.
impl std::fmt::Debug for Kubeconfig<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubeconfig").field("server", &self.server).field("trust", &self.trust).finish_non_exhaustive()
    }
}

/// The token in a file of ours or of calico-node's (INST-24); `None` where there is none. Not a reader of any kubeconfig.
pub fn token(file: &str) -> Option<&str> {
    let found = file.lines().find_map(|line| line.trim().strip_prefix("token:"))?;
    let token = found.trim().trim_matches('"');
    (!token.is_empty()).then_some(token)
}

/// Whether the file takes any certificate of the API server.
pub fn trusts_anybody(file: &str) -> bool {
    file.lines().any(|line| line.trim() == "insecure-skip-tls-verify: true")
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &[u8] = b"-----BEGIN CERTIFICATE-----\n";

    #[test]
    fn the_bytes_are_upstreams() {
        let file = Kubeconfig {
            server: "https://10.96.0.1:443",
            trust: Trust::Authorities(AUTHORITY),
            token: "eyJhbGciOiJSUzI1NiJ9.e30.c2ln",
        };
        let expected = "# Kubeconfig file for Calico CNI plugin.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://10.96.0.1:443
    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg==
users:
- name: calico
  user:
    token: eyJhbGciOiJSUzI1NiJ9.e30.c2ln
contexts:
- name: calico-context
  context:
    cluster: local
    user: calico
current-context: calico-context";
        assert_eq!(file.render(), expected);
        let trusting = Kubeconfig { trust: Trust::Anybody, ..file }.render();
        assert!(trusting.contains("\n    insecure-skip-tls-verify: true\nusers:"), "{trusting}");
        assert!(trusts_anybody(&trusting));
        assert!(!trusting.contains("certificate-authority"), "{trusting}");
    }

    #[test]
    fn both_writers_tokens_are_read() {
        let ours = Kubeconfig { server: "https://s", trust: Trust::Anybody, token: "a.b.c" }.render();
        assert_eq!(token(&ours), Some("a.b.c"));
        assert_eq!(token("users:\n- user:\n    token: \"a.b.c\"\n"), Some("a.b.c"));
        for without in ["", "    token: \n", "    token: \"\"", &ours[..60]] {
            assert_eq!(token(without), None, "{without}");
        }
    }

    #[test]
    fn a_token_is_in_no_message() {
        let file = Kubeconfig { server: "https://s", trust: Trust::Anybody, token: "SECRET" };
        assert!(!format!("{file:?}").contains("SECRET"));
    }
}
