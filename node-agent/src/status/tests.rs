use super::*;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a status with a token of 600 s that arrived at second 100; the next attempt is at
/// second 300.
fn good() -> Status {
    Status {
        started_at: secs(99),
        manages_token: true,
        token: Some(HeldToken {
            received_at: secs(100),
            lifetime: secs(600),
        }),
        expires: Some(1_700_000_600),
        last_attempt: Some(RefreshAttempt {
            at: secs(100),
            succeeded: true,
        }),
        planned_pause: secs(200),
        ..Status::default()
    }
}

#[test]
fn agent_is_ready_until_the_last_quarter_of_the_token() {
    assert_eq!(good().readiness(secs(550)), Ok(()));
    let failing = Status {
        last_failure: Some("no answer".into()),
        ..good()
    };
    assert_eq!(
        failing.readiness(secs(560)).unwrap_err().to_string(),
        "the plugins' token is valid for 140 s more, less than a quarter of its lifetime: no \
         answer"
    );
}

#[test]
fn agent_is_not_ready_without_a_token_a_response_or_the_files() {
    let begun = Status {
        started_at: secs(99),
        manages_token: true,
        ..Status::default()
    };
    assert!(
        begun
            .readiness(secs(100))
            .unwrap_err()
            .to_string()
            .ends_with("no token was requested yet")
    );
    assert_eq!(
        Status {
            unanswered: 1,
            ..good()
        }
        .readiness(secs(101)),
        Ok(())
    );
    assert!(
        Status {
            unanswered: 2,
            ..good()
        }
        .readiness(secs(101))
        .is_err()
    );
    let missing = Status {
        file_problem: Some("calico is gone".into()),
        ..good()
    };
    assert_eq!(
        missing.readiness(secs(101)).unwrap_err().to_string(),
        "calico is gone"
    );
    let suspended = Status {
        suspension: Some("another installed".into()),
        ..good()
    };
    assert_eq!(
        suspended.readiness(secs(101)).unwrap_err().to_string(),
        "another installed"
    );
}

#[test]
fn agent_is_not_ready_with_a_rejected_token() {
    let mut status = good();
    status.record_rejection();
    let words = "the API server rejects the plugins' token, or the kubeconfig has none";
    assert_eq!(status.readiness(secs(101)).unwrap_err().to_string(), words);
    status.record_failure("no right".into());
    assert_eq!(
        status.readiness(secs(101)).unwrap_err().to_string(),
        format!("{words}: no right")
    );
    assert_eq!(
        status.liveness(secs(101)),
        Ok(()),
        "a restart does not return the right"
    );
    assert!(
        status
            .metrics()
            .contains("\ncalico_cni_token_expiry_timestamp_seconds 0\n")
    );
    assert!(
        status
            .metrics()
            .contains("\ncalico_cni_token_refused_total 1\n")
    );
    status.record_answer();
    assert_eq!(
        status.readiness(secs(101)),
        Ok(()),
        "another program wrote a valid token"
    );
    assert!(
        status
            .metrics()
            .contains("\ncalico_cni_token_expiry_timestamp_seconds 1700000600\n")
    );
}

#[test]
fn response_clears_only_a_no_response_failure() {
    let failing = |unanswered| Status {
        unanswered,
        last_failure: Some("why".into()),
        ..good()
    };
    let answered = |mut status: Status| {
        status.record_answer();
        (status.last_failure, status.unanswered)
    };
    assert_eq!(answered(failing(1)), (None, 0));
    assert_eq!(
        answered(failing(0)),
        (Some("why".into()), 0),
        "it may not make tokens, and is there"
    );
}

#[test]
fn agent_is_live_while_token_attempts_are_on_schedule() {
    let without_token = Status {
        token: None,
        ..good()
    };
    assert_eq!(without_token.liveness(secs(560)), Ok(()));
    assert_eq!(
        without_token.liveness(secs(561)).unwrap_err().to_string(),
        "no token was requested for 461 s; the planned interval is 200 s"
    );
    let begun = Status {
        started_at: secs(100),
        manages_token: true,
        ..Status::default()
    };
    assert!(begun.liveness(secs(160)).is_ok() && begun.liveness(secs(161)).is_err());
}

