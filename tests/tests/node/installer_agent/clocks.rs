//! Clocks that are set while the agent runs.

use integration_tests::clock::{Ahead, KNOWN};
use integration_tests::skip::skipped;

use crate::installer_agent::pod::{REASON, in_pod, token_requests, user};

const HOUR: i32 = 3600;

/// After a change of the clock the plugins' token may be expired or not yet valid.
#[test]
fn agent_requests_a_new_token_after_each_clock_change() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, pod| {
        let audit = kubernetes.api.audit().unwrap();
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let first = pod.token().unwrap();
        assert_eq!(agent.metric("clock_jumps_total").unwrap(), 0);

        agent
            .set_clocks(Ahead {
                calendar: 3 * HOUR,
                ..Ahead::default()
            })
            .unwrap();
        agent.await_metric("clock_jumps_total", 1).unwrap();
        agent.await_metric("token_refreshes_total", 2).unwrap();
        assert_ne!(pod.token().unwrap(), first);
        assert!(
            agent.log().contains("the node's clock was set"),
            "{}",
            agent.log()
        );

        agent.set_clocks(Ahead::default()).unwrap();
        agent.await_metric("clock_jumps_total", 2).unwrap();
        agent.await_metric("token_refreshes_total", 3).unwrap();
        assert!(user(kubernetes, &pod).is_some(), "the token opens");
        // The agent did not consider its token invalid.
        assert_eq!(agent.page("/readiness").unwrap().code, 200);
        assert_eq!(agent.page("/liveness").unwrap().code, 200);
        assert_eq!(token_requests(&audit, &pod).unwrap(), 3);
        assert_eq!(agent.metric("token_refresh_failures_total").unwrap(), 0);
    });
}

/// No clock was set, but the token is old.
#[test]
fn agent_requests_a_new_token_after_a_suspend() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, pod| {
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let first = pod.token().unwrap();
        // A token for a day is renewed after half a day at the latest.
        agent
            .set_clocks(Ahead {
                calendar: 13 * HOUR,
                boot: 13 * HOUR,
                ..Ahead::default()
            })
            .unwrap();
        agent.await_metric("token_refreshes_total", 2).unwrap();
        assert_ne!(pod.token().unwrap(), first);
        assert_eq!(agent.metric("clock_jumps_total").unwrap(), 0);
        assert!(user(kubernetes, &pod).is_some());
        agent.await_page("/readiness", 200).unwrap();
    });
}
