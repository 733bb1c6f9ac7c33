//! Classifies failed requests to the API server, and converts them into errors of the store.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use libcalico::kubernetes::Status;
use libcalico::store::StoreError;

use super::transport::TransportError;
use crate::error::{causes, describe_error_chain};

/// Upper limit of the delay in a `Retry-After` header. It exceeds usual deadlines, so a request
/// with this delay fails.
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
    /// A response that the API server would not send, for example a success that is not JSON or
    /// lacks the requested object.
    Unreadable(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ApiStatusError {
    pub(super) status: Status,
    pub(super) retry_after: Option<Duration>,
    /// True if the body is a `Status`, as each error of the API server has it, except for an
    /// unknown path.
    pub(super) is_status: bool,
    /// A description of the credentials, for the error of a 401.
    pub(super) credential: String,
}

impl ApiStatusError {
    /// Parses a response with an error status. A proxy may have sent it, so the body need not be a
    /// `Status`.
    pub(super) fn parse(code: StatusCode, body: &[u8], retry_after: Option<Duration>) -> Self {
        let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: quote(body),
            ..Status::default()
        });
        let is_status = status.kind == "Status";
        status.code = code.as_u16();
        if status.message.is_empty() {
            status.message = code.to_string();
        }
        ApiStatusError {
            status,
            retry_after,
            is_status,
            credential: String::new(),
        }
    }

    /// Returns true if the server is busy, starting or stopping, and did not execute the request. A
    /// proxy's 503 does not count, because the request may have been executed.
    pub(super) fn is_busy(&self) -> bool {
        self.status.code == 429
            || self.status.code == 503 && self.status.reason == "ServiceUnavailable"
    }

    /// Returns true if the server wants fewer requests. The request was not executed.
    pub(super) fn is_throttling(&self) -> bool {
        self.status.code == 429
    }

    /// Returns true if another program than the API server may have sent the response. A proxy may
    /// also refuse a single request, for example a large one, so some codes do not show this.
    fn is_foreign(&self) -> bool {
        !self.is_status && !matches!(self.status.code, 401 | 403 | 413 | 422 | 429 | 500..)
    }

    /// Returns true if the server does not serve the path, or another program than the API server
    /// answered.
    pub(super) fn is_unknown_path(&self) -> bool {
        self.status.code == 404 && !self.is_status
    }

    /// Returns true if the server or a proxy failed or timed out. The request may have been
    /// executed.
    pub(super) fn may_have_executed(&self) -> bool {
        self.status.code >= 500 && !self.is_busy()
    }
}

/// Returns the beginning of a response on one line.
fn quote(body: &[u8]) -> String {
    // A character has at most four bytes.
    let begin = String::from_utf8_lossy(&body[..body.len().min(MAX_QUOTE_LENGTH * 4)]);
    let words = begin
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    words
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(MAX_QUOTE_LENGTH)
        .collect()
}

/// Describes a response that cannot be read: its status, its media type and its beginning.
pub(super) fn describe_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    let media_type = headers
        .get(CONTENT_TYPE)
        .map_or("no media type".into(), |value| quote(value.as_bytes()));
    let begin = quote(body);
    if begin.is_empty() {
        format!("{code}, {media_type}")
    } else {
        format!("{code}, {media_type}, `{begin}`")
    }
}

pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let header = headers.get(RETRY_AFTER)?;
    // A proxy may send a date, which counts as the API server's minimum of one second.
    let seconds = header
        .to_str()
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

impl std::fmt::Display for ApiStatusError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.status.fmt(f)
    }
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match causes(&error).find_map(|cause| cause.downcast_ref::<TransportError>()) {
            Some(connect @ TransportError::Connect { .. }) => {
                RequestError::NotSent(connect.to_string())
            }
            Some(lost) => RequestError::NoResponse(describe_error_chain(lost)),
            None => RequestError::NoResponse(describe_error_chain(&error)),
        }
    }
}

impl RequestError {
    /// Returns true if a read that the server's cache may serve must be repeated at the server's
    /// own storage. Other errors are not caused by the cache.
    pub(super) fn is_cache_failure(&self) -> bool {
        match self {
            RequestError::Refused(refusal) => matches!(refusal.status.code, 400 | 410 | 500..),
            RequestError::NoResponse(_) | RequestError::Unreadable(_) => true,
            _ => false,
        }
    }

    /// Converts the failure of a request about the object `key`. `is_write` is true if executing
    /// the request would have changed the object.
    pub(super) fn into_store_error(self, key: &str, server: &str, is_write: bool) -> StoreError {
        let unavailable = |reason, outcome_unknown| StoreError::Unavailable {
            // Without a configured server there is no URL.
            datastore: format!("kubernetes {server}").trim_end().to_owned(),
            reason,
            outcome_unknown,
        };
        let foreign = |reason: String, outcome_unknown| StoreError::ForeignAnswer {
            datastore: format!("kubernetes {server}"),
            reason: format!("{key}: {reason}"),
            outcome_unknown,
        };
        match self {
            RequestError::NoAccess(reason) => unavailable(reason, false),
            RequestError::NotSent(reason) => unavailable(with_advice(reason, server), false),
            RequestError::NoResponse(reason) => unavailable(with_advice(reason, server), is_write),
            RequestError::Refused(refusal) if refusal.is_busy() => {
                unavailable(refusal.to_string(), false)
            }
            RequestError::Refused(refusal) if refusal.may_have_executed() => {
                unavailable(refusal.to_string(), is_write)
            }
            RequestError::Refused(refusal) if refusal.is_foreign() => {
                foreign(refusal.to_string(), false)
            }
            RequestError::Refused(refusal) => refusal.status.store_error(key, &refusal.credential),
            RequestError::NotInstalled(reason) => StoreError::NotInstalled {
                reason: format!("{key}: {reason}"),
            },
            // The other program may have forwarded the request.
            RequestError::Unreadable(reason) => foreign(reason, is_write),
        }
    }
}

