//! The metrics of an agent in several states of its node.

use std::fs;

use anyhow::Result;
use integration_tests::installation::NET;
use integration_tests::kubernetes::{ENDPOINT, Kubernetes};
use integration_tests::namespaces::Host;
use integration_tests::node_pod::{Agent, NAMESPACE, NodePod, may_make_tokens};

const PLUGINS: &str = "calico-cni-plugin";

const TEMPLATE: &str = r#"{"name":"n","cniVersion":"1.0.0","type":"calico","kubernetes":{"kubeconfig":"__KUBECONFIG_FILEPATH__"}}"#;

/// Pages of metrics.
pub(crate) struct Agents {
    pub(crate) healthy: String,
    pub(crate) without_rights: String,
    /// The lifetime of the plugins' token is an hour.
    pub(crate) with_a_short_token: String,
    /// A configuration of another network sorts first.
    pub(crate) beside_another_network: String,
    /// The environment differs from the installation.
    pub(crate) of_another_installation: String,
    /// The template of the installed configuration was deleted, so the agent cannot check the file.
    pub(crate) without_its_template: String,
    /// The agent removes dead interfaces; there is none.
    pub(crate) repairing: String,
}

/// Runs agents, one after the other.
pub(crate) fn run_agents(host: &Host, servers: &Kubernetes) -> Agents {
    let api = &servers.api;
    let mut pod = NodePod::new(host, api, ENDPOINT).unwrap();
    api.service_account(NAMESPACE, PLUGINS).unwrap();
    let checked = |agent: &Agent| agent.await_metric("file_checks_total", 1);
    let without_rights = page(&pod, checked);
    may_make_tokens(api, &pod.account, PLUGINS).unwrap();
    for (name, value) in [
        ("SLEEP", "false"),
        ("CNI_TRY_SECONDS", "0"),
        ("KUBERNETES_NODE_NAME", "node1"),
    ] {
        pod.set(name, value);
    }
    install(&pod);
    let healthy = page(&pod, checked);

    pod.set("CNI_AGENT_REPAIR", "true");
    // The first look at the interfaces ends before the first token arrives.
    let repairing = page(&pod, |agent| {
        checked(agent).and_then(|()| agent.await_metric("repair_unknown", 0))
    });
    pod.set("CNI_AGENT_REPAIR", "false");

    pod.set("CNI_TOKEN_LIFETIME", "1h");
    let with_a_short_token = page(&pod, |agent| agent.await_metric("token_refreshes_total", 1));
    pod.set("CNI_TOKEN_LIFETIME", "24h");

    let theirs = r#"{"name":"other","plugins":[{"type":"other"}]}"#;
    let theirs = pod
        .container
        .file(&format!("{NET}/05-other.conflist"), theirs)
        .unwrap();
    let beside_another_network = page(&pod, checked);
    fs::remove_file(theirs).unwrap();

    pod.set(
        "CNI_NETWORK_CONFIG",
        r#"{"name":"another","type":"calico"}"#,
    );
    let of_another_installation = page(&pod, checked);

    let template = pod.container.file("template/cni.json", TEMPLATE).unwrap();
    pod.set("CNI_NETWORK_CONFIG_FILE", "/template/cni.json");
    install(&pod);
    fs::remove_file(template).unwrap();
    let without_its_template = page(&pod, |agent| agent.await_reason(&["template/cni.json"]));
    Agents {
        healthy,
        without_rights,
        with_a_short_token,
        beside_another_network,
        of_another_installation,
        without_its_template,
        repairing,
    }
}

/// Runs an agent until it is as `awaited`, and returns its metrics.
fn page(pod: &NodePod, awaited: impl FnOnce(&Agent) -> Result<()>) -> String {
    let mut agent = pod.agent().unwrap();
    awaited(&agent).unwrap();
    let page = agent.page("/metrics").unwrap().body;
    agent.terminate().unwrap();
    page
}

fn install(pod: &NodePod) {
    let installed = pod.calico(&["install"]).run();
    assert_eq!(installed.exit, Some(0), "{}", installed.stderr);
}
