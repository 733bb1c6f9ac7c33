//! The identity of a client, and a kubeconfig with it.

use std::fmt;

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;

/// The credentials of a client.
#[derive(Clone)]
pub enum Identity {
    /// A client certificate and its key, PEM.
    Certificate {
        /// The certificate.
        certificate: String,
        /// The key.
        key: String,
    },
    /// A bearer token.
    Token(String),
}

impl Identity {
    /// Returns a kubeconfig with all credentials inline.
    pub fn kubeconfig(&self, server: &str, authority: &str) -> Result<String> {
        let user = match self {
            Identity::Certificate { certificate, key } => json!({
                "client-certificate-data": BASE64.encode(certificate),
                "client-key-data": BASE64.encode(key),
            }),
            Identity::Token(token) => json!({ "token": token }),
        };
        let cluster =
            json!({ "server": server, "certificate-authority-data": BASE64.encode(authority) });
        Ok(serde_norway::to_string(&json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "lab", "cluster": cluster }],
            "users": [{ "name": "lab", "user": user }],
            "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": "lab" } }],
            "current-context": "lab",
        }))?)
    }
}

/// Formats the variant without the secret.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Identity::Certificate { .. } => "Certificate",
            Identity::Token(_) => "Token",
        })
    }
}
