//! The responses of each port.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode, Uri};

use super::profile;
use crate::status::Status;
use crate::telemetry::Metrics;

/// The set of pages that a port serves.
#[derive(Clone)]
pub(super) enum Pages {
    Health(Status),
    Metrics(Metrics),
    Profiles,
}

/// A response.
pub(super) type Page = Response<Full<Bytes>>;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const EXPOSITION: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

impl Pages {
    pub(super) async fn answer(&self, method: &Method, uri: &Uri) -> Page {
        if let (Pages::Profiles, &Method::POST, "/debug/pprof/symbol") = (self, method, uri.path()) {
            return text(StatusCode::OK, profile::SYMBOLS);
        }
        if method != Method::GET && method != Method::HEAD {
            let mut page = text(StatusCode::METHOD_NOT_ALLOWED, "only GET");
            page.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return page;
        }
        let query = uri.query().unwrap_or_default();
        match (self, uri.path()) {
            // Liveness does not depend on readiness, so an unreachable server does not cause a restart.
            (Pages::Health(status), "/liveness" | "/healthz") if status.is_live() => text(StatusCode::OK, "live\n"),
            (Pages::Health(status), "/readiness" | "/readyz" | "/liveness" | "/healthz") => readiness(status),
            (Pages::Metrics(metrics), "/metrics") => exposition(metrics),
            (Pages::Profiles, "/debug/pprof/" | "/debug/pprof") => text(StatusCode::OK, profile::INDEX),
            (Pages::Profiles, "/debug/pprof/profile") => profile::cpu(query).await,
            (Pages::Profiles, "/debug/pprof/heap") => profile::memory(query).await,
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

/// Returns the table of components, one per line.
fn readiness(status: &Status) -> Page {
    let readiness = status.readiness();
    let lines: String = readiness
        .iter()
        .map(|(name, condition)| match condition.ready {
            true => format!("{name:<16} ready\n"),
            false => format!("{name:<16} not ready  {}\n", condition.reason),
        })
        .collect();
    let code = if status.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    text(code, lines)
}

fn exposition(metrics: &Metrics) -> Page {
    match metrics.text() {
        Ok(body) => page(StatusCode::OK, EXPOSITION, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Builds a response with plain text.
pub(super) fn text(code: StatusCode, body: impl Into<Bytes>) -> Page {
    page(code, TEXT, body)
}

/// Builds a response.
pub(super) fn page(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Page {
    let mut page = Response::new(Full::new(body.into()));
    *page.status_mut() = code;
    page.headers_mut().insert(CONTENT_TYPE, content_type);
    page
}
