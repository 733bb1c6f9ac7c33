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
    Ok(timeout_at(deadline, request).await.map_err(|_| EtcdFailure::Timeout(limit))??)
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
    Other(String),
}

use FailureKind::{Other, Refused, Unreachable};

impl EtcdFailure {
    pub(super) fn breaks_connection(&self) -> bool {
        match self {
            EtcdFailure::Connect(_) | EtcdFailure::Timeout(_) => true,
            EtcdFailure::Status(status) => status.source().is_some() || status.code() == Code::Unavailable,
            EtcdFailure::Client(_) => false,
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
    pub(super) fn to_store_error(&self, datastore: String, peer: &EtcdPeer<'_>, is_write: bool) -> StoreError {
        let outcome_unknown = is_write && !self.was_not_sent();
        match self.classify(peer, is_write) {
            Unreachable(reason) => StoreError::Unavailable { datastore, reason, outcome_unknown },
            Refused(reason) => StoreError::Unauthorized { reason: format!("{datastore}: {reason}") },
            Other(reason) => StoreError::Other(format!("{datastore}: {reason}")),
        }
    }

    fn classify(&self, peer: &EtcdPeer<'_>, is_write: bool) -> FailureKind {
        match self {
            EtcdFailure::Connect(error) => classify_transport(describe_error_chain(error), peer, false, is_write),
            EtcdFailure::Timeout(time) => Unreachable(format!("no answer within {:.1} s", time.as_secs_f64())),
            EtcdFailure::Status(status) => match status.source() {
                Some(source) => classify_transport(describe_error_chain(source), peer, !self.was_not_sent(), is_write),
                None => classify_status(status, peer.user),
            },
            EtcdFailure::Client(error) => Other(error.to_string()),
        }
    }
}

/// Returns the error for a cluster none of whose endpoints accepted a connection.
pub(super) fn connect_failures_to_store_error(failures: &[(String, EtcdFailure)], peer: &EtcdPeer<'_>) -> StoreError {
    let mut reasons = Vec::new();
    for (endpoint, failure) in failures {
        match failure.to_store_error(endpoint.clone(), peer, false) {
            StoreError::Unavailable { reason, .. } if failures.len() == 1 => reasons.push(reason),
            StoreError::Unavailable { datastore, reason, .. } => reasons.push(format!("{datastore}: {reason}")),
            // Another error than an unreachable endpoint explains more.
            refused => return refused,
        }
    }
    let endpoints: Vec<&str> = failures.iter().map(|(endpoint, _)| endpoint.as_str()).collect();
    StoreError::Unavailable { datastore: endpoints.join(","), reason: reasons.join("; "), outcome_unknown: false }
}

/// Classifies a failure below the gRPC protocol by its text: the types of the causes are private to their crates.
fn classify_transport(text: String, peer: &EtcdPeer<'_>, is_connected: bool, is_write: bool) -> FailureKind {
    let tls = peer.tls.unwrap_or("no TLS");
    if text.contains("invalid peer certificate") {
        return Refused(format!("etcd's certificate is not trusted: {text} ({tls})"));
    }
    // The alert of a server that has no cipher suite in common with the client. With TLS 1.2, Go also sends it to a
    // client without a certificate.
    if text.contains("alert: HandshakeFailure") {
        return Refused(format!(
            "etcd has none of the TLS versions and cipher suites that this program offers, or demands a client \
             certificate: {text}; check TLS_MIN_VERSION and TLS_CIPHER_SUITES, and etcd_cert_file ({tls})"
        ));
    }
    // The alert of a server that has no version in common with the client, and the client's own error.
    if ["alert: ProtocolVersion", "peer is incompatible"].iter().any(|it| text.contains(it)) {
        return Refused(format!(
            "etcd has none of the TLS versions and cipher suites that this program offers: {text}; check \
             TLS_MIN_VERSION and TLS_CIPHER_SUITES ({tls})"
        ));
    }
    if text.contains("received fatal alert") {
        return Refused(format!("etcd refuses the client certificate: {text} ({tls})"));
    }
    // A server without TLS responds to the handshake with other data, closes the connection, or resets it.
    let was_reset = peer.tls.is_some() && !is_connected && text.contains("reset by peer");
    if was_reset || text.contains("InvalidContentType") || text.contains("tls handshake eof") {
        return Unreachable(format!("{text}; if the server does not use TLS, write http:// in etcd_endpoints"));
    }
    if !is_connected || peer.has_answered {
        return Unreachable(text);
    }
    // In TLS 1.3 a server rejects a client certificate like this: the alert comes after the client's handshake is done,
    // and is lost if it crosses the first request. A write may have been received.
    match peer.tls {
        None => Unreachable(format!("{text}; if the server requires TLS, write https:// in etcd_endpoints")),
        Some(_) if is_write => Unreachable(format!("{text}; check that etcd accepts the client certificate ({tls})")),
        Some(_) => Refused(format!(
            "etcd closed the connection after the TLS handshake, so etcd probably refuses the client certificate: \
             {text} ({tls})"
        )),
    }
}

fn classify_status(status: &Status, user: Option<&str>) -> FailureKind {
    let message = status.message();
    let with_user = || match user {
        Some(user) => format!("{message} (user `{user}` of ETCD_USERNAME)"),
        None => format!("{message} (no user; set ETCD_USERNAME and ETCD_PASSWORD)"),
    };
    let is_failed_login = message.contains("authentication failed") || message.contains("user name is empty");
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Refused(with_user()),
        Code::InvalidArgument if is_failed_login => Refused(with_user()),
        Code::ResourceExhausted if message.contains("database space exceeded") => {
            Other(format!("{message}; compact and defragment etcd, then run `etcdctl alarm disarm`"))
        }
        Code::Unavailable | Code::DeadlineExceeded | Code::ResourceExhausted => Unreachable(message.into()),
        code => Other(format!("{message} ({code:?})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store_error(code: Code, message: &str) -> StoreError {
        EtcdFailure::Status(Status::new(code, message)).to_store_error(
            "http://a:1".into(),
            &EtcdPeer { user: Some("root"), ..EtcdPeer::default() },
            true,
        )
    }

    #[test]
    fn etcd_rejections_outages_and_full_storage_are_distinguished() {
        for (code, text) in [
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
        ] {
            assert!(matches!(store_error(code, text), StoreError::Unauthorized { .. }), "{text}");
        }
        let lost = store_error(Code::Unavailable, "etcdserver: leader changed");
        assert!(matches!(lost, StoreError::Unavailable { outcome_unknown: true, .. }), "{lost:?}");
        let full = store_error(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(&full, StoreError::Other(text) if text.contains("alarm disarm")), "{full:?}");
    }

    #[test]
    fn failed_negotiation_of_tls_names_its_variables() {
        let peer = EtcdPeer { tls: Some("no client certificate"), ..EtcdPeer::default() };
        for (text, is_negotiation, is_about_certificates) in [
            ("received fatal alert: ProtocolVersion", true, false),
            ("received fatal alert: HandshakeFailure", true, true),
            ("peer is incompatible: ServerTlsVersionIsDisabledByOurConfig", true, false),
            ("received fatal alert: BadCertificate", false, true),
        ] {
            let kind = classify_transport(text.into(), &peer, false, false);
            let Refused(reason) = kind else { panic!("{text}: {kind:?}") };
            assert_eq!(reason.contains("TLS_MIN_VERSION and TLS_CIPHER_SUITES"), is_negotiation, "{reason}");
            let named = ["refuses the client certificate", "demands a client certificate"];
            assert_eq!(named.iter().any(|words| reason.contains(words)), is_about_certificates, "{reason}");
        }
    }

    #[test]
    fn rejection_outweighs_unreachable_endpoints_in_the_error() {
        let silent = || ("http://a:1".to_owned(), EtcdFailure::Timeout(Duration::from_secs(1)));
        let refusal = ("http://b:1".to_owned(), EtcdFailure::Status(Status::new(Code::PermissionDenied, "no")));
        let both = connect_failures_to_store_error(&[silent(), refusal], &EtcdPeer::default());
        assert!(matches!(both, StoreError::Unauthorized { .. }), "{both:?}");
        let error = connect_failures_to_store_error(&[silent()], &EtcdPeer::default());
        assert_eq!(error.to_string(), "datastore http://a:1 is unavailable: no answer within 1.0 s");
    }
}
