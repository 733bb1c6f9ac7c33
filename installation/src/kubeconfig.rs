//! Writes and reads the kubeconfig of the plugins, `calico-kubeconfig` beside the network
//! configuration, and ensures that it contains a valid token.

use std::fmt::Write as _;
use std::path::Path;

use data_encoding::BASE64;
use node_process::process;
use time::OffsetDateTime;

use crate::service_account::ServiceAccount;
use crate::token::{Claims, TokenCheck, TokenError, TokenRequest, check_token};
use os::atomic_file::{self, AtomicFileError, Change, regular_file};

/// The file name in the configuration directory. Without an extension of CNI, runtimes ignore the
/// file.
pub const NAME: &str = "calico-kubeconfig";

/// The mode of the file. Only root may read the token.
pub const MODE: u32 = 0o600;

/// The content of the file.
#[derive(Clone, Copy)]
pub struct Kubeconfig<'a> {
    /// The URL of the API server.
    pub server: &'a str,
    /// The verification of the API server's certificate.
    pub trust: Trust<'a>,
    /// The token of the plugins' service account.
    pub token: &'a str,
}

/// The verification of the API server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust<'a> {
    /// The certificate must be signed by one of these CA certificates (PEM).
    Authorities(&'a [u8]),
    /// Any certificate is accepted (`SKIP_TLS_VERIFY`).
    AnyCertificate,
}

/// Reasons for a missing token or a failed write.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum KubeconfigError {
    /// The token request failed.
    Token(#[from] TokenError),
    /// The CA certificates of the API server cannot be read, or the kubeconfig cannot be written.
    File(#[from] AtomicFileError),
}

impl KubeconfigError {
    /// Returns true if the request is worth repeating: the API server sent no response, or
    /// [`TokenError::Failed`] that is not the refusal of an admission policy (403).
    pub fn is_temporary(&self) -> bool {
        self.is_unreachable()
            || matches!(
                self, KubeconfigError::Token(TokenError::Failed { code, .. }) if *code != 403,
            )
    }

    /// Returns true if the API server sent no response.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, KubeconfigError::Token(TokenError::Unreachable { .. }))
    }
}

/// Writes the kubeconfig of the plugins to `file`. The file is replaced atomically; upstream
/// truncates it in place, so that a plugin may read half of it (INST-25).
pub fn write(file: &Path, pod: &ServiceAccount, token: &str) -> Result<Change, KubeconfigError> {
    const READ: &str = "read the API server's CA certificates";
    let unreadable = |source| AtomicFileError {
        action: READ,
        path: pod.ca_file.clone(),
        source,
    };
    let authorities = if pod.insecure {
        None
    } else {
        Some(regular_file::contents(&pod.ca_file).map_err(unreadable)?)
    };
    if pod.insecure {
        tracing::warn!(
            "SKIP_TLS_VERIFY is true: the plugins accept any certificate of the API server"
        );
    }
    let trust = authorities
        .as_deref()
        .map_or(Trust::AnyCertificate, Trust::Authorities);
    let text = Kubeconfig {
        server: &pod.server,
        trust,
        token,
    }
    .render();
    Ok(atomic_file::replace(file, text.as_bytes(), MODE)?)
}

impl Kubeconfig<'_> {
    /// Returns the content, byte for byte as upstream's installer writes it (INST-23).
    pub fn render(&self) -> String {
        let mut text = String::from(
            "# Kubeconfig file for Calico CNI plugin.\napiVersion: v1\nkind: Config\n",
        );
        let _ = writeln!(
            text,
            "clusters:\n- name: local\n  cluster:\n    server: {}",
            self.server
        );
        let _ = match self.trust {
            Trust::Authorities(pem) => writeln!(
                text,
                "    certificate-authority-data: {}",
                BASE64.encode(pem)
            ),
            Trust::AnyCertificate => writeln!(text, "    insecure-skip-tls-verify: true"),
        };
        let _ = writeln!(
            text,
            "users:\n- name: calico\n  user:\n    token: {}",
            self.token
        );
        text +=
            "contexts:\n- name: calico-context\n  context:\n    cluster: local\n    user: calico\n";
        text + "current-context: calico-context"
    }
}

// Written by hand because the token is a secret.
impl std::fmt::Debug for Kubeconfig<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubeconfig")
            .field("server", &self.server)
            .field("trust", &self.trust)
            .finish_non_exhaustive()
    }
}

