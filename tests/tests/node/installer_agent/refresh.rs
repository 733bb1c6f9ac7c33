//! Requests and renewals of tokens.

use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use integration_tests::clock::KNOWN;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::Request;
use integration_tests::node_pod::{NAMESPACE, may_make_tokens};
use integration_tests::proxy::{Fault, Point, Refusal};
use integration_tests::skip::skipped;

use crate::installer_agent::pod::{
    ClockedAgent, PLUGINS, REASON, claims, in_pod, install, token_requests, user,
};

const DAY: i64 = 86_400;

/// Covers upstream's case "should create a token successfully".
#[test]
fn plugins_get_a_valid_token_that_is_not_bound_to_the_pod() {
    in_pod(|_, kubernetes, pod| {
        let begin = time::OffsetDateTime::now_utc().unix_timestamp();
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(
            user(kubernetes, &pod).unwrap(),
            format!("system:serviceaccount:{NAMESPACE}:{PLUGINS}")
        );
        let claims = claims(&pod.token().unwrap());
        let (issued, expiry) = (
            claims["iat"].as_i64().unwrap(),
            claims["exp"].as_i64().unwrap(),
        );
        assert_eq!(expiry - issued, DAY);
        assert!(claims["kubernetes.io"]["pod"].is_null(), "{claims}");
        assert_eq!(claims["aud"][0], "https://kubernetes.default.svc");
        // The API server reads its clock once for the response and again for the claims.
        let metric = agent.metric("token_expiry_timestamp_seconds").unwrap();
        assert!(
            (begin + DAY..=expiry).contains(&metric),
            "{metric}: begun at {begin}, {claims}"
        );
        let mode = pod.kubeconfig().metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o600);
        let token = pod.token().unwrap();
        assert!(!agent.log().contains(&token[..20]), "a token is in the log");
    });
}

/// Covers upstream's case "should bind a token to service account successfully".
#[test]
fn token_is_of_the_configured_service_account() {
    in_pod(|_, kubernetes, mut pod| {
        kubernetes.api.service_account(NAMESPACE, "canal").unwrap();
        may_make_tokens(&kubernetes.api, &pod.account, "canal").unwrap();
        pod.set("CALICO_CNI_SERVICE_ACCOUNT", "canal");
        let agent = pod.agent().unwrap();
        // The agent is ready once the authorizer applies the rule.
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(
            claims(&pod.token().unwrap())["sub"],
            format!("system:serviceaccount:{NAMESPACE}:canal")
        );
    });
}

/// Covers upstream's case "should create multiple tokens …", with the shortest lifetime that an API
/// server allows.
#[test]
fn five_tokens_of_ten_minutes_are_issued_in_sequence() {
    in_pod(|_, kubernetes, mut pod| {
        pod.set("CNI_TOKEN_LIFETIME", "1m");
        pod.set("CNI_TOKEN_REFRESH_INTERVAL", "100ms");
        let agent = pod.agent().unwrap();
        agent.await_metric("token_refreshes_total", 5).unwrap();
        let claims = claims(&pod.token().unwrap());
        assert_eq!(
            claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(),
            600
        );
        assert_eq!(agent.metric("token_refresh_failures_total").unwrap(), 0);
        assert!(user(kubernetes, &pod).is_some());
        assert_eq!(agent.page("/readiness").unwrap().code, 200);
    });
}

/// Covers upstream's cases "WakesUpOnTokenFileChange", "WakesUpOnAtomicWriterRotation" and
/// "HandlesBurstRotations".
#[test]
fn rotated_pod_token_triggers_one_refresh_even_in_a_burst() {
    in_pod(|_, kubernetes, mut pod| {
        let audit = kubernetes.api.audit().unwrap();
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(
            token_requests(&audit, &pod).unwrap(),
            1,
            "the next one is hours away"
        );

        let authority = kubernetes.api.authority_certificate();
        let own = kubernetes.api.token(NAMESPACE, "calico-node").unwrap();
        // On a busy machine, the events of a rotation or of a burst may otherwise come too far
        // apart.
        agent.while_frozen(|| pod.mount(&own, &authority)).unwrap();
        await_that(PATIENCE, || Ok(token_requests(&audit, &pod)? == 2)).unwrap();
        agent.await_metric("token_refreshes_total", 2).unwrap();

        agent
            .while_frozen(|| (0..5).try_for_each(|_| pod.mount(&own, &authority)))
            .unwrap();
        agent.await_metric("token_refreshes_total", 3).unwrap();
        // Longer than the time for which the agent collects events.
        thread::sleep(Duration::from_millis(500));
        assert_eq!(token_requests(&audit, &pod).unwrap(), 3);
    });
}

/// Covers upstream's case "RecoversAfterTransientUpdateTokenError".
#[test]
fn failed_token_request_is_retried() {
    in_pod(|host, kubernetes, _| {
        let proxy = kubernetes.api.proxy().unwrap();
        let pod =
            integration_tests::node_pod::NodePod::new(host, &kubernetes.api, &proxy.endpoint())
                .unwrap();
        proxy.arm(Some((
            Point::First("POST", "/token"),
            Fault::Refuse(Refusal::of(500)),
        )));
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("token_refresh_failures_total").unwrap(), 1);
        assert!(agent.log().contains(
            "issued no token for kube-system/calico-cni-plugin: the proxy says so (500)"
        ));
    });
}

