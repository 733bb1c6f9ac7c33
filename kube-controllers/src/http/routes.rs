use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, StatusCode, Uri};
use node_process::http_server::{HttpResponse, page, reject_method};

use super::MAX_CONNECTION_TIME;
use super::profile::{self, ProfileError};
use crate::status::{Condition, Status};
use crate::telemetry::Metrics;

#[derive(Clone)]
pub(super) enum Routes {
    Health(Status),
    Metrics(Metrics),
    Profiles,
}

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const EXPOSITION: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Default duration of a profile in seconds, as in Go.
const DEFAULT_SECONDS: u64 = 30;
/// Longest duration of a profile that a request may name, in seconds. The rest of the connection's
/// time is for sending the request and the profile.
const MAX_SECONDS: u64 = MAX_CONNECTION_TIME.as_secs() - 30;

impl Routes {
    pub(super) async fn respond(&self, method: &Method, uri: &Uri) -> HttpResponse {
        if let (Routes::Profiles, &Method::POST, "/debug/pprof/symbol") = (self, method, uri.path())
        {
            return text(StatusCode::OK, profile::NO_SYMBOLS);
        }
        if let Some(rejection) = reject_method(method) {
            return rejection;
        }
        let query = uri.query().unwrap_or_default();
        match (self, uri.path()) {
            // Liveness does not depend on readiness, so an unreachable server does not cause a
            // restart.
            (Routes::Health(status), "/liveness" | "/healthz") if status.is_live() => {
                text(StatusCode::OK, "live\n")
            }
            (Routes::Health(status), "/readiness" | "/readyz" | "/liveness" | "/healthz") => {
                readiness(status)
            }
            (Routes::Metrics(metrics), "/metrics") => exposition(metrics),
            (Routes::Profiles, "/debug/pprof/" | "/debug/pprof") => {
                text(StatusCode::OK, profile::INDEX)
            }
            (Routes::Profiles, "/debug/pprof/profile") => cpu_profile(query).await,
            (Routes::Profiles, "/debug/pprof/heap") => heap_profile(query),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

/// Returns the table of components, one per line. The HTTP status is 200 if the process is ready,
/// and 503 otherwise.
fn readiness(status: &Status) -> HttpResponse {
    let lines = status
        .readiness()
        .into_iter()
        .map(|(name, Condition { ready, reason })| {
            let state = if ready { "ready" } else { "not ready" };
            format!("{}\n", format!("{name:<16} {state}  {reason}").trim_end())
        });
    let code = if status.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    text(code, lines.collect::<String>())
}

fn exposition(metrics: &Metrics) -> HttpResponse {
    match metrics.text() {
        Ok(body) => page(StatusCode::OK, EXPOSITION, body),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

async fn cpu_profile(query: &str) -> HttpResponse {
    let seconds = match parameter(query, "seconds")
        .map(str::parse)
        .unwrap_or(Ok(DEFAULT_SECONDS))
    {
        Ok(seconds @ 1..=MAX_SECONDS) => seconds,
        _ => {
            return text(
                StatusCode::BAD_REQUEST,
                format!("seconds is not a number from 1 to {MAX_SECONDS}\n"),
            );
        }
    };
    profile_page(profile::cpu(Duration::from_secs(seconds)).await)
}

fn heap_profile(query: &str) -> HttpResponse {
    let is_text = parameter(query, "debug").is_some_and(|debug| debug != "0");
    match profile::heap() {
        Ok(profile) if is_text => text(StatusCode::OK, profile.text()),
        profile => profile_page(profile.map(|profile| profile.protobuf())),
    }
}

fn profile_page(profile: Result<Vec<u8>, ProfileError>) -> HttpResponse {
    match profile {
        Ok(profile) => page(StatusCode::OK, BINARY, profile),
        Err(error @ ProfileError::Busy) => {
            text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> HttpResponse {
    page(code, TEXT, body)
}