/// Returns the token in a kubeconfig that this installer or calico-node wrote (INST-24).
pub fn token(file: &str) -> Option<&str> {
    let line = file
        .lines()
        .find_map(|line| line.trim().strip_prefix("token:"))?;
    let token = line.trim().trim_matches('"');
    (!token.is_empty()).then_some(token)
}

/// Returns true if the kubeconfig accepts any certificate of the API server.
pub fn accepts_any_certificate(file: &str) -> bool {
    file.lines()
        .any(|line| line.trim() == "insecure-skip-tls-verify: true")
}

/// Ensures that the kubeconfig in `net_dir` contains a token for the account and the Node of
/// `request`, which the API server accepts.
pub fn ensure(
    pod: &ServiceAccount,
    request: &TokenRequest,
    net_dir: &Path,
) -> Result<Change, KubeconfigError> {
    let file = net_dir.join(NAME);
    process::block_on(async {
        if let Some(token) = reusable_token(&file, pod, request)
            && check_token(pod, &token).await == TokenCheck::Valid
        {
            return write(&file, pod, &token);
        }
        let issued = request.send(pod).await?;
        write(&file, pod, issued.token.reveal())
    })
}

/// Returns the token in the file if it is for the account and the Node of `request` and more than
/// half of its lifetime remains.
fn reusable_token(file: &Path, pod: &ServiceAccount, request: &TokenRequest) -> Option<String> {
    let text = regular_file::text(file).ok()?;
    let token = token(&text)?;
    let account = format!("system:serviceaccount:{}:{}", pod.namespace, request.name);
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let claims = Claims::decode(token).ok()?;
    (claims.node() == request.node.as_deref() && is_fresh(&claims, &account, now))
        .then(|| token.to_owned())
}

/// Returns true if the token belongs to `account` and more than half of its lifetime remains. A
/// token that seems to be issued in the future is not fresh: the node's clock is wrong.
fn is_fresh(claims: &Claims, account: &str, now: i64) -> bool {
    claims.sub == account && claims.iat <= now && claims.exp - now > (claims.exp - claims.iat) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: &[u8] = b"-----BEGIN CERTIFICATE-----\n";

    #[test]
    fn kubeconfig_bytes_match_upstreams() {
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
        let trusting = Kubeconfig {
            trust: Trust::AnyCertificate,
            ..file
        }
        .render();
        assert!(
            trusting.contains("\n    insecure-skip-tls-verify: true\nusers:"),
            "{trusting}"
        );
        assert!(accepts_any_certificate(&trusting));
        assert!(!trusting.contains("certificate-authority"), "{trusting}");
    }

    #[test]
    fn token_is_read_from_kubeconfigs_of_both_writers() {
        let ours = Kubeconfig {
            server: "https://s",
            trust: Trust::AnyCertificate,
            token: "a.b.c",
        }
        .render();
        assert_eq!(token(&ours), Some("a.b.c"));
        assert_eq!(
            token("users:\n- user:\n    token: \"a.b.c\"\n"),
            Some("a.b.c")
        );
        for without in ["", "    token: \n", "    token: \"\"", &ours[..60]] {
            assert_eq!(token(without), None, "{without}");
        }
    }

    #[test]
    fn kubeconfig_debug_output_omits_the_token() {
        let file = Kubeconfig {
            server: "https://s",
            trust: Trust::AnyCertificate,
            token: "SECRET",
        };
        assert!(!format!("{file:?}").contains("SECRET"));
    }

    #[test]
    fn token_is_reused_during_the_first_half_of_its_lifetime() {
        let account = "system:serviceaccount:kube-system:calico-cni-plugin";
        let claims = |iat, exp| Claims {
            iat,
            exp,
            sub: account.into(),
            ..Claims::default()
        };
        for (claims, fresh) in [
            (claims(1000, 2000), true),
            (claims(400, 2101), true),
            (claims(0, 1800), false),
            (claims(0, 900), false),
            (claims(1201, 5000), false),
            (
                Claims {
                    sub: "system:serviceaccount:kube-system:canal".into(),
                    ..claims(1000, 2000)
                },
                false,
            ),
        ] {
            assert_eq!(is_fresh(&claims, account, 1200), fresh, "{claims:?}");
        }
    }
}
