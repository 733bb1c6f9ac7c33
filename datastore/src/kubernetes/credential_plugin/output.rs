//! [`parse`]: the credentials that a plugin prints, an ExecCredential as JSON or YAML.

use std::time::Duration;

use libcalico::failure::Failure;
use libcalico::yaml::documents;
use secrecy::SecretString;
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Time before their expiry at which credentials are renewed, or half of their validity if that is
/// shorter.
const MARGIN: Duration = Duration::from_secs(60);
/// Minimum time between two renewals by expiry.
const SHORTEST_USE: Duration = Duration::from_secs(1);

/// The credentials that a plugin has printed: a token, a client certificate, or both.
#[derive(Debug, Clone)]
pub(in crate::kubernetes) struct Credential {
    pub(in crate::kubernetes) token: Option<SecretString>,
    pub(in crate::kubernetes) certificate: Option<ClientCertificate>,
    /// `None` if the credentials are valid until the server rejects them.
    expires_at: Option<OffsetDateTime>,
}

#[derive(Debug, Clone)]
pub(in crate::kubernetes) struct ClientCertificate {
    /// The certificate and its intermediates, PEM.
    pub(in crate::kubernetes) chain: String,
    /// The key, PEM.
    pub(in crate::kubernetes) key: SecretString,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    /// A JSON value, because a number is not a token in JSON, and YAML would read it as one.
    #[serde(default)]
    status: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    expiration_timestamp: Option<String>,
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    client_certificate_data: Option<String>,
    #[serde(default)]
    client_key_data: Option<String>,
}

/// Parses the output of a plugin. `version` is the version of the protocol in the kubeconfig.
pub(super) fn parse(output: &[u8], version: &str) -> Result<Credential, Failure> {
    let text = str::from_utf8(output).map_err(|_| unreadable())?;
    let document = documents(text).map_err(|_| unreadable())?;
    let object = ExecCredential::deserialize(document).map_err(|_| unreadable())?;
    if object.kind.as_deref() != Some("ExecCredential") {
        return Err(unreadable());
    }
    let found = object.api_version.unwrap_or_default();
    if found != version {
        return Err(Failure::new(format_args!(
            "its output is of {found}, and the kubeconfig demands {version}"
        ))
        .way_out("write the same version in the kubeconfig"));
    }
    let status = object
        .status
        .ok_or_else(|| Failure::new("its output has no status"))?;
    let status: Status = serde_json::from_value(status).map_err(|_| unreadable())?;
    let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let token = filled(status.token);
    let certificate = match (
        filled(status.client_certificate_data),
        filled(status.client_key_data),
    ) {
        (Some(chain), Some(key)) => Some(ClientCertificate {
            chain,
            key: key.into(),
        }),
        (None, None) if token.is_none() => {
            return Err(Failure::new(
                "its output has neither a token nor a client certificate",
            ));
        }
        (None, None) => None,
        _ => {
            return Err(Failure::new(
                "its output has only one of clientCertificateData and clientKeyData",
            ));
        }
    };
    let expiry =
        filled(status.expiration_timestamp).map(|text| OffsetDateTime::parse(&text, &Rfc3339));
    let expires_at = expiry.transpose().map_err(|_| {
        Failure::new("expirationTimestamp of its output is not a time as in RFC 3339")
    })?;
    Ok(Credential {
        token: token.map(Into::into),
        certificate,
        expires_at,
    })
}

/// Returns the failure without the parser's message, which may quote a secret.
fn unreadable() -> Failure {
    Failure::new("its output is not the JSON or YAML of an ExecCredential")
}

