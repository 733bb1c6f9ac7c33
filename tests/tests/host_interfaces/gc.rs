//! GC leaves containers that run, whichever runtime they are of.

use std::process::{Child, Command, Stdio};

use integration_tests::cluster::Cluster;
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::on_each_datastore;
use integration_tests::plugin::Call;
use serde_json::{Value, json};

use crate::taken::forget_alias;
use crate::{Sandbox, alias_of};

on_each_datastore!(
    a_container_that_runs_is_left_and_named,
    a_container_without_alias_that_runs_is_left_and_named,
    a_container_without_a_process_is_collected,
    a_container_without_alias_and_process_is_collected,
    a_container_without_endpoint_and_process_is_collected,
    a_container_without_carrier_is_collected,
    a_container_that_runs_is_collected_where_the_configuration_says_so,
    a_pod_that_the_list_names_with_another_interface_is_left,
);

/// A process in the network namespace of a sandbox.
struct Process(Child);

impl Process {
    fn start(sandbox: &Sandbox) -> Process {
        let mut nsenter = Command::new("nsenter");
        let netns = format!("--net={}", sandbox.pod.netns.display());
        let mut child =
            nsenter.args([&netns, "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped()).spawn().unwrap();
        // The process is in the namespace when it prints.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Two sandboxes of pods, the first with a process.
struct Node<'a> {
    cluster: &'a Cluster<'a>,
    conf: Value,
    running: Sandbox,
    ended: Sandbox,
    process: Process,
}

impl<'a> Node<'a> {
    fn new(cluster: &'a Cluster<'a>) -> Self {
        cluster.load(&Content::dual_stack());
        let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0", "policy": { "type": "k8s" } }));
        let [running, ended] = [(1, "web-0"), (2, "web-1")].map(|(number, name)| {
            let sandbox = Sandbox::new(cluster, number, "team-a", name);
            let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
            sandbox.call(cluster, "ADD", &conf).run().unwrap().success();
            sandbox
        });
        let process = Process::start(&running);
        Node { cluster, conf, running, ended, process }
    }

    /// GC of a runtime that knows no container.
    fn gc(&self, feature_control: Value) -> Call {
        self.gc_of(json!([]), feature_control)
    }

    fn gc_of(&self, attachments: Value, feature_control: Value) -> Call {
        let mut conf = self.conf.clone();
        conf["cni.dev/valid-attachments"] = attachments;
        conf["feature_control"] = feature_control;
        self.cluster.plugins.call("calico").env("CNI_COMMAND", "GC").stdin(conf.to_string())
    }

    #[track_caller]
    fn assert_left_and_named(&self) {
        let error = self.gc(json!({})).run().unwrap().error();
        let (id, ifname, pid) = (&self.running.pod.container_id, self.running.host_ifname(), self.process.0.id());
        for word in [id, &ifname, &format!("process {pid}"), "feature_control.gc_running_containers"] {
            assert!(error.details.contains(word), "{word} is not in {error:?}");
        }
        assert!(!error.details.contains(&self.ended.pod.container_id), "{error:?}");
        let holders: Vec<String> = self.cluster.accounts().held.into_values().collect();
        assert!(!holders.is_empty() && holders.iter().all(|holder| holder.ends_with(id)), "{holders:?}");
        assert_eq!(self.cluster.endpoints().len(), 1, "the endpoint of the container that runs");
        alias_of(&ifname);
    }

    #[track_caller]
    fn assert_collected(&self, feature_control: Value) {
        self.gc(feature_control).run().unwrap().success();
        self.cluster.assert_nothing_left();
    }
}

fn a_container_that_runs_is_left_and_named(cluster: &Cluster<'_>) {
    let node = Node::new(cluster);
    node.assert_left_and_named();
    // Each call says so again.
    node.assert_left_and_named();
}

fn a_container_without_alias_that_runs_is_left_and_named(cluster: &Cluster<'_>) {
    let node = Node::new(cluster);
    forget_alias(&node.running.host_ifname());
    node.assert_left_and_named();
}

fn a_container_without_a_process_is_collected(cluster: &Cluster<'_>) {
    let mut node = Node::new(cluster);
    node.assert_left_and_named();
    node.process = Process::start(&node.ended);
    node.assert_collected(json!({}));
}

fn a_container_without_alias_and_process_is_collected(cluster: &Cluster<'_>) {
    let mut node = Node::new(cluster);
    forget_alias(&node.running.host_ifname());
    node.assert_left_and_named();
    node.process = Process::start(&node.ended);
    node.assert_collected(json!({}));
}

fn a_container_without_endpoint_and_process_is_collected(cluster: &Cluster<'_>) {
    let mut node = Node::new(cluster);
    node.assert_left_and_named();
    node.process = Process::start(&node.ended);
    for key in cluster.store.dump().unwrap().into_keys().filter(|key| key.contains("/workloadendpoints/")) {
        cluster.store.delete(&key).unwrap();
    }
    node.assert_collected(json!({}));
}

fn a_container_without_carrier_is_collected(cluster: &Cluster<'_>) {
    let node = Node::new(cluster);
    ip(&format!("-n {} link set eth0 down", node.running.pod.name)).unwrap();
    node.assert_collected(json!({}));
}

fn a_container_that_runs_is_collected_where_the_configuration_says_so(cluster: &Cluster<'_>) {
    Node::new(cluster).assert_collected(json!({ "gc_running_containers": true }));
}

fn a_pod_that_the_list_names_with_another_interface_is_left(cluster: &Cluster<'_>) {
    let node = Node::new(cluster);
    let before = cluster.state();
    let named = |sandbox: &Sandbox| json!({ "containerID": sandbox.pod.container_id, "ifname": "net1" });
    node.gc_of(json!([named(&node.running), named(&node.ended)]), json!({})).run().unwrap().success();
    assert_eq!(cluster.state(), before);
}
