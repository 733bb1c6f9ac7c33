//! The response to the client: the server's, half of it, or one of the proxy.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Method, Response, StatusCode};
use serde_json::json;
use tokio::sync::Notify;

/// Time for half a response to reach the client before the connection breaks.
const HALF_ARRIVES: Duration = Duration::from_millis(20);

/// A failure response of an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// Seconds of a `Retry-After` header; `None` for a response without one.
    pub retry_after: Option<u32>,
}

pub(super) enum Relayed {
    /// The server's body.
    Whole(Incoming),
    /// Half of the first part of the server's body; then the connection breaks.
    Half {
        body: Incoming,
        cut: Arc<Notify>,
        sent: bool,
    },
    /// A body of the proxy.
    Own(Option<Bytes>),
}

impl Refusal {
    /// Returns a refusal without `Retry-After`.
    pub fn of(code: u16) -> Refusal {
        Refusal {
            code,
            retry_after: None,
        }
    }

    pub(super) fn response(self, method: &Method) -> Response<Relayed> {
        let reason = match self.code {
            401 => "Unauthorized",
            403 => "Forbidden",
            409 if method == Method::POST => "AlreadyExists",
            409 => "Conflict",
            410 => "Expired",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            _ => "InternalError",
        };
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": self.code,
            "reason": reason,
            "message": "the proxy says so",
        });
        let mut response = Response::new(Relayed::Own(Some(status.to_string().into())));
        *response.status_mut() =
            StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(
            CONTENT_TYPE,
            "application/json".parse().expect("a constant header"),
        );
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Relayed::Whole(body) => Pin::new(body).poll_frame(context),
            Relayed::Own(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Relayed::Half { sent: true, .. } => Poll::Pending,
            Relayed::Half { body, cut, sent } => {
                let frame = std::task::ready!(Pin::new(body).poll_frame(context));
                *sent = true;
                let cut = cut.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(HALF_ARRIVES).await;
                    cut.notify_one();
                });
                match frame.map(|frame| frame.map(Frame::into_data)) {
                    Some(Ok(Ok(mut data))) => {
                        Poll::Ready(Some(Ok(Frame::data(data.split_to(data.len() / 2)))))
                    }
                    _ => Poll::Pending,
                }
            }
        }
    }
}
