//! `calico doctor --repair`: interfaces of ended containers go, and all others stay.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use integration_tests::cluster::{self, Cluster};
use integration_tests::command::{ip, ip_json, present};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::namespaces::in_pid_namespace;
use integration_tests::plugin::{Outcome, Plugins};
use integration_tests::runtime::Runtime;
use integration_tests::skip::skipped;
use integration_tests::{Place, on};
use serde_json::{Value, json};

use crate::installer_doctor::etcd_node::{EtcdNode, add, first_address};
use crate::installer_doctor::kubernetes_node;
use crate::installer_doctor::pods::keeps_interfaces_of_pods;

/// Longer than the 60 s between two looks, in which the command waits.
pub(crate) const DEADLINE: Duration = Duration::from_secs(180);

/// A process in the network namespace of a pod. Killed on drop.
struct InPod(Child);

impl InPod {
    fn start(pod: &str) -> InPod {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", pod, "sleep", "1000"])
            .stdin(Stdio::null());
        let started = InPod(command.spawn().unwrap());
        // `ip` enters the namespace before it becomes `sleep`.
        let name = format!("/proc/{}/comm", started.0.id());
        let runs = || Ok(std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
        await_that(PATIENCE, runs).unwrap();
        started
    }
}

impl Drop for InPod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn interface(name: &str) -> String {
    format!("cali{name}")
}

/// Deletes the endpoint of a container from etcd.
fn delete_endpoint(node: &EtcdNode<'_>, name: &str) {
    let stored = node.etcd.dump().unwrap();
    let is_wanted = |value: &Value| value["spec"]["interfaceName"] == interface(name).as_str();
    let (key, _) = stored.iter().find(|(_, value)| is_wanted(value)).unwrap();
    node.etcd.delete(key).unwrap();
}

/// Returns the names of the interfaces that begin like those of pods.
pub(crate) fn interfaces() -> Vec<String> {
    let links = ip_json("link show").unwrap();
    let names = links
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|link| link["ifname"].as_str());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with("cali"))
        .map(str::to_owned)
        .collect();
    names.sort();
    names
}

/// Runs a test in a PID namespace, in which root sees the network namespace of each process.
fn on(place: Place, test: fn(&mut Cluster<'_>)) {
    in_pid_namespace(|| cluster::on(place, test));
}

/// Installs a node with a container runtime. Returns both, and the socket of the runtime.
fn node_with_runtime<'c>(cluster: &'c mut Cluster<'_>) -> (EtcdNode<'c>, Runtime, PathBuf) {
    let socket = cluster.host.dir("cri").join("cri.sock");
    let runtime = Runtime::listen(&socket).unwrap();
    (EtcdNode::new(cluster, json!({})), runtime, socket)
}

/// Runs doctor with `--repair` on a node in etcd.
fn repair(node: &EtcdNode<'_>, socket: &Path) -> (Vec<Value>, Outcome) {
    let root = node.container.path("").display().to_string();
    let socket = socket.display().to_string();
    let words = [
        "doctor",
        "--repair",
        "-o",
        "json",
        "--runtime-socket",
        socket.as_str(),
        "--root",
        root.as_str(),
    ];
    repairs(
        Plugins::locate()
            .unwrap()
            .call("calico")
            .args(words)
            .deadline(DEADLINE)
            .run(),
    )
}