#[test]
fn token_of_a_recreated_account_is_replaced_before_its_expiry() {
    in_pod(|_, kubernetes, mut pod| {
        pod.set("CNI_TOKEN_TRIAL_INTERVAL", "1s");
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let before = pod.token().unwrap();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{PLUGINS}");
        kubernetes.api.admin().delete(&path).unwrap().success();
        kubernetes.api.service_account(NAMESPACE, PLUGINS).unwrap();
        agent.await_metric("token_refused_total", 1).unwrap();
        agent.await_metric("token_refreshes_total", 2).unwrap();
        assert_ne!(pod.token().unwrap(), before);
        assert!(user(kubernetes, &pod).is_some());
        assert!(
            agent
                .log()
                .contains("the API server rejected the previous token")
        );
    });
}

/// The API server accepts a token for up to ten seconds after its Node was deleted, if it has just
/// accepted it. A test of the token in that time finds nothing, so the next one must follow soon.
/// Shows SEC-91.
#[test]
fn token_bound_to_a_recreated_node_is_replaced_at_the_second_test_of_the_default_interval() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, kubernetes, mut pod| {
        const INTERVAL: i32 = 15;
        let (api, admin) = (&kubernetes.api, kubernetes.api.admin());
        admin.node("node1").unwrap();
        for (name, value) in [
            ("CNI_TOKEN_BOUND_TO_NODE", "true"),
            ("KUBERNETES_NODE_NAME", "node1"),
        ] {
            pod.set(name, value);
        }
        let mut agent = ClockedAgent::start(&pod);
        agent.await_page("/readiness", 200).unwrap();
        let before = pod.token().unwrap();
        let (plugins, audit) = (pod.client(api).unwrap(), api.audit().unwrap());
        let tests = |code: u16| -> Result<usize> {
            let is_test =
                |request: &&Request| request.resource == "/version" && request.code == Some(code);
            Ok(audit.requests()?.iter().filter(is_test).count())
        };
        // The server remembers this answer.
        plugins.get("/livez").unwrap().success();
        admin.delete("/api/v1/nodes/node1").unwrap().success();
        admin.node("node1").unwrap();
        agent.sleep(INTERVAL);
        await_that(PATIENCE, || Ok(tests(200)? == 1)).unwrap();
        assert_eq!(agent.metric("token_refused_total").unwrap(), 0);

        await_that(PATIENCE, || Ok(plugins.get("/livez")?.code == 401)).unwrap();
        // On a busy machine, that may take longer than the interval.
        if agent.metric("token_refreshes_total").unwrap() < 2 {
            agent.sleep(INTERVAL);
        }
        agent.await_metric("token_refreshes_total", 2).unwrap();
        assert_ne!(pod.token().unwrap(), before);
        assert!(user(kubernetes, &pod).is_some());
        assert_eq!((tests(200).unwrap(), tests(401).unwrap()), (1, 1));
    });
}

#[test]
fn install_replaces_a_token_that_is_not_bound_to_the_node() {
    in_pod(|_, kubernetes, mut pod| {
        kubernetes.api.admin().node("node1").unwrap();
        install(&mut pod);
        assert!(claims(&pod.token().unwrap())["kubernetes.io"]["node"].is_null());
        pod.set("CNI_TOKEN_BOUND_TO_NODE", "true");
        install(&mut pod);
        let bound = pod.token().unwrap();
        assert_eq!(claims(&bound)["kubernetes.io"]["node"]["name"], "node1");
        install(&mut pod);
        assert_eq!(pod.token().unwrap(), bound, "a fresh token is kept");
    });
}

/// The new key also makes the pod's own token invalid.
#[test]
fn rotated_signing_key_leads_to_a_new_token() {
    in_pod(|_, kubernetes, mut pod| {
        pod.set("CNI_TOKEN_TRIAL_INTERVAL", "1s");
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let before = pod.token().unwrap();
        kubernetes.api.rotate_token_key().unwrap();
        agent.await_log("rejects the token of this pod").unwrap();
        let own = kubernetes.api.token(NAMESPACE, "calico-node").unwrap();
        pod.mount(&own, &kubernetes.api.authority_certificate())
            .unwrap();
        await_that(PATIENCE, || Ok(user(kubernetes, &pod).is_some())).unwrap();
        assert_ne!(pod.token().unwrap(), before);
        agent.await_page("/readiness", 200).unwrap();
    });
}

#[test]
fn deleted_kubeconfig_is_written_again() {
    in_pod(|_, kubernetes, mut pod| {
        pod.set("CNI_TOKEN_TRIAL_INTERVAL", "200ms");
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        std::fs::remove_file(pod.kubeconfig()).unwrap();
        await_that(PATIENCE, || Ok(user(kubernetes, &pod).is_some())).unwrap();
    });
}