/// Returns the reason of a failed connection with the setting that may be wrong, which the texts of
/// the libraries do not name.
fn with_advice(reason: String, server: &str) -> String {
    const WHERE: &str = "server of the kubeconfig, or in k8s_api_root";
    let is_tls = server.starts_with("https://");
    let contains = |texts: &[&str]| texts.iter().any(|text| reason.contains(text));
    if contains(&["CaUsedAsEndEntity"]) {
        return format!(
            "{reason}: the server presents the certificate of a CA as its own; give it a \
             certificate that the CA has signed, or name exactly this certificate in \
             certificate-authority of the kubeconfig"
        );
    }
    if is_tls && contains(&["InvalidContentType", "tls handshake eof"]) {
        return format!("{reason}; if the server does not use TLS, write http:// in {WHERE}");
    }
    if !is_tls
        && server.starts_with("http://")
        && contains(&["reset by peer", "connection closed before message"])
    {
        return format!("{reason}; if the server requires TLS, write https:// in {WHERE}");
    }
    reason
}

/// Returns the way out after an answer of another program, which `answer` describes. `is_of_node`
/// is true for the programs that use no settings of proxies.
pub(super) fn advice_about_foreign_answer(answer: &str, is_of_node: bool) -> &'static str {
    if answer.contains("HTTP request to an HTTPS server") {
        return "write https:// in server of the kubeconfig, or in k8s_api_root";
    }
    if is_of_node {
        return "check that this is the URL of the API server, in server of the kubeconfig or in \
                k8s_api_root, and exclude it from transparent proxies (programs of a node ignore \
                HTTPS_PROXY and NO_PROXY)";
    }
    "check that this is the URL of the API server; if a proxy answers, list the server's host in \
     NO_PROXY, or correct HTTPS_PROXY or proxy-url of the kubeconfig"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_connection_names_the_setting_that_may_be_wrong() {
        let text = |error: RequestError, server: &str| {
            error
                .into_store_error("IPPool(p)", server, false)
                .to_string()
        };
        let corrupt =
            "cannot connect to k:6443: received corrupt message of type InvalidContentType";
        let not_sent = |reason: &str| RequestError::NotSent(reason.into());
        assert!(
            text(not_sent(corrupt), "https://k:6443")
                .contains("does not use TLS, write http:// in server of the")
        );
        let reset = RequestError::NoResponse(
            "the connection broke: Connection reset by peer (os error 104)".into(),
        );
        assert!(
            text(reset, "http://k:6443")
                .contains("requires TLS, write https:// in server of the kubeconfig")
        );
        let of_ca = "cannot connect to k:6443: invalid peer certificate: \
                     Other(OtherError(CaUsedAsEndEntity))";
        assert!(
            text(not_sent(of_ca), "https://k:6443")
                .contains("certificate-authority of the kubeconfig")
        );
        assert!(text(not_sent("nothing listens"), "https://k:6443").ends_with(": nothing listens"));
    }

    #[test]
    fn advice_after_an_answer_of_another_program_names_settings_that_have_an_effect() {
        let refused = "Client sent an HTTP request to an HTTPS server. (400)";
        assert!(advice_about_foreign_answer(refused, true).contains("https://"));
        assert!(advice_about_foreign_answer("<html>", true).contains("ignore HTTPS_PROXY"));
        assert!(
            advice_about_foreign_answer("<html>", false)
                .contains("correct HTTPS_PROXY or proxy-url")
        );
    }

    #[test]
    fn error_without_a_configured_server_has_no_gap() {
        let error = RequestError::NoAccess("no server is configured".into()).into_store_error(
            "IPPool(p)",
            "",
            false,
        );
        assert_eq!(
            error.to_string(),
            "datastore kubernetes is unavailable: no server is configured"
        );
    }

    fn store_error(code: u16, status: &str) -> StoreError {
        let wait = Some(Duration::from_secs(1));
        let refusal =
            ApiStatusError::parse(StatusCode::from_u16(code).unwrap(), status.as_bytes(), wait);
        RequestError::Refused(Box::new(refusal)).into_store_error(
            "IPPool(p)",
            "https://k:6443",
            true,
        )
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
                matches!(
                    error,
                    StoreError::Unavailable { outcome_unknown, .. } if outcome_unknown == unknown,
                ),
                "{error}"
            );
        }
        let invalid = store_error(
            422,
            r#"{"reason":"Invalid","message":"spec.cidr: Required value"}"#,
        );
        assert_eq!(
            invalid,
            StoreError::Other("IPPool(p): spec.cidr: Required value (422 Invalid)".into())
        );
    }

    #[test]
    fn truncated_cached_read_is_repeated_without_the_cache() {
        assert!(RequestError::Unreadable("EOF while parsing".into()).is_cache_failure());
        assert!(!RequestError::NotSent("nothing listens".into()).is_cache_failure());
    }

    #[test]
    fn proxy_error_text_is_truncated() {
        let refusal = ApiStatusError::parse(
            StatusCode::BAD_GATEWAY,
            "<html>".repeat(1000).as_bytes(),
            None,
        );
        assert_eq!(refusal.status.message.len(), MAX_QUOTE_LENGTH);
        assert_eq!(
            ApiStatusError::parse(StatusCode::BAD_GATEWAY, b"", None).to_string(),
            "502 Bad Gateway (502)"
        );
    }
}