pub(crate) fn repairs(outcome: Outcome) -> (Vec<Value>, Outcome) {
    let report = serde_json::from_str::<Value>(&outcome.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    (report["repairs"].as_array().unwrap().clone(), outcome)
}

/// Returns the reasons by interface. No interface was removed.
#[track_caller]
fn reasons(repairs: &[Value]) -> Vec<(&str, &str)> {
    assert!(
        repairs.iter().all(|repair| repair["removed"] == false),
        "{repairs:?}"
    );
    repairs
        .iter()
        .map(|repair| {
            (
                repair["interface"].as_str().unwrap(),
                repair["reason"].as_str().unwrap(),
            )
        })
        .collect()
}

/// Each of these repairs waits a minute before its second look, so they run at the same time, each
/// on its own host. Their containers have different names, because a repair keeps the interface of
/// a container with a running CNI call.
#[test]
fn repair_after_a_second_look_removes_only_dead_interfaces() {
    let has_containerd = present("containerd");
    in_pid_namespace(|| {
        thread::scope(|scope| {
            scope.spawn(|| on(Place::Etcd, removes_an_interface_kept_by_a_mount));
            scope.spawn(|| on(Place::Etcd, names_the_missing_right_and_removes_nothing));
            if has_containerd {
                scope.spawn(|| kubernetes_node::on(Place::KubernetesV1, keeps_interfaces_of_pods));
            }
        });
    });
    if !has_containerd {
        skipped("there is no containerd: run tests/install-go-tools.sh containerd");
    }
}

fn removes_an_interface_kept_by_a_mount(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let (node, runtime, socket) = &node_with_runtime(cluster);
    let added = add(host, "dead1");
    add(host, "live1");
    delete_endpoint(node, "dead1");
    let process = InPod::start("live1");
    runtime.set_sandboxes(&["other"]);
    let (repaired, outcome) = repair(node, socket);
    let expected = json!([{
        "interface": "calidead1", "container": "dead1", "addresses": [first_address(&added)],
        "removed": true,
    }]);
    assert_eq!(Value::Array(repaired), expected, "{outcome:?}");
    assert_eq!((outcome.exit, runtime.calls()), (Some(0), 2));
    assert!(
        outcome
            .stderr
            .contains("waiting 60 s before the second look at 1 interfaces"),
        "{outcome:?}"
    );
    assert_eq!(interfaces(), ["calilive1"]);
    drop(process);
}

/// Shows SEC-51 and SEC-52.
#[on(etcd)]
fn repair_keeps_interfaces_of_live_pods_and_of_others(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let (node, runtime, socket) = &node_with_runtime(cluster);
    let names = [
        "endpoint1",
        "process1",
        "thread1",
        "sandbox1",
        "upstream1",
        "renamed1",
    ];
    for name in names {
        add(host, name);
    }
    for name in &names[1..] {
        delete_endpoint(node, name);
    }
    let process = InPod::start("process1");
    runtime.set_sandboxes(&["sandbox1"]);
    // An interface of upstream's plugin has no alias, and its MAC address is the same as ours.
    ip("link set dev caliupstream1 alias upstream").unwrap();
    ip("link set dev calirenamed1 alias calico-cni/renamed1/0").unwrap();
    let before = interfaces();
    assert_eq!(before.len(), names.len(), "{before:?}");

    // The main thread of this process is in another namespace than this thread.
    let (entered, has_entered) = channel();
    let (leave, may_leave) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let stayed = host.in_pod("thread1", move || {
                entered.send(())?;
                // Ends when the other end is dropped.
                let _ = may_leave.recv();
                Ok(())
            });
            stayed.unwrap();
        });
        has_entered.recv().unwrap();
        let (repaired, outcome) = repair(node, socket);
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        let expected = [
            ("caliendpoint1", "an endpoint has it"),
            ("calisandbox1", "the container runtime lists its sandbox"),
        ];
        let mut found = reasons(&repaired);
        found.sort_unstable();
        assert_eq!(found, expected);
        drop(leave);
    });
    // There was no second look.
    assert_eq!((interfaces(), runtime.calls()), (before, 1));
    drop(process);
}

#[on(etcd)]
fn repair_without_the_runtime_removes_nothing(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let (node, runtime, socket) = &node_with_runtime(cluster);
    add(host, "dead1");
    delete_endpoint(node, "dead1");
    runtime.set_broken(true);
    for socket in [socket, &host.dir("cri").join("none.sock")] {
        let (repaired, outcome) = repair(node, socket);
        let found = reasons(&repaired);
        let begins = format!("container runtime {}: ", socket.display());
        assert!(
            matches!(found[..], [("calidead1", reason)] if reason.starts_with(&begins)),
            "{outcome:?}"
        );
    }
    // Without the option, no usual socket exists on this host.
    let root = node.container.path("").display().to_string();
    let words = ["doctor", "--repair", "-o", "json", "--root", root.as_str()];
    let (repaired, outcome) = repairs(Plugins::locate().unwrap().call("calico").args(words).run());
    assert!(
        reasons(&repaired)[0]
            .1
            .starts_with("no socket of a container runtime exists"),
        "{outcome:?}"
    );
    assert_eq!(interfaces(), ["calidead1"]);
}

