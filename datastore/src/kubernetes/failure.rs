//! Why a request to the API server failed, and what that means to the caller (DS-118..DS-120).

use std::time::Duration;

use hyper::StatusCode;
use libcalico::kubernetes::Status;
use libcalico::store::StoreError;

use super::transport::TransportError;
use crate::error_chain::{causes, chain};

/// How much of a text that is no `Status` an error quotes.
const LONGEST_QUOTE: usize = 200;

/// A request that did not do what it was sent for.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The API server refused.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The settings lead to no API server. Nobody was asked, and asking again would not help.
    #[error("{0}")]
    NoAccess(String),
    /// No connection: nothing was sent.
    #[error("{0}")]
    NotSent(String),
    /// Sent, and no answer: it may have been carried out.
    #[error("{0}")]
    NoAnswer(String),
    /// The API server has no definitions of Calico's objects.
    #[error("{0}")]
    NotInstalled(String),
    /// An answer that does not help: no JSON, or without what was asked for.
    #[error("{0}")]
    Unreadable(String),
}

/// An answer that is no success.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    /// What the `Retry-After` header asks for.
    pub(super) retry_after: Option<Duration>,
    /// Whose credentials were refused, where they were; for the error.
    pub(super) credential: String,
}

impl Refusal {
    /// Reads the answer of a refused request. A proxy on the way answers in its own words.
    pub(super) fn parse(code: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(body).trim().chars().take(LONGEST_QUOTE).collect(),
            ..Status::default()
        });
        status.code = code.as_u16();
        if status.message.is_empty() {
            status.message = code.to_string();
        }
        Refusal { status, retry_after, credential: String::new() }
    }

    /// Busy or on its way down or up: the same request may do better later. Nothing was carried out. A proxy that says
    /// 503 in its own words, with or without `Retry-After`, may mean a server that broke off.
    pub(super) fn is_busy(&self) -> bool {
        self.status.code == 429 || self.status.code == 503 && self.status.reason == "ServiceUnavailable"
    }

    /// The server wants fewer requests, and has carried out nothing of this one.
    pub(super) fn is_throttling(&self) -> bool {
        self.status.code == 429
    }

    /// The server, or a proxy before it, failed or gave up waiting: the request may have been carried out.
    pub(super) fn is_doubtful(&self) -> bool {
        self.status.code >= 500 && !self.is_busy()
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Status { code, reason, message, .. } = &self.status;
        match reason.is_empty() {
            true => write!(f, "{message} ({code})"),
            false => write!(f, "{message} ({code} {reason})"),
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match causes(&error).find_map(|cause| cause.downcast_ref::<TransportError>()) {
            Some(connect @ TransportError::Connect { .. }) => Failure::NotSent(connect.to_string()),
            Some(broken) => Failure::NoAnswer(chain(broken)),
            None => Failure::NoAnswer(chain(&error)),
        }
    }
}

impl Failure {
    /// Returns true if a read that the server's cache may answer is to be sent to the server's own store: the cache has
    /// not that revision (400, 410), fails (5xx), or broke off, in the middle of an answer too. Other refusals are
    /// answers.
    pub(super) fn is_of_cache(&self) -> bool {
        match self {
            Failure::Refused(refusal) => matches!(refusal.status.code, 400 | 410 | 500..),
            Failure::NoAnswer(_) | Failure::Unreadable(_) => true,
            _ => false,
        }
    }

    /// What it means for the object `key`. `writing`: whether carrying it out would have changed something.
    pub(super) fn explain(self, key: &str, server: &str, writing: bool) -> StoreError {
        let unavailable = |reason: String, outcome_unknown| StoreError::Unavailable {
            datastore: format!("kubernetes {server}"),
            reason,
            outcome_unknown,
        };
        match self {
            Failure::NoAccess(reason) | Failure::NotSent(reason) => unavailable(reason, false),
            Failure::NoAnswer(reason) => unavailable(reason, writing),
            Failure::Refused(refusal) if refusal.is_busy() => unavailable(refusal.to_string(), false),
            Failure::Refused(refusal) if refusal.is_doubtful() => unavailable(refusal.to_string(), writing),
            Failure::Refused(refusal) => refusal
                .status
                .refusal(key, &refusal.credential)
                .unwrap_or_else(|| StoreError::Other(format!("{key}: {refusal}"))),
            Failure::NotInstalled(reason) => StoreError::NotInstalled { reason: format!("{key}: {reason}") },
            // A success, but of what?
            Failure::Unreadable(reason) if writing => unavailable(reason, true),
            Failure::Unreadable(reason) => StoreError::Other(format!("{key}: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(code: u16, status: &str) -> StoreError {
        let wait = Some(Duration::from_secs(1));
        let refusal = Refusal::parse(StatusCode::from_u16(code).unwrap(), status.as_bytes(), wait);
        Failure::Refused(Box::new(refusal)).explain("IPPool(p)", "https://k:6443", true)
    }

    #[test]
    fn what_may_have_been_carried_out_is_told() {
        let busy = r#"{"kind": "Status", "reason": "ServiceUnavailable"}"#;
        for (code, status, unknown) in [
            (429, "{}", false),
            (503, busy, false),
            (503, "upstream connect error", true),
            (500, "{}", true),
            (502, "{}", true),
            (504, "{}", true),
            (520, "{}", true),
        ] {
            let error = explained(code, status);
            assert!(
                matches!(error, StoreError::Unavailable { outcome_unknown, .. } if outcome_unknown == unknown),
                "{error}"
            );
        }
        let invalid = explained(422, r#"{"reason":"Invalid","message":"spec.cidr: Required value"}"#);
        assert_eq!(invalid, StoreError::Other("IPPool(p): spec.cidr: Required value (422 Invalid)".into()));
    }

    #[test]
    fn half_an_answer_of_the_cache_is_asked_of_the_store() {
        assert!(Failure::Unreadable("EOF while parsing".into()).is_of_cache());
        assert!(!Failure::NotSent("nothing listens".into()).is_of_cache());
    }

    #[test]
    fn a_proxys_own_words_are_kept_in_bounds() {
        let refusal = Refusal::parse(StatusCode::BAD_GATEWAY, "<html>".repeat(1000).as_bytes(), None);
        assert_eq!(refusal.status.message.len(), LONGEST_QUOTE);
        assert_eq!(Refusal::parse(StatusCode::BAD_GATEWAY, b"", None).to_string(), "502 Bad Gateway (502)");
    }
}
