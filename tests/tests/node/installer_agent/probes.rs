//! Readiness, liveness, metrics, and the end of the process.

use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::ApiServer;
use integration_tests::namespaces::Host;
use integration_tests::node_pod::{AGENT_PORT, Agent, NodePod};
use integration_tests::proxy::{Fault, Point, Proxy};

use crate::installer_agent::pod::{in_pod, pod_at};

/// Starts an agent that reaches the API server through a proxy.
fn proxied_agent(host: &Host, api: &ApiServer) -> (Proxy, Agent) {
    let proxy = api.proxy().unwrap();
    let mut pod = pod_at(host, api, &proxy.endpoint());
    pod.set("CNI_TOKEN_TRIAL_INTERVAL", "200ms");
    let agent = pod.agent().unwrap();
    agent.await_page("/readiness", 200).unwrap();
    (proxy, agent)
}

#[test]
fn agent_without_the_api_server_is_live_and_not_ready() {
    in_pod(|host, kubernetes, _| {
        let (proxy, agent) = proxied_agent(host, &kubernetes.api);
        proxy.go_away();
        agent.await_reason(&["did not answer"]).unwrap();
        assert_eq!(agent.page("/liveness").unwrap().code, 200);
        proxy.arm(None);
        agent.await_page("/readyz", 200).unwrap();
        // The token was valid all the time.
        assert_eq!(agent.metric("token_refreshes_total").unwrap(), 1);
    });
}

/// The test repeats outages until two consecutive ones have the same error, because the kernel
/// decides how a connection breaks.
#[test]
fn second_outage_with_the_same_error_is_logged_again() {
    in_pod(|host, kubernetes, _| {
        let (proxy, agent) = proxied_agent(host, &kubernetes.api);
        let mut reasons = Vec::<String>::new();
        for outage in 1.. {
            let begin = agent.log().len();
            proxy.go_away();
            let page = agent.await_page("/readiness", 503).unwrap();
            let (_, reason) = page.body.trim().split_once("in a row: ").unwrap();
            let logged = agent.log()[begin..].to_owned();
            assert!(
                logged.contains(reason),
                "outage {outage}: {reason:?} is not in {logged:?}"
            );
            let is_repeated = reasons.last().is_some_and(|last| last == reason);
            reasons.push(reason.to_owned());
            proxy.arm(None);
            agent.await_page("/readiness", 200).unwrap();
            // The agent also writes this line after a single test that a busy machine delays, maybe
            // before the reason.
            let has_ended = |log: &str| {
                log.split_once(reason)
                    .is_some_and(|(_, later)| later.contains("answers again"))
            };
            await_that(PATIENCE, || Ok(has_ended(&agent.log()[begin..]))).unwrap();
            if is_repeated {
                break;
            }
            assert!(outage < 30, "{reasons:?}");
        }
    });
}

#[test]
fn upstreams_health_command_probes_the_agent() {
    in_pod(|_, _, pod| {
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let port = AGENT_PORT.to_string();
        for kind in ["readiness", "liveness"] {
            let outcome = pod
                .calico(&["health", "--port", &port, "--type", kind])
                .run();
            assert_eq!((outcome.exit, outcome.stderr.as_str()), (Some(0), ""));
        }
        agent.terminate().unwrap();
        let outcome = pod
            .calico(&["health", &format!("--port={port}"), "--timeout=1s"])
            .run();
        assert_eq!(outcome.exit, Some(1));
        assert!(
            outcome.stderr.contains(&format!(":{port}/readiness: ")),
            "{}",
            outcome.stderr
        );
    });
}

#[test]
fn sigterm_ends_the_agent_with_success_and_keeps_the_token() {
    in_pod(|_, _, pod| {
        let mut agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert!(agent.terminate().unwrap().success());
        assert!(pod.token().is_ok());
    });
}

#[test]
fn sigterm_ends_the_agent_during_a_pending_request() {
    in_pod(|host, kubernetes, _| {
        let proxy = kubernetes.api.proxy().unwrap();
        let pod = NodePod::new(host, &kubernetes.api, &proxy.endpoint()).unwrap();
        proxy.arm(Some((Point::First("POST", "/token"), Fault::Hold)));
        let mut agent = pod.agent().unwrap();
        proxy.await_held().unwrap();
        let ended = agent.terminate().unwrap();
        assert!(ended.success(), "{ended}: {}", agent.log());
        assert!(!pod.kubeconfig().exists());
    });
}

#[test]
fn metrics_are_served_to_other_hosts_only_if_configured() {
    in_pod(|host, _, mut pod| {
        host.add_uplink().unwrap();
        let from_outside =
            |agent: &Agent| host.in_pod("uplink", || agent.page_at("192.0.2.2", "/metrics"));
        {
            let agent = pod.agent().unwrap();
            agent.await_page("/readiness", 200).unwrap();
            assert!(
                from_outside(&agent).is_err(),
                "by default it listens on this node alone"
            );
        }
        pod.set("CNI_AGENT_LISTEN", format!("0.0.0.0:{AGENT_PORT}"));
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let page = from_outside(&agent).unwrap();
        assert!(
            page.body
                .contains("calico_cni_token_expiry_timestamp_seconds"),
            "{}",
            page.body
        );
    });
}
