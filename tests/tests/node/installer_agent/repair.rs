//! The agent removes interfaces of ended containers, if its settings say so.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use integration_tests::clock::KNOWN;
use integration_tests::command::{ip, ip_json};
use integration_tests::content::Content;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Objects};
use integration_tests::manifests::{deploy, parse};
use integration_tests::namespaces::{NETNS_DIR, in_pid_namespace};
use integration_tests::node_pod::{NAMESPACE, NodePod};
use integration_tests::plugin::Plugins;
use integration_tests::runtime::Runtime;
use integration_tests::skip::skipped;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::json;

use crate::installer_agent::pod::{ClockedAgent, PLUGINS, REASON, in_pod, install};

const GROUP: ApiGroup = ApiGroup::CrdV1;

/// A usual socket, in a directory that each private host has for itself.
const SOCKET: &str = "/run/containerd/containerd.sock";

const REMOVED: &str = "removed an interface that no container uses";

/// Installs in a cluster whose plugins may do everything, on a node whose runtime lists no sandbox.
fn install_beside_a_runtime(api: &ApiServer, pod: &mut NodePod) -> Runtime {
    api.define(GROUP.api_version()).unwrap();
    let store = Store::Kubernetes(Objects::new(api.admin(), GROUP, pod.kubeconfig()));
    store.load(&Content::dual_stack().objects(GROUP)).unwrap();
    api.admin().node("node1").unwrap();
    api.bind(
        &api.service_account(NAMESPACE, PLUGINS).unwrap(),
        "cluster-admin",
    )
    .unwrap();
    install(pod);
    api.namespace("shop").unwrap();
    Runtime::listen(Path::new(SOCKET)).unwrap()
}

/// Connects a pod and deletes it, without the DEL of its container.
fn leave_an_interface(api: &ApiServer, pod: &NodePod, name: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "shop" },
        "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
    });
    api.admin()
        .create("/api/v1/namespaces/shop/pods", &object)
        .unwrap()
        .success();
    ip(&format!("netns add {name}")).unwrap();
    let conf = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "datastore_type": "kubernetes", "calico_api_group": GROUP.api_version(),
        "kubernetes": { "kubeconfig": pod.kubeconfig() }, "nodename": "node1",
        "nodename_file_optional": true,
        "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
    });
    let netns = Path::new(NETNS_DIR).join(name);
    let call = Plugins::locate()
        .unwrap()
        .verb("calico", "ADD", name, &netns, &conf);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
    call.env("CNI_ARGS", args).run().success();
    api.admin()
        .delete(&format!("/api/v1/namespaces/shop/pods/{name}"))
        .unwrap()
        .success();
}

fn interfaces() -> usize {
    let links = ip_json("link show").unwrap();
    let names = links
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|link| link["ifname"].as_str());
    names.filter(|name| name.starts_with("cali")).count()
}

/// Returns a command that starts a program with the rights of the container in deploy/base, with
/// the capabilities that components/remove-dead-interfaces adds.
fn rights_of_the_component() -> String {
    let patch = fs::read_to_string(deploy("components/remove-dead-interfaces/patch.yaml")).unwrap();
    let objects = parse(&patch).unwrap();
    let pod = &objects["DaemonSet.apps kube-system/calico-cni"]["spec"]["template"]["spec"];
    let agent = pod["containers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|container| container["name"] == "cni-agent");
    let added = agent.unwrap()["securityContext"]["capabilities"]["add"]
        .as_array()
        .unwrap();
    let added: String = added
        .iter()
        .map(|name| format!(",+{}", name.as_str().unwrap().to_lowercase()))
        .collect();
    format!("setpriv --no-new-privs --bounding-set=-all{added} --inh-caps=-all")
}

#[test]
fn agent_with_the_rights_of_the_component_removes_dead_interfaces_only_with_the_setting() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pid_namespace(|| {
        in_pod(|_, kubernetes, mut pod| {
            let runtime = install_beside_a_runtime(&kubernetes.api, &mut pod);
            leave_an_interface(&kubernetes.api, &pod, "web");
            let rights = rights_of_the_component();
            let mut agent = ClockedAgent::start_under(&pod, &rights);
            agent.await_page("/readiness", 200).unwrap();
            agent.check_files();
            agent.check_files();
            assert!(
                agent.metric("dead_interfaces").is_err() && agent.metric("repair_unknown").is_err()
            );
            assert_eq!((interfaces(), runtime.calls()), (1, 0));
            agent.terminate().unwrap();

            pod.set("CNI_AGENT_REPAIR", "true");
            let mut agent = ClockedAgent::start_under(&pod, &rights);
            agent.await_metric("dead_interfaces", 1).unwrap();
            let count = |name: &str| agent.metric(name).unwrap();
            assert_eq!(
                (
                    count("dead_interfaces_removed_total"),
                    count("repair_unknown"),
                    interfaces()
                ),
                (0, 0, 1)
            );
            agent.make_check_due();
            agent
                .await_metric("dead_interfaces_removed_total", 1)
                .unwrap();
            assert_eq!(
                (agent.metric("dead_interfaces").unwrap(), interfaces()),
                (0, 0)
            );
            agent.await_log(REMOVED).unwrap();
            agent.terminate().unwrap();
        });
    });
}

#[test]
fn agent_keeps_an_interface_until_the_runtime_answers_and_logs_the_reason_once() {
    if !KNOWN {
        return skipped(REASON);
    }
    in_pid_namespace(|| {
        in_pod(|_, kubernetes, mut pod| {
            let runtime = install_beside_a_runtime(&kubernetes.api, &mut pod);
            leave_an_interface(&kubernetes.api, &pod, "web");
            runtime.set_broken(true);
            pod.set("CNI_AGENT_REPAIR", "true");
            let mut agent = ClockedAgent::start(&pod);
            agent.await_metric("repair_unknown", 1).unwrap();
            for _ in 0..2 {
                // A clock that is advanced during a look ends the request to the runtime, and the
                // next look is after a minute.
                let calls = runtime.calls();
                agent.check_files();
                await_that(PATIENCE, || Ok(runtime.calls() > calls)).unwrap();
                // The answer is counted before the agent has it.
                thread::sleep(Duration::from_millis(300));
            }
            let reason = "keeping interfaces of which it is unknown whether a container uses them";
            assert_eq!(
                (agent.log().matches(reason).count(), interfaces()),
                (1, 1),
                "{}",
                agent.log()
            );
            runtime.set_broken(false);
            agent.make_check_due();
            agent.await_metric("dead_interfaces", 1).unwrap();
            assert_eq!(agent.metric("repair_unknown").unwrap(), 0);
            agent.make_check_due();
            agent
                .await_metric("dead_interfaces_removed_total", 1)
                .unwrap();
            assert_eq!(interfaces(), 0);
        });
    });
}

#[test]
fn agent_with_an_invalid_repair_setting_does_not_start() {
    in_pod(|_, _, mut pod| {
        install(&mut pod);
        pod.set("CNI_AGENT_REPAIR", "yes");
        let mut agent = pod.agent().unwrap();
        assert_eq!(agent.await_exit().unwrap().code(), Some(1));
        agent
            .await_log("CNI_AGENT_REPAIR=yes is invalid; set true or false")
            .unwrap();
    });
}
