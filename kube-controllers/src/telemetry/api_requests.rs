//! [`ApiRequestMetrics`]: counts the requests to API servers, with client-go's names.
//!
//! client-go's label `host` is left out, because a process has one API server, and its label
//! `method` is `verb` here. Each value of `verb` and `kind` is of a closed list, so that no name of
//! an object becomes a label.

use std::time::Duration;

use datastore::RequestObserver;
use libcalico::kubernetes::ApiVerb;
use node_process::metrics;
use prometheus::{HistogramVec, IntCounterVec};

/// Bucket limits in seconds, from a read of the server's cache to the time limit of a slow write.
const LATENCY: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];
/// The code of a request without a response, as in client-go.
const NO_RESPONSE: &str = "<error>";

metrics! {
    /// Metrics of the requests to API servers.
    pub(super) struct ApiRequestMetrics {
        /// Requests to the API server, by the code of the response.
        requests: IntCounterVec = "rest_client_requests_total"["verb", "kind", "code"],
        /// Time until the head of the API server's response, in seconds.
        duration: HistogramVec =
            "rest_client_request_duration_seconds"["verb", "kind"] in LATENCY,
    }
}

impl RequestObserver for ApiRequestMetrics {
    fn finished(&self, verb: ApiVerb, kind: &'static str, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| NO_RESPONSE.to_owned(), |code| code.to_string());
        self.requests
            .with_label_values(&[verb.as_str(), kind, code.as_str()])
            .inc();
        self.duration
            .with_label_values(&[verb.as_str(), kind])
            .observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn request_is_counted_by_verb_kind_and_code() {
        let metrics = Metrics::new();
        let observer = metrics.request_observer();
        for code in [Some(200), Some(200), Some(429), None] {
            observer.finished(ApiVerb::List, "pods", code, Duration::from_millis(2));
        }
        observer.finished(
            ApiVerb::Patch,
            "services/status",
            Some(409),
            Duration::from_secs(20),
        );
        let text = metrics.text().expect("encodes");
        for expected in [
            "rest_client_requests_total{code=\"200\",kind=\"pods\",verb=\"list\"} 2",
            "rest_client_requests_total{code=\"429\",kind=\"pods\",verb=\"list\"} 1",
            "rest_client_requests_total{code=\"<error>\",kind=\"pods\",verb=\"list\"} 1",
            "rest_client_requests_total{code=\"409\",kind=\"services/status\",verb=\"patch\"} 1",
            "rest_client_request_duration_seconds_count{kind=\"pods\",verb=\"list\"} 4",
            "rest_client_request_duration_seconds_bucket{kind=\"services/status\",verb=\"patch\",le=\"10\"} \
             0",
        ] {
            assert!(
                text.lines().any(|line| line == expected),
                "{expected}\n{text}"
            );
        }
    }
}
