use super::*;

fn store_error(code: Code, message: &str) -> StoreError {
    EtcdFailure::Status(Status::new(code, message)).to_store_error(
        "http://a:1".into(),
        &EtcdPeer {
            user: Some("root"),
            ..EtcdPeer::default()
        },
        true,
    )
}

#[test]
fn etcd_rejections_outages_and_alarms_are_distinguished() {
    let denied = store_error(Code::PermissionDenied, "etcdserver: permission denied");
    assert!(matches!(denied, StoreError::Forbidden { .. }), "{denied:?}");
    for (code, text) in [
        (Code::Unauthenticated, "etcdserver: invalid auth token"),
        (
            Code::InvalidArgument,
            "etcdserver: authentication failed, invalid user ID or password",
        ),
        (Code::InvalidArgument, "etcdserver: user name is empty"),
        (
            Code::InvalidArgument,
            "etcdserver: revision of auth store is old",
        ),
    ] {
        assert!(
            matches!(store_error(code, text), StoreError::Unauthorized { .. }),
            "{text}"
        );
    }
    let lost = store_error(Code::Unavailable, "etcdserver: leader changed");
    assert!(
        matches!(
            lost,
            StoreError::Unavailable {
                outcome_unknown: true,
                ..
            }
        ),
        "{lost:?}"
    );
    let full = store_error(
        Code::ResourceExhausted,
        "etcdserver: mvcc: database space exceeded",
    );
    assert!(
        matches!(&full, StoreError::Alarm { reason } if reason.contains("alarm disarm")),
        "{full:?}"
    );
    let corrupt = store_error(Code::DataLoss, "etcdserver: corrupt cluster");
    assert!(
        matches!(&corrupt, StoreError::Alarm { reason } if reason.contains("alarm list")),
        "{corrupt:?}"
    );
}

#[test]
fn status_of_etcd_names_alarms_beside_other_problems() {
    let text = |problem| alarm_of_status("http://a:1", problem).map(|error| error.to_string());
    assert_eq!(text("etcdserver: no leader"), None);
    let full = text("memberID:10276657743932975437 alarm:NOSPACE ").unwrap();
    assert!(
        full.starts_with("http://a:1: etcd refuses writes (memberID")
            && full.contains("defragment"),
        "{full}"
    );
    assert!(
        text("memberID:1  alarm:CORRUPT")
            .unwrap()
            .contains("alarm list")
    );
}

/// The texts are those of the gRPC library.
#[test]
fn response_that_is_no_grpc_is_another_programs() {
    let mapped = |code| format!("grpc-status header missing, mapped from HTTP status code {code}");
    let page = "protocol error: received message with invalid compression flag: 60 (valid \
                flags are 0 and 1) while receiving response with status: 200 OK";
    for (code, text) in [
        (Code::Internal, page.to_owned()),
        (Code::Unauthenticated, mapped(401)),
        (Code::PermissionDenied, mapped(403)),
        (Code::Unimplemented, mapped(404)),
        (Code::Unknown, mapped(302)),
    ] {
        let failure = EtcdFailure::Status(Status::new(code, text.clone()));
        assert!(failure.breaks_connection(), "{text}");
        let error = failure.to_store_error("http://a:1".into(), &EtcdPeer::default(), true);
        assert!(
            error.is_foreign_answer() && error.has_unknown_outcome(),
            "{text}: {error:?}"
        );
        assert!(
            error
                .to_string()
                .contains("check that etcd_endpoints names"),
            "{error}"
        );
    }
    let lost = store_error(Code::Unavailable, &mapped(502));
    assert!(
        lost.is_unavailable() && lost.has_unknown_outcome(),
        "{lost:?}"
    );
    let truncated = "protocol error: missing grpc-status trailer, stream was terminated \
                     without a final status";
    let lost = store_error(Code::Unknown, truncated);
    assert!(
        lost.is_unavailable() && lost.has_unknown_outcome(),
        "{lost:?}"
    );
}

/// An HTTP/1.1 server, or one with TLS that gets no TLS, answers in place of an HTTP/2 server.
#[test]
fn response_in_another_protocol_is_another_programs_if_etcd_was_reached_by_the_same_settings() {
    let text = || "http2 error: connection error detected: frame with invalid size".to_owned();
    let peer = |tls, has_answered| EtcdPeer {
        tls,
        has_answered,
        ..EtcdPeer::default()
    };
    let kind = |peer: EtcdPeer<'_>| classify_transport(text(), &peer, true, false);
    assert_eq!(kind(peer(None, true)), Foreign(text()));
    assert_eq!(kind(peer(Some("ca.pem"), false)), Foreign(text()));
    assert!(
        matches!(kind(peer(None, false)), Unreachable(text) if text.contains("write https://"))
    );
}

#[test]
fn failed_negotiation_of_tls_names_its_variables() {
    let peer = EtcdPeer {
        tls: Some("no client certificate"),
        ..EtcdPeer::default()
    };
    for (text, is_negotiation, is_about_certificates) in [
        ("received fatal alert: ProtocolVersion", true, false),
        ("received fatal alert: HandshakeFailure", true, true),
        (
            "peer is incompatible: ServerTlsVersionIsDisabledByOurConfig",
            true,
            false,
        ),
        ("received fatal alert: BadCertificate", false, true),
    ] {
        let kind = classify_transport(text.into(), &peer, false, false);
        let Refused(reason) = kind else {
            panic!("{text}: {kind:?}")
        };
        assert_eq!(
            reason.contains("TLS_MIN_VERSION and TLS_CIPHER_SUITES"),
            is_negotiation,
            "{reason}"
        );
        let named = [
            "refuses the client certificate",
            "demands a client certificate",
        ];
        assert_eq!(
            named.iter().any(|words| reason.contains(words)),
            is_about_certificates,
            "{reason}"
        );
    }
}

#[test]
fn rejection_outweighs_unreachable_endpoints_in_the_error() {
    let silent = || {
        (
            "http://a:1".to_owned(),
            EtcdFailure::Timeout(Duration::from_secs(1)),
        )
    };
    let refusal = (
        "http://b:1".to_owned(),
        EtcdFailure::Status(Status::new(Code::PermissionDenied, "no")),
    );
    let both = connect_failures_to_store_error(&[silent(), refusal], &EtcdPeer::default());
    assert!(matches!(both, StoreError::Forbidden { .. }), "{both:?}");
    let error = connect_failures_to_store_error(&[silent()], &EtcdPeer::default());
    assert_eq!(
        error.to_string(),
        "datastore http://a:1 is unavailable: no answer within 1.0 s"
    );
}