#[test]
fn expired_token_fails_liveness() {
    let retrying = |at| Status {
        last_attempt: Some(RefreshAttempt {
            at,
            succeeded: false,
        }),
        planned_pause: secs(5),
        ..good()
    };
    assert_eq!(retrying(secs(690)).liveness(secs(699)), Ok(()));
    assert_eq!(
        retrying(secs(695))
            .liveness(secs(700))
            .unwrap_err()
            .to_string(),
        "the plugins' token has expired"
    );
}

#[test]
fn readiness_without_token_management_depends_on_the_files_only() {
    let idle = Status {
        started_at: secs(0),
        ..Status::default()
    };
    assert!(idle.readiness(secs(9999)).is_ok() && idle.liveness(secs(9999)).is_ok());
    assert!(
        Status {
            file_problem: Some("calico is gone".into()),
            ..idle
        }
        .readiness(secs(1))
        .is_err()
    );
}

#[test]
fn agent_is_not_ready_while_runtimes_use_another_network() {
    let shadowed = Status {
        selection: Selection::Other("10-aws.conflist is first".into()),
        ..good()
    };
    assert_eq!(
        shadowed.readiness(secs(101)).unwrap_err().to_string(),
        "10-aws.conflist is first"
    );
    assert!(shadowed.metrics().contains("calico_cni_config_chosen 0\n"));
    assert!(
        shadowed.metrics().contains("calico_cni_install_ok 1\n"),
        "all files are in place"
    );
    let unused = Status {
        has_network: Some(false),
        node_problem: Some("kubelet reports".into()),
        ..good()
    };
    assert_eq!(
        unused.readiness(secs(101)).unwrap_err().to_string(),
        "kubelet reports"
    );
    assert!(
        unused
            .metrics()
            .contains("calico_cni_node_network_ready 0\n")
    );
    assert!(!good().metrics().contains("chosen") && !good().metrics().contains("network_ready"));
    let chosen = Status {
        selection: Selection::Ours,
        has_network: Some(true),
        ..good()
    };
    assert_eq!(chosen.readiness(secs(101)), Ok(()));
    assert!(chosen.metrics().contains("calico_cni_config_chosen 1\n"));
}

#[test]
fn metrics_of_the_repair_exist_only_if_the_agent_repairs() {
    assert!(
        !good().metrics().contains("dead_interfaces")
            && !good().metrics().contains("repair_unknown")
    );
    let repair = Some(RepairStatus {
        dead: 2,
        is_unknown: true,
        removed: 3,
    });
    let text = Status { repair, ..good() }.metrics();
    for line in [
        "dead_interfaces 2",
        "dead_interfaces_removed_total 3",
        "repair_unknown 1",
    ] {
        assert!(
            text.contains(&format!("\ncalico_cni_{line}\n")),
            "{line} is not in:\n{text}"
        );
    }
}

#[test]
fn agent_metrics_are_prometheus_text() {
    let text = Status {
        counts: Counts {
            failures: 3,
            ..Counts::default()
        },
        ..good()
    }
    .metrics();
    for line in [
        "# TYPE calico_cni_token_expiry_timestamp_seconds gauge",
        "calico_cni_token_expiry_timestamp_seconds 1700000600",
        "calico_cni_token_refresh_failures_total 3",
        "calico_cni_token_managed 1",
        "calico_cni_install_ok 1",
        "calico_cni_restoration_suspended 0",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in:\n{text}"
        );
    }
    assert_eq!(text.lines().count() % 3, 0);
    let unchecked = Status {
        counts: Counts::default(),
        ..good()
    };
    assert!(
        unchecked.metrics().contains("calico_cni_install_ok 1\n"),
        "no check has found a problem"
    );
    assert!(
        Status {
            file_problem: Some("x".into()),
            ..good()
        }
        .metrics()
        .contains("calico_cni_install_ok 0\n")
    );
    let suspended = Status {
        suspension: Some("x".into()),
        ..good()
    }
    .metrics();
    assert!(
        suspended.contains("calico_cni_restoration_suspended 1\n")
            && suspended.contains("install_ok 1\n")
    );
}

