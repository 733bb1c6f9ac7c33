//! The alerts of `deploy/components/prometheus-rule`, evaluated by Prometheus with the metrics of an agent and of
//! kube-controllers that run here.
//!
//! kube-state-metrics does not run here. Its series have the names and labels of its documentation.

mod evaluation;

use std::fs;

use evaluation::{Series, assert_firing, kube_state, scraped};
use integration_tests::controllers::{PATIENCE, World, await_that};
use integration_tests::installation::NET;
use integration_tests::kubernetes::{ENDPOINT, Kubernetes, with_kubernetes};
use integration_tests::manifests::promtool;
use integration_tests::namespaces::Host;
use integration_tests::node_pod::{NAMESPACE, NodePod, may_make_tokens};
use integration_tests::skip::skipped;
use libcalico::kubernetes::ApiGroup;

const PLUGINS: &str = "calico-cni-plugin";

/// Labels that the monitors of the Prometheus operator add to the series of an agent and of kube-controllers.
const OF_AGENT: &str = r#"job="kube-system/calico-cni",namespace="kube-system",pod="calico-cni-x",instance="n1:1""#;
const OF_CONTROLLERS: &str = r#"job="calico-kube-controllers-metrics",namespace="kube-system",instance="n1:2""#;

struct Pages {
    agent: String,
    agent_without_rights: String,
    /// The agent whose environment differs from the installation.
    agent_of_another_installation: String,
    /// The agent beside a configuration of another network that sorts first.
    agent_beside_another_network: String,
    leader: String,
}

/// Runs the programs, one after the other, and returns their metrics.
fn run_programs(host: &Host, servers: &Kubernetes) -> Pages {
    let api = &servers.api;
    let mut pod = NodePod::new(host, api, ENDPOINT).unwrap();
    api.service_account(NAMESPACE, PLUGINS).unwrap();
    let page = |pod: &NodePod| {
        let mut agent = pod.agent().unwrap();
        agent.await_metric("file_checks_total", 1).unwrap();
        let page = agent.page("/metrics").unwrap().body;
        agent.terminate().unwrap();
        page
    };
    let agent_without_rights = page(&pod);
    may_make_tokens(api, &pod, PLUGINS).unwrap();
    for (name, value) in [("SLEEP", "false"), ("CNI_TRY_SECONDS", "0"), ("KUBERNETES_NODE_NAME", "node1")] {
        pod.set(name, value);
    }
    let installed = pod.calico(&["install"]).run().unwrap();
    assert_eq!(installed.exit, Some(0), "{}", installed.stderr);
    let agent = page(&pod);
    let theirs = r#"{"name":"other","plugins":[{"type":"other"}]}"#;
    let theirs = pod.container.file(&format!("{NET}/05-other.conflist"), theirs).unwrap();
    let agent_beside_another_network = page(&pod);
    fs::remove_file(theirs).unwrap();
    pod.set("CNI_NETWORK_CONFIG", r#"{"name":"another","type":"calico"}"#);
    let agent_of_another_installation = page(&pod);

    let world = World::new(servers, Some(ApiGroup::CrdV1));
    let controllers = world.setup().start(host, "controllers").unwrap();
    let mut leader = String::new();
    let is_leader = await_that(PATIENCE, || {
        leader = metrics_of_controllers().unwrap_or_default();
        Ok(leader.contains("leader_election_master_status{name=\"calico-kube-controllers\"} 1"))
    });
    assert!(is_leader.is_ok(), "{leader}\n{}", controllers.log().unwrap());
    Pages { agent, agent_without_rights, agent_of_another_installation, agent_beside_another_network, leader }
}

fn metrics_of_controllers() -> anyhow::Result<String> {
    let client: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
    Ok(client.get("http://127.0.0.1:9094/metrics").call()?.body_mut().read_to_string()?)
}

#[test]
fn each_alert_fires_in_its_state_alone() {
    if let Err(missing) = promtool() {
        return skipped(&missing.to_string());
    }
    with_kubernetes(|host, servers| {
        let pages = run_programs(host, &servers);
        let directory = host.dir("alerts");
        let up = |value: u8| vec![Series::constant(&format!("up{{{OF_AGENT}}}"), value)];
        let agent = || [scraped(&pages.agent, OF_AGENT), up(1)].concat();
        let leader = || scraped(&pages.leader, OF_CONTROLLERS);
        let available =
            || vec![kube_state("kube_daemonset_status_number_unavailable", r#"daemonset="calico-cni""#, "0x120")];
        let fires = |series: [Vec<Series>; 3], expected: &[&str]| assert_firing(&directory, &series.concat(), expected);

        fires([agent(), leader(), available()], &[]);

        fires([Vec::new(), leader(), available()], &["CalicoCniAgentMissing"]);
        let unanswered = [scraped(&pages.agent, OF_AGENT), up(0)].concat();
        fires([unanswered, leader(), available()], &["CalicoCniAgentMissing"]);

        let without_token = || [scraped(&pages.agent_without_rights, OF_AGENT), up(1)].concat();
        fires([without_token(), leader(), available()], &["CalicoCniNoToken"]);

        let suspended = || [scraped(&pages.agent_of_another_installation, OF_AGENT), up(1)].concat();
        fires([suspended(), leader(), available()], &["CalicoCniFilesNotRestored"]);

        let not_used = [scraped(&pages.agent_beside_another_network, OF_AGENT), up(1)].concat();
        fires([not_used, leader(), available()], &["CalicoCniConfigurationNotUsed"]);

        let waiting = || {
            let status = "leader_election_master_status{name=\"calico-kube-controllers\"}";
            scraped(&pages.leader.replace(&format!("{status} 1"), &format!("{status} 0")), OF_CONTROLLERS)
        };
        fires([agent(), waiting(), available()], &["CalicoNoLeader"]);
        fires([agent(), Vec::new(), available()], &["CalicoNoLeader"]);

        let unavailable =
            vec![kube_state("kube_daemonset_status_number_unavailable", r#"daemonset="calico-cni""#, "2x120")];
        fires([agent(), leader(), unavailable], &["CalicoCniDaemonSetUnavailable"]);

        let container = r#"pod="calico-cni-x",container="install-cni""#;
        let in_state = |reason: &str, values: &str| {
            let labels = format!(r#"{container},reason="{reason}""#);
            vec![kube_state("kube_pod_init_container_status_waiting_reason", &labels, values)]
        };
        // The container runs for a minute between two pauses.
        let looping = in_state("CrashLoopBackOff", &"1 1 1 0 ".repeat(30));
        fires([agent(), leader(), looping], &["CalicoCniInstallationFails"]);
        fires([agent(), leader(), in_state("ImagePullBackOff", "1x120")], &["CalicoCniInstallationFails"]);
        fires([agent(), leader(), in_state("PodInitializing", "1x120")], &[]);
        let restarts = vec![kube_state("kube_pod_init_container_status_restarts_total", container, "0+1x120")];
        fires([agent(), leader(), restarts], &["CalicoCniInstallationFails"]);
    });
}

#[test]
fn promtool_accepts_the_rules() {
    let promtool = match promtool() {
        Ok(promtool) => promtool.display().to_string(),
        Err(missing) => return skipped(&missing.to_string()),
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.json");
    fs::write(&file, evaluation::rules().to_string()).unwrap();
    let checked = integration_tests::command::run(&promtool, &["check", "rules", &file.display().to_string()]).unwrap();
    assert!(checked.contains("SUCCESS: 13 rules found"), "{checked}");
}