/// Tenants write the annotations that the runtime lists. The agent, which looks in the same way,
/// has little memory. Shows SEC-35.
#[on(etcd)]
fn repair_reads_no_list_of_sandboxes_that_is_too_large(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let (node, runtime, socket) = &node_with_runtime(cluster);
    add(host, "dead1");
    delete_endpoint(node, "dead1");
    let long = "x".repeat(1 << 20);
    runtime.set_sandboxes(&[long.as_str(); 17]);
    let (repaired, outcome) = repair(node, socket);
    let [("calidead1", reason)] = reasons(&repaired)[..] else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("too large"), "{reason}");
    assert_eq!(interfaces(), ["calidead1"]);
}

/// Without SYS_PTRACE a process may not see all others, and without NET_ADMIN it removes no
/// interface.
fn names_the_missing_right_and_removes_nothing(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let (node, runtime, socket) = &node_with_runtime(cluster);
    add(host, "dead2");
    delete_endpoint(node, "dead2");
    let root = node.container.path("").display().to_string();
    let socket = socket.display().to_string();
    let words = [
        "doctor",
        "--repair",
        "-o",
        "json",
        "--runtime-socket",
        socket.as_str(),
        "--root",
        root.as_str(),
    ];
    let call = || {
        Plugins::locate()
            .unwrap()
            .call("calico")
            .args(words)
            .deadline(DEADLINE)
    };
    let (repaired, outcome) = repairs(call().under("setpriv --bounding-set=-sys_ptrace").run());
    let reason =
        "this process lacks the capability SYS_PTRACE, which shows the processes of the node";
    assert_eq!(
        (reasons(&repaired), runtime.calls()),
        (vec![("calidead2", reason)], 0),
        "{outcome:?}"
    );
    let (repaired, outcome) = repairs(call().under("setpriv --bounding-set=-net_admin").run());
    let [("calidead2", reason)] = reasons(&repaired)[..] else {
        panic!("{outcome:?}")
    };
    assert!(reason.contains("Operation not permitted"), "{reason}");
    assert_eq!(
        (outcome.exit, interfaces()),
        (Some(1), vec!["calidead2".to_owned()])
    );
}

/// A tenant has each right in the network namespace of its pod. It moves the pod's end into a
/// namespace without a process, sets it down, or deletes its address. Shows SEC-32.
#[on(etcd)]
fn tenant_in_its_namespace_loses_no_interface(cluster: &mut Cluster<'_>) {
    let host = cluster.host;
    let (node, runtime, socket) = &node_with_runtime(cluster);
    for name in ["moved1", "down1"] {
        add(host, name);
        delete_endpoint(node, name);
    }
    let processes = ["moved1", "down1"].map(InPod::start);
    host.add_pod("empty").unwrap();
    ip("-n moved1 link set eth0 netns empty").unwrap();
    ip("-n down1 link set eth0 down").unwrap();
    runtime.set_sandboxes(&["moved1", "down1"]);
    let (repaired, outcome) = repair(node, socket);
    let expected = [("calimoved1", "the container runtime lists its sandbox")];
    assert_eq!(reasons(&repaired), expected, "{outcome:?}");
    assert_eq!(interfaces(), ["calidown1", "calimoved1"]);
    drop(processes);
}

#[test]
fn runtime_socket_without_repair_is_refused() {
    let call = Plugins::locate().unwrap().call("calico").args([
        "doctor",
        "--runtime-socket",
        "/run/x.sock",
    ]);
    let outcome = call.run();
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(2), ""),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("--runtime-socket is for --repair"),
        "{outcome:?}"
    );
}