#[test]
fn each_metric_has_its_name_help_and_type() {
    let status = Status {
        selection: Selection::Ours,
        has_network: Some(false),
        repair: Some(RepairStatus {
            dead: 2,
            is_unknown: true,
            removed: 3,
        }),
        counts: Counts {
            refreshes: 1,
            failures: 2,
            rejected: 3,
            clock_jumps: 4,
            file_checks: 5,
            restored: 6,
        },
        ..good()
    };
    let expected = "\
# HELP calico_cni_token_expiry_timestamp_seconds Expiry of the plugins' token in seconds since \
1970; 0 without a token, or with a rejected one.
# TYPE calico_cni_token_expiry_timestamp_seconds gauge
calico_cni_token_expiry_timestamp_seconds 1700000600
# HELP calico_cni_token_refreshes_total Tokens that were requested and written to the kubeconfig.
# TYPE calico_cni_token_refreshes_total counter
calico_cni_token_refreshes_total 1
# HELP calico_cni_token_refresh_failures_total Failed attempts to renew the token.
# TYPE calico_cni_token_refresh_failures_total counter
calico_cni_token_refresh_failures_total 2
# HELP calico_cni_token_refused_total Tests that found the plugins' token rejected or missing.
# TYPE calico_cni_token_refused_total counter
calico_cni_token_refused_total 3
# HELP calico_cni_clock_jumps_total Detected jumps of the node's clock.
# TYPE calico_cni_clock_jumps_total counter
calico_cni_clock_jumps_total 4
# HELP calico_cni_file_checks_total Checks of the installed files.
# TYPE calico_cni_file_checks_total counter
calico_cni_file_checks_total 5
# HELP calico_cni_files_restored_total Installed files that were missing or changed and have been \
restored.
# TYPE calico_cni_files_restored_total counter
calico_cni_files_restored_total 6
# HELP calico_cni_token_managed 1 if this agent renews the plugins' token, else 0.
# TYPE calico_cni_token_managed gauge
calico_cni_token_managed 1
# HELP calico_cni_install_ok 0 if the last check of the installed files left a problem; else 1, \
also before the first check and while the agent restores no file.
# TYPE calico_cni_install_ok gauge
calico_cni_install_ok 1
# HELP calico_cni_restoration_suspended 1 if the agent restores no file, because another \
installation replaced that of its pod, else 0.
# TYPE calico_cni_restoration_suspended gauge
calico_cni_restoration_suspended 0
# HELP calico_cni_config_chosen 1 if container runtimes use the configuration, 0 if another \
network's sorts before it.
# TYPE calico_cni_config_chosen gauge
calico_cni_config_chosen 1
# HELP calico_cni_node_network_ready 1 if the node has a network according to its Ready \
condition, else 0.
# TYPE calico_cni_node_network_ready gauge
calico_cni_node_network_ready 0
# HELP calico_cni_dead_interfaces Interfaces of this node that no container uses, in the last look.
# TYPE calico_cni_dead_interfaces gauge
calico_cni_dead_interfaces 2
# HELP calico_cni_dead_interfaces_removed_total Removed interfaces that no container used.
# TYPE calico_cni_dead_interfaces_removed_total counter
calico_cni_dead_interfaces_removed_total 3
# HELP calico_cni_repair_unknown 1 if the last look left it open whether containers use some \
interfaces, else 0.
# TYPE calico_cni_repair_unknown gauge
calico_cni_repair_unknown 1
";
    assert_eq!(status.metrics(), expected);
}
