//! GC keeps connected containers with a process, unless `gc_running_containers` is set.

use std::process::{Child, Command, Stdio};

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::plugin::Call;
use serde_json::{Value, json};

use crate::host_interfaces::taken::replace_alias;
use crate::host_interfaces::{Sandbox, alias_of};

/// A process in the network namespace of a sandbox.
struct Process(Child);

impl Process {
    fn start(sandbox: &Sandbox) -> Process {
        let mut nsenter = Command::new("nsenter");
        let netns = format!("--net={}", sandbox.pod.netns.display());
        let mut child = nsenter
            .args([&netns, "sh", "-c", "echo; exec sleep 600"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The process prints once it is in the namespace.
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

/// Two sandboxes of pods on a node, the first with a process.
struct Containers<'a> {
    cluster: &'a Cluster<'a>,
    conf: Value,
    running: Sandbox,
    ended: Sandbox,
    process: Process,
}

impl<'a> Containers<'a> {
    fn new(cluster: &'a Cluster<'a>) -> Self {
        cluster.load(&Content::dual_stack());
        let conf = cluster.conf(
            "node1",
            json!({ "cniVersion": "1.1.0", "policy": { "type": "k8s" } }),
        );
        let [running, ended] = [(1, "web-0"), (2, "web-1")].map(|(number, name)| {
            let sandbox = Sandbox::new(cluster, number, "team-a", name);
            let conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
            sandbox.call(cluster, "ADD", &conf).run().success();
            sandbox
        });
        let process = Process::start(&running);
        Containers {
            cluster,
            conf,
            running,
            ended,
            process,
        }
    }

    /// Prepares a GC with an empty list of attachments.
    fn gc(&self, feature_control: Value) -> Call {
        self.gc_of(json!([]), feature_control)
    }

    fn gc_of(&self, attachments: Value, feature_control: Value) -> Call {
        let mut conf = self.conf.clone();
        conf["cni.dev/valid-attachments"] = attachments;
        conf["feature_control"] = feature_control;
        self.cluster
            .plugins
            .call("calico")
            .env("CNI_COMMAND", "GC")
            .stdin(conf.to_string())
    }

    #[track_caller]
    fn assert_left_and_named(&self) {
        let error = self.gc(json!({})).run().error();
        let (id, ifname, pid) = (
            &self.running.pod.container_id,
            self.running.host_ifname(),
            self.process.0.id(),
        );
        for word in [
            id,
            &ifname,
            &format!("process {pid}"),
            "feature_control.gc_running_containers",
        ] {
            assert!(error.details.contains(word), "{word} is not in {error:?}");
        }
        assert!(
            !error.details.contains(&self.ended.pod.container_id),
            "{error:?}"
        );
        let holders: Vec<String> = self.cluster.accounts().held.into_values().collect();
        assert!(
            !holders.is_empty() && holders.iter().all(|holder| holder.ends_with(id)),
            "{holders:?}"
        );
        assert_eq!(
            self.cluster.endpoints().len(),
            1,
            "the endpoint of the container that runs"
        );
        alias_of(&ifname);
    }

    #[track_caller]
    fn assert_collected(&self, feature_control: Value) {
        self.gc(feature_control).run().success();
        self.cluster.assert_nothing_left();
    }
}

/// Shows SEC-44.
#[on(etcd, local)]
fn gc_keeps_and_names_a_running_container(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    containers.assert_left_and_named();
    containers.assert_left_and_named();
}

/// Shows SEC-44.
#[on(etcd, local)]
fn gc_keeps_and_names_a_running_container_without_alias(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    replace_alias(&containers.running.host_ifname());
    containers.assert_left_and_named();
}

#[on(etcd, local)]
fn gc_collects_a_container_without_a_process(cluster: &Cluster<'_>) {
    let mut containers = Containers::new(cluster);
    containers.assert_left_and_named();
    containers.process = Process::start(&containers.ended);
    containers.assert_collected(json!({}));
}

/// Shows SEC-47.
#[on(etcd, local)]
fn gc_collects_a_container_without_alias_and_process(cluster: &Cluster<'_>) {
    let mut containers = Containers::new(cluster);
    replace_alias(&containers.running.host_ifname());
    containers.assert_left_and_named();
    containers.process = Process::start(&containers.ended);
    containers.assert_collected(json!({}));
}

/// Shows SEC-47.
#[on(etcd, local)]
fn gc_collects_a_container_without_endpoint_and_process(cluster: &Cluster<'_>) {
    let mut containers = Containers::new(cluster);
    containers.assert_left_and_named();
    containers.process = Process::start(&containers.ended);
    for key in cluster
        .store
        .dump()
        .unwrap()
        .into_keys()
        .filter(|key| key.contains("/workloadendpoints/"))
    {
        cluster.store.delete(&key).unwrap();
    }
    containers.assert_collected(json!({}));
}

#[on(etcd, local)]
fn gc_collects_a_container_without_carrier(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    ip(&format!(
        "-n {} link set eth0 down",
        containers.running.pod.name
    ))
    .unwrap();
    containers.assert_collected(json!({}));
}

#[on(etcd, local)]
fn gc_collects_a_running_container_if_configured(cluster: &Cluster<'_>) {
    Containers::new(cluster).assert_collected(json!({ "gc_running_containers": true }));
}

#[on(etcd, local)]
fn gc_keeps_a_pod_listed_with_a_different_interface(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    let before = cluster.state();
    let named =
        |sandbox: &Sandbox| json!({ "containerID": sandbox.pod.container_id, "ifname": "net1" });
    containers
        .gc_of(
            json!([named(&containers.running), named(&containers.ended)]),
            json!({}),
        )
        .run()
        .success();
    assert_eq!(cluster.state(), before);
}

/// Neither of two runtimes lists the containers of the other. Shows SEC-46.
#[on(etcd, local)]
fn gc_keeps_a_pod_of_another_network_and_succeeds(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    for with_alias in [true, false] {
        if !with_alias {
            [&containers.running, &containers.ended]
                .iter()
                .for_each(|sandbox| replace_alias(&sandbox.host_ifname()));
        }
        let before = cluster.state();
        for feature_control in [json!({}), json!({ "gc_running_containers": true })] {
            let mut conf = cluster.conf(
                "node1",
                json!({
                    "cniVersion": "1.1.0", "name": "other-network", "policy": { "type": "k8s" },
                }),
            );
            conf["cni.dev/valid-attachments"] = json!([]);
            conf["feature_control"] = feature_control;
            cluster
                .plugins
                .call("calico")
                .env("CNI_COMMAND", "GC")
                .stdin(conf.to_string())
                .run()
                .success();
            assert_eq!(cluster.state(), before);
        }
    }
    drop(containers);
}

/// The interface has no alias, and IPAM has no address of the container any more. Shows SEC-53.
#[on(etcd, local)]
fn gc_keeps_the_endpoint_of_an_interface_without_ownership_proof(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    replace_alias(&containers.ended.host_ifname());
    let (id, netns) = (
        &containers.ended.pod.container_id,
        &containers.ended.pod.netns,
    );
    cluster
        .plugins
        .verb("calico-ipam", "DEL", id, netns, &containers.conf)
        .run()
        .success();
    let before = cluster.state();
    let running = json!([{ "containerID": containers.running.pod.container_id, "ifname": "eth0" }]);
    let outcome = containers.gc_of(running, json!({})).run();
    if cluster.endpoints().is_empty() {
        // On Kubernetes, GC finds pods by their addresses in IPAM.
        outcome.success();
    } else {
        let error = outcome.error();
        assert!(
            error.details.contains(&format!(
                "remove interface {}",
                containers.ended.host_ifname()
            )),
            "{error:?}"
        );
    }
    assert_eq!(cluster.state(), before);
}

/// An ADD of this network left an address, and the interface is that of another network.
#[on(etcd, local)]
fn gc_of_a_leak_keeps_the_containers_interface_in_another_network(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    let sandbox = Sandbox::new(cluster, 3, "team-a", "web-2");
    let other = cluster.conf(
        "node1",
        json!({ "cniVersion": "1.1.0", "name": "other-network" }),
    );
    sandbox.call(cluster, "ADD", &other).run().success();
    let before = cluster.state();
    let (id, netns) = (&sandbox.pod.container_id, &sandbox.pod.netns);
    cluster
        .plugins
        .verb("calico-ipam", "ADD", id, netns, &containers.conf)
        .run()
        .success();
    let valid = [&containers.running, &containers.ended]
        .map(|sandbox| json!({ "containerID": sandbox.pod.container_id, "ifname": "eth0" }));
    containers
        .gc_of(json!(valid), json!({ "gc_running_containers": true }))
        .run()
        .success();
    assert_eq!(
        (
            alias_of(&sandbox.host_ifname()).is_some(),
            cluster.accounts().held.len()
        ),
        (true, 3)
    );
    let after = cluster.state();
    assert_eq!(
        (&after["host"], &after["pods"]),
        (&before["host"], &before["pods"])
    );
}

/// A tenant's processes may be in more network namespaces than the plugin may have open files.
#[on(etcd, local)]
fn gc_with_few_open_files_keeps_a_running_container(cluster: &Cluster<'_>) {
    const FILES: usize = 40;
    let mut others = Vec::new();
    for number in 10..10 + FILES {
        others.push(Process::start(&Sandbox::new(
            cluster, number, "team-b", "other",
        )));
    }
    let containers = Containers::new(cluster);
    let running = &containers.running.pod.container_id;
    let error = containers
        .gc(json!({}))
        .under(&format!("prlimit --nofile={FILES}"))
        .run()
        .error();
    assert!(error.details.contains(running), "{error:?}");
    assert!(
        cluster
            .accounts()
            .held
            .into_values()
            .any(|handle| handle.ends_with(running))
    );
    alias_of(&containers.running.host_ifname());
}

/// If an interface has no alias, only the block shows the network of its pod.
#[on(etcd, local)]
fn gc_with_unreadable_blocks_keeps_pods_of_unknown_networks(cluster: &Cluster<'_>) {
    let containers = Containers::new(cluster);
    ip(&format!(
        "-n {} link set eth0 down",
        containers.ended.pod.name
    ))
    .unwrap();
    [&containers.running, &containers.ended]
        .iter()
        .for_each(|sandbox| replace_alias(&sandbox.host_ifname()));
    for key in cluster
        .store
        .dump()
        .unwrap()
        .into_keys()
        .filter(|key| key.starts_with("/calico/ipam/v2/assignment/"))
    {
        cluster.store.put(&key, &json!("no block")).unwrap();
    }
    let before = cluster.state();
    let mut conf = containers.conf.clone();
    conf["name"] = json!("other-network");
    conf["cni.dev/valid-attachments"] = json!([]);
    cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "GC")
        .stdin(conf.to_string())
        .run()
        .success();
    assert_eq!(cluster.state(), before);
}
