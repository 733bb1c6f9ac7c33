//! The outcome of a request on a connection: the error without a response, and the mark of a sent request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Request;
use kube::client::Body;

/// The reason why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(in crate::kubernetes) enum TransportError {
    /// There was no connection, so nothing was sent.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// Host and port.
        server: String,
        /// The cause.
        reason: String,
    },
    /// The connection exists, but no complete response arrived.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The connection broke while the request was under way.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
}

/// A mark that a request was sent. The caller uses it to distinguish a request that was never sent from one that the
/// server may have executed.
#[derive(Debug, Clone, Default)]
pub(in crate::kubernetes) struct RequestSent {
    is_set: Arc<AtomicBool>,
}

impl RequestSent {
    pub(in crate::kubernetes) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    pub(super) fn record(request: &Request<Body>) {
        if let Some(sent) = request.extensions().get::<RequestSent>() {
            sent.is_set.store(true, Ordering::Relaxed);
        }
    }
}
