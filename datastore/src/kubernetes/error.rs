//! Classifies failed requests to the API server, and converts them into errors of the store.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use libcalico::kubernetes::Status;
use libcalico::store::StoreError;

use super::transport::TransportError;
use crate::error::{causes, describe_error_chain};

/// Upper limit of the delay in a `Retry-After` header. It exceeds usual deadlines, so a request with this delay fails.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Maximum length, in characters, of the quotation of a response that is not a `Status`.
const MAX_QUOTE_LENGTH: usize = 200;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) enum RequestError {
    /// A response with an error status, from the API server or from a proxy.
    Refused(Box<ApiStatusError>),
    /// No request was sent.
    NoAccess(String),
    /// The request was not sent, for example because there was no connection.
    NotSent(String),
    /// The request may have been sent and executed, but no complete response arrived.
    NoResponse(String),
    /// The API server has no definitions of Calico's objects.
    NotInstalled(String),
    /// An invalid response, for example a success that is not JSON or lacks the requested object.
    Unreadable(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ApiStatusError {
    pub(super) status: Status,
    pub(super) retry_after: Option<Duration>,
    /// A description of the credentials, for the error of a 401.
    pub(super) credential: String,
}

impl ApiStatusError {
    /// Parses a response with an error status. A proxy may have sent it, so the body need not be a `Status`.
    pub(super) fn parse(code: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(body).trim().chars().take(MAX_QUOTE_LENGTH).collect(),
            ..Status::default()
        });
        status.code = code.as_u16();
        if status.message.is_empty() {
            status.message = code.to_string();
        }
        ApiStatusError { status, retry_after, credential: String::new() }
    }

    /// Returns true if the server is busy, starting or stopping, and did not execute the request. A proxy's 503 does
    /// not count, because the request may have been executed.
    pub(super) fn is_busy(&self) -> bool {
        self.status.code == 429 || self.status.code == 503 && self.status.reason == "ServiceUnavailable"
    }

    /// Returns true if the server wants fewer requests. The request was not executed.
    pub(super) fn is_throttling(&self) -> bool {
        self.status.code == 429
    }

    /// Returns true if the server or a proxy failed or timed out. The request may have been executed.
    pub(super) fn may_have_executed(&self) -> bool {
        self.status.code >= 500 && !self.is_busy()
    }
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let header = headers.get(RETRY_AFTER)?;
    // A proxy may send a date, which counts as the API server's minimum of one second.
    let seconds = header.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

impl std::fmt::Display for ApiStatusError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Status { code, reason, message, .. } = &self.status;
        match reason.as_str() {
            "" => write!(f, "{message} ({code})"),
            _ => write!(f, "{message} ({code} {reason})"),
        }
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match causes(&error).find_map(|cause| cause.downcast_ref::<TransportError>()) {
            Some(connect @ TransportError::Connect { .. }) => RequestError::NotSent(connect.to_string()),
            Some(lost) => RequestError::NoResponse(describe_error_chain(lost)),
            None => RequestError::NoResponse(describe_error_chain(&error)),
        }
    }
}

impl RequestError {
    /// Returns true if a read that the server's cache may serve must be repeated at the server's own storage. Other
    /// errors are not caused by the cache.
    pub(super) fn is_cache_failure(&self) -> bool {
        match self {
            RequestError::Refused(refusal) => matches!(refusal.status.code, 400 | 410 | 500..),
            RequestError::NoResponse(_) | RequestError::Unreadable(_) => true,
            _ => false,
        }
    }

    /// Converts the failure of a request about the object `key`. `is_write` is true if executing the request would have
    /// changed the object.
    pub(super) fn into_store_error(self, key: &str, server: &str, is_write: bool) -> StoreError {
        let unavailable = |reason, outcome_unknown| StoreError::Unavailable {
            datastore: format!("kubernetes {server}"),
            reason,
            outcome_unknown,
        };
        match self {
            RequestError::NoAccess(reason) | RequestError::NotSent(reason) => unavailable(reason, false),
            RequestError::NoResponse(reason) => unavailable(reason, is_write),
            RequestError::Refused(refusal) if refusal.is_busy() => unavailable(refusal.to_string(), false),
            RequestError::Refused(refusal) if refusal.may_have_executed() => unavailable(refusal.to_string(), is_write),
            RequestError::Refused(refusal) => refusal
                .status
                .refusal(key, &refusal.credential)
                .unwrap_or_else(|| StoreError::Other(format!("{key}: {refusal}"))),
            RequestError::NotInstalled(reason) => StoreError::NotInstalled { reason: format!("{key}: {reason}") },
            // The response is a success, but possibly not the API server's.
            RequestError::Unreadable(reason) if is_write => unavailable(reason, true),
            RequestError::Unreadable(reason) => StoreError::Other(format!("{key}: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_error(code: u16, status: &str) -> StoreError {
        let wait = Some(Duration::from_secs(1));
        let refusal = ApiStatusError::parse(StatusCode::from_u16(code).unwrap(), status.as_bytes(), wait);
        RequestError::Refused(Box::new(refusal)).into_store_error("IPPool(p)", "https://k:6443", true)
    }

    #[test]
    fn response_codes_decide_if_the_outcome_is_unknown() {
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
            let error = store_error(code, status);
            assert!(
                matches!(error, StoreError::Unavailable { outcome_unknown, .. } if outcome_unknown == unknown),
                "{error}"
            );
        }
        let invalid = store_error(422, r#"{"reason":"Invalid","message":"spec.cidr: Required value"}"#);
        assert_eq!(invalid, StoreError::Other("IPPool(p): spec.cidr: Required value (422 Invalid)".into()));
    }

    #[test]
    fn truncated_cached_read_is_repeated_without_the_cache() {
        assert!(RequestError::Unreadable("EOF while parsing".into()).is_cache_failure());
        assert!(!RequestError::NotSent("nothing listens".into()).is_cache_failure());
    }

    #[test]
    fn proxy_error_text_is_truncated() {
        let refusal = ApiStatusError::parse(StatusCode::BAD_GATEWAY, "<html>".repeat(1000).as_bytes(), None);
        assert_eq!(refusal.status.message.len(), MAX_QUOTE_LENGTH);
        assert_eq!(ApiStatusError::parse(StatusCode::BAD_GATEWAY, b"", None).to_string(), "502 Bad Gateway (502)");
    }
}
