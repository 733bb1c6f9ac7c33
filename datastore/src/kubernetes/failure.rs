//! Why a request to the API server failed, and what that means to the caller (DS-118..DS-120).

use std::error::Error;
use std::time::Duration;

use hyper::StatusCode;
use libcalico::store::StoreError;
use serde::Deserialize;

use super::transport::TransportError;

/// A request that did not do what it was sent for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The API server refused.
    #[error("{0}")]
    Refused(Refusal),
    /// No connection: nothing was sent.
    #[error("{0}")]
    NotSent(String),
    /// Sent, and no answer: it may have been carried out.
    #[error("{0}")]
    NoAnswer(String),
    /// An answer that is no JSON, or none of the API's.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}

/// What a `Status` object says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    /// `NotFound`, `Conflict` …
    pub(super) reason: String,
    /// For people.
    pub(super) message: String,
    /// The fields it is about.
    pub(super) fields: Vec<String>,
    /// Whether it is about one object, and not about a kind that the server does not have.
    pub(super) names_object: bool,
    /// What the `Retry-After` header asks for.
    pub(super) retry_after: Option<Duration>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StatusObject {
    reason: String,
    message: String,
    details: Details,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    name: String,
    causes: Vec<Cause>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Cause {
    field: String,
}

impl Refusal {
    /// Reads the answer of a refused request. A proxy on the way answers in its own words.
    pub(super) fn parse(code: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let status: StatusObject = serde_json::from_slice(body).unwrap_or_else(|_| StatusObject {
            message: String::from_utf8_lossy(body).trim().chars().take(200).collect(),
            ..StatusObject::default()
        });
        let message = match status.message.is_empty() {
            true => code.to_string(),
            false => status.message,
        };
        Refusal {
            code: code.as_u16(),
            reason: status.reason,
            message,
            names_object: !status.details.name.is_empty(),
            fields: status.details.causes.into_iter().map(|cause| cause.field).collect(),
            retry_after,
        }
    }

    /// Busy or on its way down or up: the same request may do better later. Nothing was carried out.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.code, 429 | 503)
    }

    /// The server, or a proxy before it, failed or gave up waiting: the request may have been carried out.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self.code, 500 | 502 | 504)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.reason.is_empty() {
            true => write!(f, "{} ({})", self.message, self.code),
            false => write!(f, "{} ({} {})", self.message, self.code, self.reason),
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(found) = cause {
            if let Some(transport) = found.downcast_ref::<TransportError>() {
                return match transport {
                    TransportError::Connect { .. } => Failure::NotSent(transport.to_string()),
                    TransportError::Broken(_) => Failure::NoAnswer(chain(transport)),
                };
            }
            cause = found.source();
        }
        Failure::NoAnswer(chain(&error))
    }
}

impl Failure {
    /// What it means for the object `key`. `writing`: whether carrying it out would have changed something.
    pub(super) fn explain(self, key: &str, server: &str, writing: bool) -> StoreError {
        let key = || key.to_owned();
        let unavailable = |reason: String, outcome_unknown| StoreError::Unavailable {
            datastore: format!("kubernetes {server}"),
            reason,
            outcome_unknown,
        };
        match self {
            Failure::NotSent(reason) => unavailable(reason, false),
            Failure::NoAnswer(reason) => unavailable(reason, writing),
            Failure::Refused(refusal) if refusal.is_busy() => unavailable(refusal.to_string(), false),
            Failure::Refused(refusal) if refusal.is_doubtful() => unavailable(refusal.to_string(), writing),
            Failure::Refused(refusal) => match (refusal.code, refusal.reason.as_str()) {
                (409, "AlreadyExists") => StoreError::AlreadyExists { key: key() },
                (404, _) => StoreError::NotFound { key: key() },
                (401 | 403, _) => StoreError::Unauthorized { reason: refusal.to_string() },
                // Another object of the same name.
                (409, _) if refusal.message.contains("UID in precondition") => StoreError::NotFound { key: key() },
                (409, _) => StoreError::Conflict { key: key() },
                // What a patch answers that names an outdated object.
                (422, _) if only(&refusal.fields, &["metadata.uid", "metadata.resourceVersion"]) => {
                    match refusal.fields.iter().any(|field| field == "metadata.uid") {
                        true => StoreError::NotFound { key: key() },
                        false => StoreError::Conflict { key: key() },
                    }
                }
                _ => StoreError::Other(format!("{}: {refusal}", key())),
            },
            Failure::Unreadable(reason) => StoreError::Other(format!("{}: {reason}", key())),
        }
    }
}

fn only(fields: &[String], allowed: &[&str]) -> bool {
    !fields.is_empty() && fields.iter().all(|field| allowed.contains(&field.as_str()))
}

/// An error with its causes, each said once.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(code: u16, status: &str) -> StoreError {
        let refusal = Refusal::parse(StatusCode::from_u16(code).unwrap(), status.as_bytes(), None);
        Failure::Refused(refusal).explain("IPPool(p)", "https://k:6443", true)
    }

    #[test]
    fn answers_of_the_api_server_become_the_stores_errors() {
        let key = || "IPPool(p)".to_owned();
        for (code, status, expected) in [
            (409, r#"{"reason":"AlreadyExists"}"#, StoreError::AlreadyExists { key: key() }),
            (404, r#"{"reason":"NotFound"}"#, StoreError::NotFound { key: key() }),
            (
                409,
                r#"{"reason":"Conflict","message":"the object has been modified"}"#,
                StoreError::Conflict { key: key() },
            ),
            (
                409,
                r#"{"reason":"Conflict","message":"Precondition failed: UID in precondition: a"}"#,
                StoreError::NotFound { key: key() },
            ),
            (
                422,
                r#"{"reason":"Invalid","details":{"causes":[{"field":"metadata.uid"}]}}"#,
                StoreError::NotFound { key: key() },
            ),
            (
                422,
                r#"{"reason":"Invalid","details":{"causes":[{"field":"metadata.resourceVersion"}]}}"#,
                StoreError::Conflict { key: key() },
            ),
        ] {
            assert_eq!(explained(code, status), expected, "{code} {status}");
        }
        for code in [401, 403] {
            assert!(matches!(explained(code, "{}"), StoreError::Unauthorized { .. }), "{code}");
        }
        for (code, unknown) in [(429, false), (503, false), (500, true), (502, true), (504, true)] {
            let error = explained(code, "{}");
            assert!(
                matches!(error, StoreError::Unavailable { outcome_unknown, .. } if outcome_unknown == unknown),
                "{error}"
            );
        }
        let invalid = explained(422, r#"{"reason":"Invalid","message":"spec.cidr: Required value"}"#);
        assert_eq!(invalid, StoreError::Other("IPPool(p): spec.cidr: Required value (422 Invalid)".into()));
    }

    #[test]
    fn a_proxys_own_words_are_kept_in_bounds() {
        let refusal = Refusal::parse(StatusCode::BAD_GATEWAY, "<html>".repeat(1000).as_bytes(), None);
        assert_eq!(refusal.message.len(), 200);
        assert_eq!(Refusal::parse(StatusCode::BAD_GATEWAY, b"", None).to_string(), "502 Bad Gateway (502)");
    }
}
