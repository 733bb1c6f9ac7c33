//! Obstacles, and whether the installer and the agent continue by themselves when they are gone.

use std::net::TcpListener;

use integration_tests::command::ip;
use integration_tests::installation::NET;
use integration_tests::node_pod::{AGENT_PORT, NodePod, may_make_tokens};
use integration_tests::proxy::{Fault, Point, Refusal};

use crate::installer_agent::pod::{CONF, PLUGINS, in_pod, in_pod_without_rights, pod_at};

/// A template without Calico's plugin, which the installer does not try out.
const TEMPLATE: &str = r#"{"name":"n","cniVersion":"1.0.0","type":"flannel"}"#;

/// On a new node, kube-proxy may start after the installer.
#[test]
fn first_installation_waits_for_an_unreachable_api_server() {
    in_pod(|host, kubernetes, _| {
        let api = &kubernetes.api;
        let proxy = api.proxy().unwrap();
        proxy.go_away();
        let mut pod = pod_at(host, api, &proxy.endpoint());
        pod.set("CNI_NETWORK_CONFIG", TEMPLATE);
        let agent = pod.installer_that_stays().unwrap();
        agent.await_log("trying again: the API server").unwrap();
        assert!(pod.container.names(NET).is_empty(), "{}", agent.log());
        proxy.arm(None);
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(pod.container.names(NET), [CONF, "calico-kubeconfig"]);
    });
}

/// Without kube-proxy, packets to the address of a Service get no answer. The neighbor entry has a
/// wrong hardware address, so that packets to this address are lost.
#[test]
fn first_installation_waits_for_an_api_server_that_swallows_packets() {
    in_pod(|host, kubernetes, _| {
        for args in [
            "link add near type veth peer name far",
            "link set far up",
            "link set near up",
            "address add 10.96.0.2/24 dev near",
            "neighbour add 10.96.0.1 lladdr 02:00:00:00:00:02 dev near nud permanent",
        ] {
            ip(args).unwrap();
        }
        let mut pod = pod_at(host, &kubernetes.api, "https://10.96.0.1:6443");
        pod.set("CNI_NETWORK_CONFIG", TEMPLATE);
        let agent = pod.installer_that_stays().unwrap();
        agent
            .await_log("trying again: the API server https://10.96.0.1:6443 is unreachable")
            .unwrap();
        assert!(
            agent.log().contains("no connection within"),
            "{}",
            agent.log()
        );
        assert!(pod.container.names(NET).is_empty(), "{}", agent.log());
        ip("address add 10.96.0.1/32 dev near").unwrap();
        let _kube_proxy = kubernetes
            .api
            .proxy_on(TcpListener::bind("10.96.0.1:6443").unwrap())
            .unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(pod.container.names(NET), [CONF, "calico-kubeconfig"]);
    });
}

#[test]
fn installation_is_repeated_after_an_error_of_the_api_server_and_not_after_a_refusal() {
    in_pod_without_rights(|host, kubernetes, _| {
        let api = &kubernetes.api;
        let proxy = api.proxy().unwrap();
        let mut pod = NodePod::new(host, api, &proxy.endpoint()).unwrap();
        pod.set("CNI_NETWORK_CONFIG", TEMPLATE);
        pod.set("SLEEP", "false");
        let refused = pod.calico(&["install"]).run();
        assert_eq!(refused.exit, Some(1), "{}", refused.stderr);
        assert!(
            !refused.stderr.contains("trying again"),
            "{}",
            refused.stderr
        );
        may_make_tokens(api, &pod.account, PLUGINS).unwrap();
        proxy.arm(Some((
            Point::First("POST", "/token"),
            Fault::Refuse(Refusal::of(500)),
        )));
        let repeated = pod.calico(&["install"]).run();
        assert_eq!(repeated.exit, Some(0), "{}", repeated.stderr);
        assert!(
            repeated.stderr.contains("trying again: the API server"),
            "{}",
            repeated.stderr
        );
    });
}

#[test]
fn token_due_during_an_outage_is_renewed_once_the_api_server_answers() {
    in_pod(|host, kubernetes, _| {
        let api = &kubernetes.api;
        let proxy = api.proxy().unwrap();
        let mut pod = pod_at(host, api, &proxy.endpoint());
        pod.set("CNI_TOKEN_REFRESH_INTERVAL", "1s");
        let agent = pod.agent().unwrap();
        agent.await_page("/readiness", 200).unwrap();
        proxy.go_away();
        agent
            .await_metric("token_refresh_failures_total", 1)
            .unwrap();
        let refreshes = agent.metric("token_refreshes_total").unwrap();
        proxy.arm(None);
        agent
            .await_metric("token_refreshes_total", refreshes + 1)
            .unwrap();
        agent.await_page("/readiness", 200).unwrap();
    });
}

/// Pods start only with a valid token, but also without the agent's probes.
#[test]
fn agent_renews_the_token_while_another_program_uses_its_port() {
    in_pod(|_, _, pod| {
        let other = TcpListener::bind(("127.0.0.1", AGENT_PORT)).unwrap();
        let agent = pod.agent().unwrap();
        agent.await_log("the plugins have a new token").unwrap();
        assert!(pod.token().is_ok());
        let log = agent.log();
        assert!(
            log.contains(&format!("cannot listen on 127.0.0.1:{AGENT_PORT}: ")),
            "{log}"
        );
        assert!(
            log.contains("CNI_AGENT_LISTEN") && log.contains("until the port is free"),
            "{log}"
        );
        drop(other);
        agent.await_page("/readiness", 200).unwrap();
    });
}