impl Credential {
    /// Returns the time from `now` until the credentials are to be renewed, or `None` if they do
    /// not expire.
    pub(in crate::kubernetes) fn usable_for(&self, now: OffsetDateTime) -> Option<Duration> {
        let valid = Duration::try_from(self.expires_at? - now).unwrap_or_default();
        Some((valid - MARGIN.min(valid / 2)).max(SHORTEST_USE))
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::{Value, json};

    use super::*;

    const V1: &str = "client.authentication.k8s.io/v1";

    fn credential(status: &Value) -> Result<Credential, Failure> {
        parse(
            json!({ "apiVersion": V1, "kind": "ExecCredential", "status": status })
                .to_string()
                .as_bytes(),
            V1,
        )
    }

    fn token(credential: &Credential) -> Option<&str> {
        credential.token.as_ref().map(|token| token.expose_secret())
    }

    #[test]
    fn token_and_certificate_are_read_from_json_and_yaml() {
        let both = credential(
            &json!({ "token": "t", "clientCertificateData": "c", "clientKeyData": "k" }),
        )
        .unwrap();
        let certificate = both.certificate.as_ref().unwrap();
        assert_eq!(
            (
                token(&both),
                &*certificate.chain,
                certificate.key.expose_secret()
            ),
            (Some("t"), "c", "k")
        );
        assert!(!format!("{both:?}").contains("\"t\""));
        let yaml =
            format!("apiVersion: {V1}\nkind: ExecCredential\nspec: {{}}\nstatus:\n  token: abc\n");
        assert_eq!(token(&parse(yaml.as_bytes(), V1).unwrap()), Some("abc"));
        let only =
            credential(&json!({ "token": "", "clientCertificateData": "c", "clientKeyData": "k" }))
                .unwrap();
        assert!(only.token.is_none() && only.certificate.is_some());
    }

    #[test]
    fn unusable_output_is_named_and_not_quoted() {
        let of_kind = |kind: &str, version: &str| {
            let object =
                json!({ "apiVersion": version, "kind": kind, "status": { "token": "secret" } });
            parse(object.to_string().as_bytes(), V1)
        };
        let other = "client.authentication.k8s.io/v1beta1";
        let unreadable = "its output is not the JSON or YAML of an ExecCredential";
        let errors = [
            (parse(b"secret", V1), unreadable),
            (parse(b"", V1), unreadable),
            (parse(b"\xff", V1), unreadable),
            (of_kind("Secret", V1), unreadable),
            (
                of_kind("ExecCredential", other),
                "its output is of client.authentication.k8s.io/v1beta1, and the kubeconfig demands \
                 client.authentication.k8s.io/v1; write the same version in the kubeconfig",
            ),
            (credential(&Value::Null), "its output has no status"),
            (credential(&json!("secret")), unreadable),
            (credential(&json!({ "token": 7 })), unreadable),
            (
                credential(&json!({ "token": " " })),
                "its output has neither a token nor a client certificate",
            ),
            (
                credential(&json!({ "token": "secret", "clientKeyData": "secret" })),
                "its output has only one of clientCertificateData and clientKeyData",
            ),
            (
                credential(&json!({ "token": "t", "expirationTimestamp": "tomorrow" })),
                "expirationTimestamp of its output is not a time as in RFC 3339",
            ),
        ];
        for (outcome, expected) in errors {
            let error = outcome.unwrap_err().to_string();
            assert_eq!(error, expected);
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn credentials_are_renewed_before_their_expiry() {
        let now = OffsetDateTime::UNIX_EPOCH;
        for (expiry, seconds) in [
            (json!("1970-01-01T01:00:00Z"), Some(3540)),
            (json!("1970-01-01T01:01:00+00:01"), Some(3540)),
            (json!("1970-01-01T00:01:40Z"), Some(50)),
            (json!("1970-01-01T00:00:00Z"), Some(1)),
            (json!("1969-12-31T00:00:00Z"), Some(1)),
            (Value::Null, None),
        ] {
            let credential =
                credential(&json!({ "token": "t", "expirationTimestamp": expiry })).unwrap();
            assert_eq!(
                credential.usable_for(now),
                seconds.map(Duration::from_secs),
                "{expiry}"
            );
        }
    }
}
