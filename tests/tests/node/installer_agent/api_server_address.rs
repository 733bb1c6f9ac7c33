//! API servers by IPv6 alone, by a name with addresses of both families, and beside variables of a
//! proxy.

use std::fs;
use std::net::TcpListener;

use integration_tests::command::ip;
use integration_tests::kubernetes::Kubernetes;
use integration_tests::namespaces::Host;
use integration_tests::node_pod::NAMESPACE;
use nix::mount::{MsFlags, mount};

use crate::installer_agent::pod::{PLUGINS, in_pod, install, pod_at, user};

/// Installs in a pod that reaches the API server by `url`, and waits until the agent is ready.
/// Returns the plugins' kubeconfig.
fn installs_at(
    host: &Host,
    kubernetes: &Kubernetes,
    url: &str,
    variables: &[(&str, &str)],
) -> String {
    let mut pod = pod_at(host, &kubernetes.api, url);
    variables
        .iter()
        .for_each(|(name, value)| pod.set(name, *value));
    install(&mut pod);
    let agent = pod.agent().unwrap();
    agent.await_metric("token_refreshes_total", 1).unwrap();
    agent.await_page("/readiness", 200).unwrap();
    assert_eq!(
        user(kubernetes, &pod).unwrap(),
        format!("system:serviceaccount:{NAMESPACE}:{PLUGINS}")
    );
    fs::read_to_string(pod.kubeconfig()).unwrap()
}

#[test]
fn install_and_refresh_work_with_an_ipv6_only_api_server() {
    in_pod(|host, kubernetes, _| {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let url = format!("https://[::1]:{}", listener.local_addr().unwrap().port());
        let _proxy = kubernetes.api.proxy_on(listener).unwrap();
        let kubeconfig = installs_at(host, kubernetes, &url, &[]);
        assert!(
            kubeconfig.contains(&format!("server: {url}\n")),
            "{kubeconfig}"
        );
    });
}

/// As on a node of a dual-stack cluster with IPv4 only.
#[test]
fn install_and_refresh_work_with_a_name_of_which_one_address_is_unreachable() {
    in_pod(|host, kubernetes, _| {
        let hosts = host.dir("names").join("hosts");
        fs::write(&hosts, "fd00:5::2 localhost\n127.0.0.1 localhost\n").unwrap();
        mount(
            Some(&hosts),
            "/etc/hosts",
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .unwrap();
        let kubeconfig = installs_at(host, kubernetes, "https://localhost:6443", &[]);
        assert!(
            kubeconfig.contains("server: https://localhost:6443\n"),
            "{kubeconfig}"
        );
    });
}

/// An operator may set these variables for all pods. The address is in the API server's
/// certificate, and no client that follows a proxy would reach it directly. Shows SEC-75.
#[test]
fn agent_ignores_proxy_variables() {
    in_pod(|host, kubernetes, _| {
        // A link ends with the test.
        for command in [
            "link add near type veth peer name far",
            "link set far up",
            "link set near up",
            "address add 10.96.0.1/32 dev near",
        ] {
            ip(command).unwrap();
        }
        let listener = TcpListener::bind("10.96.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let _relay = kubernetes.api.proxy_on(listener).unwrap();
        let proxy = "http://127.0.0.1:9";
        let variables = [
            ("HTTPS_PROXY", proxy),
            ("https_proxy", proxy),
            ("HTTP_PROXY", proxy),
            ("NO_PROXY", ""),
        ];
        installs_at(host, kubernetes, &url, &variables);
    });
}
