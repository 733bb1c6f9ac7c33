//! [`Call`]: a request of the migration, and [`CallFailure`]: the reason why it failed.

use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE};
use libcalico::kubernetes::json_bytes;
use serde_json::Value;

use super::{JSON, Problem};

/// A request to send.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) accept: &'static str,
    pub(super) body: Option<&'a Value>,
    /// Labels of the counter of retries.
    pub(super) kind: &'a str,
    pub(super) operation: &'static str,
}

/// A failed request, before its meaning for the caller is known.
pub(super) enum CallFailure {
    MayNotWrite,
    Api {
        code: u16,
        reason: String,
        text: String,
    },
    Other(String),
}

impl Call<'_> {
    pub(super) fn build(&self) -> hyper::http::Result<hyper::Request<Vec<u8>>> {
        let request = hyper::Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(ACCEPT, self.accept);
        match self.body {
            Some(body) => request.header(CONTENT_TYPE, JSON).body(json_bytes(body)),
            None => request.body(Vec::new()),
        }
    }
}

impl CallFailure {
    pub(super) fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => CallFailure::Api {
                code: status.code,
                reason: status.reason,
                text: status.message,
            },
            error => CallFailure::Other(error.to_string()),
        }
    }

    pub(super) fn is_transient(&self) -> bool {
        match self {
            CallFailure::MayNotWrite => false,
            CallFailure::Other(_) => true,
            // A client with a new token repeats a request that was refused with 401.
            CallFailure::Api { code, .. } => {
                !(400..500).contains(code) || matches!(code, 401 | 408 | 429)
            }
        }
    }

    /// Returns true if the API server reports the object or its kind as missing. A 404 of a proxy
    /// has another format.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, CallFailure::Api { code: 404, reason, .. } if reason == "NotFound")
    }

    pub(super) fn problem(self) -> Problem {
        if self.is_transient() {
            return Problem::Transient(self.text());
        }
        match self {
            CallFailure::MayNotWrite => Problem::MayNotWrite,
            CallFailure::Api { code: 409, .. } => Problem::Lost,
            CallFailure::Api { code, text, .. } => Problem::Refused { code, text },
            CallFailure::Other(text) => Problem::Transient(text),
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            CallFailure::MayNotWrite => String::new(),
            CallFailure::Api { text, .. } | CallFailure::Other(text) => text,
        }
    }
}
