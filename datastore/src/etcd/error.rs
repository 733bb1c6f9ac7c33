//! Classifies failures of etcd requests, and determines if a write may have taken effect.

use std::error::Error as _;
use std::time::Duration;

use libcalico::store::StoreError;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, ConnectError, Status};

use crate::error::{causes, describe_error_chain};

#[derive(Debug)]
pub(super) enum EtcdFailure {
    /// No connection was made, so no request was sent.
    Connect(tonic::transport::Error),
    /// No connection was made, or no response arrived, within this time.
    Timeout(Duration),
    /// The server rejected the request, or the connection failed.
    Status(Status),
    /// Another error of the client library.
    Client(etcd_client::Error),
}

impl From<etcd_client::Error> for EtcdFailure {
    fn from(error: etcd_client::Error) -> Self {
        match error {
            etcd_client::Error::GRpcStatus(status) => EtcdFailure::Status(status),
            other => EtcdFailure::Client(other),
        }
    }
}

/// Waits for `request` until `deadline`. `limit` is the request's time limit, for the error.
pub(super) async fn await_response<T>(
    deadline: Instant,
    limit: Duration,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdFailure> {
    Ok(timeout_at(deadline, request)
        .await
        .map_err(|_| EtcdFailure::Timeout(limit))??)
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EtcdPeer<'a> {
    pub(super) tls: Option<&'a str>,
    /// The configured user; `None` if no credentials are configured.
    pub(super) user: Option<&'a str>,
    pub(super) has_answered: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum FailureKind {
    Unreachable(String),
    Refused(String),
    Forbidden(String),
    Foreign(String),
    Alarm(String),
    Other(String),
}

use FailureKind::{Alarm, Forbidden, Foreign, Other, Refused, Unreachable};

impl EtcdFailure {
    pub(super) fn breaks_connection(&self) -> bool {
        match self {
            EtcdFailure::Connect(_) | EtcdFailure::Timeout(_) => true,
            EtcdFailure::Status(status) => {
                status.source().is_some()
                    || status.code() == Code::Unavailable
                    || is_no_grpc(status)
            }
            EtcdFailure::Client(_) => false,
        }
    }

    /// Returns the status if etcd refuses the token, which a new login replaces: the token has
    /// expired, roles have changed since (JWT), or authentication was enabled after the login. etcd
    /// then has not applied the request.
    pub(super) fn token_refusal(&self) -> Option<&Status> {
        match self {
            EtcdFailure::Status(status) if is_token_refusal(status.message()) => Some(status),
            _ => None,
        }
    }

    /// Returns true if the server cannot have received the request.
    pub(super) fn was_not_sent(&self) -> bool {
        match self {
            EtcdFailure::Connect(_) => true,
            EtcdFailure::Timeout(_) | EtcdFailure::Client(_) => false,
            EtcdFailure::Status(status) => causes(status).any(|cause| cause.is::<ConnectError>()),
        }
    }

    /// Converts the failure of a request. `datastore` names the cluster or the endpoint.
    pub(super) fn to_store_error(
        &self,
        datastore: String,
        peer: &EtcdPeer<'_>,
        is_write: bool,
    ) -> StoreError {
        let outcome_unknown = is_write && !self.was_not_sent();
        match self.classify(peer, is_write) {
            Unreachable(reason) => StoreError::Unavailable {
                datastore,
                reason,
                outcome_unknown,
            },
            Refused(reason) => StoreError::Unauthorized {
                reason: format!("{datastore}: {reason}"),
            },
            Forbidden(reason) => StoreError::Forbidden {
                reason: format!("{datastore}: {reason}"),
            },
            Foreign(reason) => StoreError::ForeignAnswer {
                datastore,
                reason: foreign(&reason),
                outcome_unknown,
            },
            Alarm(reason) => StoreError::Alarm {
                reason: format!("{datastore}: {reason}"),
            },
            Other(reason) => StoreError::Other(format!("{datastore}: {reason}")),
        }
    }

    fn classify(&self, peer: &EtcdPeer<'_>, is_write: bool) -> FailureKind {
        match self {
            EtcdFailure::Connect(error) => {
                classify_transport(describe_error_chain(error), peer, false, is_write)
            }
            EtcdFailure::Timeout(time) => {
                Unreachable(format!("no answer within {:.1} s", time.as_secs_f64()))
            }
            EtcdFailure::Status(status) => match status.source() {
                Some(source) => classify_transport(
                    describe_error_chain(source),
                    peer,
                    !self.was_not_sent(),
                    is_write,
                ),
                None => classify_status(status, peer.user),
            },
            EtcdFailure::Client(error) => Other(error.to_string()),
        }
    }
}

/// Returns the error for a cluster none of whose endpoints accepted a connection.
pub(super) fn connect_failures_to_store_error(
    failures: &[(String, EtcdFailure)],
    peer: &EtcdPeer<'_>,
) -> StoreError {
    let mut reasons = Vec::new();
    for (endpoint, failure) in failures {
        match failure.to_store_error(endpoint.clone(), peer, false) {
            StoreError::Unavailable { reason, .. } if failures.len() == 1 => reasons.push(reason),
            StoreError::Unavailable {
                datastore, reason, ..
            } => reasons.push(format!("{datastore}: {reason}")),
            // Another error than an unreachable endpoint explains more.
            refused => return refused,
        }
    }
    let endpoints: Vec<&str> = failures
        .iter()
        .map(|(endpoint, _)| endpoint.as_str())
        .collect();
    StoreError::Unavailable {
        datastore: endpoints.join(","),
        reason: reasons.join("; "),
        outcome_unknown: false,
    }
}

/// Classifies a failure below the gRPC protocol by its text: the types of the causes are private to
/// their crates.
fn classify_transport(
    text: String,
    peer: &EtcdPeer<'_>,
    is_connected: bool,
    is_write: bool,
) -> FailureKind {
    let tls = peer.tls.unwrap_or("no TLS");
    if text.contains("CaUsedAsEndEntity") {
        return Refused(format!(
            "etcd's certificate is not trusted: it is that of a CA: {text}; give etcd one that the \
             CA has signed, or name exactly this certificate in etcd_ca_cert_file ({tls})"
        ));
    }
    if text.contains("invalid peer certificate") {
        return Refused(format!("etcd's certificate is not trusted: {text} ({tls})"));
    }
    // The alert of a server that has no cipher suite in common with the client. With TLS 1.2, Go
    // also sends it to a client without a certificate.
    if text.contains("alert: HandshakeFailure") {
        return Refused(format!(
            "etcd has none of the TLS versions and cipher suites that this program offers, or \
             demands a client certificate: {text}; check TLS_MIN_VERSION and TLS_CIPHER_SUITES, \
             and etcd_cert_file ({tls})"
        ));
    }
    // The alert of a server that has no version in common with the client, and the client's own
    // error.
    if ["alert: ProtocolVersion", "peer is incompatible"]
        .iter()
        .any(|it| text.contains(it))
    {
        return Refused(format!(
            "etcd has none of the TLS versions and cipher suites that this program offers: {text}; \
             check TLS_MIN_VERSION and TLS_CIPHER_SUITES ({tls})"
        ));
    }
    if text.contains("received fatal alert") {
        return Refused(format!(
            "etcd refuses the client certificate: {text} ({tls})"
        ));
    }
    // A server without TLS responds to the handshake with other data, closes the connection, or
    // resets it.
    let was_reset = peer.tls.is_some() && !is_connected && text.contains("reset by peer");
    if was_reset || text.contains("InvalidContentType") || text.contains("tls handshake eof") {
        return Unreachable(format!(
            "{text}; if the server does not use TLS, write http:// in etcd_endpoints"
        ));
    }
    // HTTP/2 takes the beginning of an HTTP/1.1 response, or of an alert of TLS, for a long frame.
    if text.contains("frame with invalid size") && (peer.tls.is_some() || peer.has_answered) {
        return Foreign(text);
    }
    if !is_connected || peer.has_answered {
        return Unreachable(text);
    }
    // In TLS 1.3 a server rejects a client certificate like this: the alert comes after the
    // client's handshake is done, and is lost if it crosses the first request. A write may have
    // been received.
    match peer.tls {
        None => Unreachable(format!(
            "{text}; if the server requires TLS, write https:// in etcd_endpoints"
        )),
        Some(_) if is_write => Unreachable(format!(
            "{text}; check that etcd accepts the client certificate ({tls})"
        )),
        Some(_) => Refused(format!(
            "etcd closed the connection after the TLS handshake, so etcd probably refuses the \
             client certificate: {text} ({tls})"
        )),
    }
}

const NO_SPACE_ADVICE: &str = "compact and defragment etcd, then run `etcdctl alarm disarm`";
const CORRUPT_ADVICE: &str =
    "`etcdctl alarm list` names the corrupt member; replace it, then run `etcdctl alarm disarm`";

/// Returns the error of writes during an alarm, for the text with which etcd's status describes it,
/// such as `memberID:1 alarm:NOSPACE`. Returns `None` for another problem.
pub(super) fn alarm_of_status(datastore: &str, problem: &str) -> Option<StoreError> {
    let advice = match problem {
        _ if problem.contains("alarm:NOSPACE") => NO_SPACE_ADVICE,
        _ if problem.contains("alarm:CORRUPT") => CORRUPT_ADVICE,
        _ => return None,
    };
    let reason = format!(
        "{datastore}: etcd refuses writes ({}); {advice}",
        problem.trim()
    );
    Some(StoreError::Alarm { reason })
}

/// Completes the description of a response that etcd would not send.
pub(super) fn foreign(problem: &str) -> String {
    format!(
        "{problem}; check that etcd_endpoints names etcd's client URLs, and that no other program \
         answers for them"
    )
}

/// Returns true for the texts of etcd about a token that is not valid, or no longer.
pub(super) fn is_token_refusal(text: &str) -> bool {
    [
        "invalid auth token",
        "revision of auth store is old",
        "user name is empty",
    ]
    .iter()
    .any(|it| text.contains(it))
}

/// Returns true if the response is not one of a gRPC server. A load balancer's 429, 502, 503 or 504
/// does not count, because load balancers send these while etcd is away.
fn is_no_grpc(status: &Status) -> bool {
    let is_outage = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted);
    let texts = ["invalid compression flag", "mapped from HTTP status code"];
    !is_outage && texts.iter().any(|text| status.message().contains(text))
}

fn classify_status(status: &Status, user: Option<&str>) -> FailureKind {
    let message = status.message();
    let with_user = || match user {
        Some(user) => format!("{message} (user `{user}` of ETCD_USERNAME)"),
        None => format!("{message} (no user; set ETCD_USERNAME and ETCD_PASSWORD)"),
    };
    let is_failed_login = message.contains("authentication failed") || is_token_refusal(message);
    match status.code() {
        _ if is_no_grpc(status) => Foreign(message.into()),
        // The end of the response was lost.
        Code::Unknown if message.contains("missing grpc-status trailer") => {
            Unreachable(message.into())
        }
        Code::Unauthenticated => Refused(with_user()),
        Code::PermissionDenied => Forbidden(with_user()),
        Code::InvalidArgument if is_failed_login => Refused(with_user()),
        Code::ResourceExhausted if message.contains("database space exceeded") => {
            Alarm(format!("{message}; {NO_SPACE_ADVICE}"))
        }
        Code::DataLoss => Alarm(format!("{message}; {CORRUPT_ADVICE}")),
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => {
            Unreachable(message.into())
        }
        code => Other(format!("{message} ({code:?})")),
    }
}

#[cfg(test)]
mod tests;
