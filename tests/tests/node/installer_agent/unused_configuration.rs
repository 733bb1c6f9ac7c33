//! The agent while container runtimes do not use its configuration.

use std::fs;

use integration_tests::clock::KNOWN;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::installation::NET;
use integration_tests::kubernetes::{Kubernetes, Request};
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use crate::installer_agent::pod::{ClockedAgent, REASON, in_pod, install, token_requests};

#[test]
fn agent_is_not_ready_while_another_networks_file_sorts_first() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let other = pod.container.path(NET).join("10-aws.conflist");
        fs::write(
            &other,
            r#"{"name":"aws-cni","plugins":[{"type":"aws-cni"}]}"#,
        )
        .unwrap();
        let mut agent = ClockedAgent::start(&pod);
        let reason =
            "use /etc/cni/net.d/10-aws.conflist, not 10-calico.conflist: the first name wins";
        agent.await_reason(&[reason]).unwrap();
        let metric = |name: &str| agent.metric(name).unwrap();
        assert_eq!((metric("config_chosen"), metric("install_ok")), (0, 1));
        assert_eq!(
            agent.page("/liveness").unwrap().code,
            200,
            "a restart would not help"
        );
        fs::remove_file(other).unwrap();
        agent.make_check_due();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("config_chosen").unwrap(), 1);
        assert_eq!(agent.log().matches(reason).count(), 1, "{}", agent.log());
    });
}

/// Multus' file sorts first, and calls Calico's configuration.
#[test]
fn agent_behind_multus_is_ready() {
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        let multus = r#"{"name":"multus-cni-network","type":"multus","clusterNetwork":"10-calico.conflist"}"#;
        fs::write(pod.container.path(NET).join("00-multus.conf"), multus).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        agent.await_metric("config_chosen", 1).unwrap();
    });
}

/// Kubelet's message while the runtime has no configuration.
const NO_NETWORK: &str = "container runtime network not ready: NetworkReady=false \
                          reason:NetworkPluginNotReady message:Network plugin returns error: cni \
                          plugin not initialized";

fn report(kubernetes: &Kubernetes, status: &str, message: &str) {
    let condition: Value = json!({
        "type": "Ready", "status": status, "reason": "KubeletNotReady", "message": message,
    });
    let status = json!({ "status": { "conditions": [condition] } });
    kubernetes
        .api
        .admin()
        .patch("/api/v1/nodes/node1/status", &status)
        .unwrap()
        .success();
}

#[test]
fn agent_is_not_ready_while_kubelet_reports_no_network() {
    in_pod(|_, kubernetes, mut pod| {
        kubernetes.api.admin().node("node1").unwrap();
        report(kubernetes, "False", NO_NETWORK);
        install(&mut pod);
        pod.set("CNI_NODE_CONDITION_INTERVAL", "200ms");
        let agent = pod.agent().unwrap();
        agent
            .await_reason(&[
                "kubelet reports for Node node1",
                "cni plugin not initialized",
                "/etc/cni/net.d",
            ])
            .unwrap();
        assert_eq!(agent.metric("node_network_ready").unwrap(), 0);
        // A node that is not ready for another reason does not concern the agent.
        report(kubernetes, "False", "PLEG is not healthy");
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(agent.metric("node_network_ready").unwrap(), 1);
    });
}

#[test]
fn agent_without_the_option_reads_no_node_and_claims_nothing() {
    in_pod(|_, kubernetes, mut pod| {
        kubernetes.api.admin().node("node1").unwrap();
        report(kubernetes, "False", NO_NETWORK);
        install(&mut pod);
        pod.set("CNI_TOKEN_REFRESH_INTERVAL", "200ms");
        let audit = kubernetes.api.audit().unwrap();
        let agent = pod.agent().unwrap();
        // With the option, the agent reads the Node when it starts.
        await_that(PATIENCE, || Ok(token_requests(&audit, &pod)? >= 5)).unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let metrics = agent.page("/metrics").unwrap().body;
        assert!(!metrics.contains("node_network_ready"), "{metrics}");
        let requests = audit.of(&pod.account.user).unwrap();
        assert!(
            requests.iter().all(|request| request.resource != "nodes"),
            "{requests:?}"
        );
    });
}

/// A missing Node has the same effect as a missing right to read it.
#[test]
fn agent_that_cannot_read_its_node_claims_nothing() {
    in_pod(|_, kubernetes, mut pod| {
        install(&mut pod);
        pod.set("CNI_NODE_CONDITION_INTERVAL", "200ms");
        let audit = kubernetes.api.audit().unwrap();
        let agent = pod.agent().unwrap();
        let is_read = |request: &Request| request.resource == "nodes";
        let reads = || {
            audit
                .of(&pod.account.user)
                .unwrap()
                .into_iter()
                .filter(is_read)
                .count()
        };
        await_that(PATIENCE, || Ok(reads() >= 3)).unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert!(agent.metric("node_network_ready").is_err());
        let log = agent.log();
        assert_eq!(
            log.matches("cannot read the Ready condition of the Node")
                .count(),
            1,
            "{log}"
        );
    });
}
