//! `calico doctor --repair`: interfaces of ended containers go, and all others stay.
//!
//! Tests run in the order of their names. The test that waits longest is in this module, whose name
//! is early, so that other tests run during the wait.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use integration_tests::command::{ip, ip_json, present};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::etcd::ENDPOINT;
use integration_tests::namespaces::{Host, NETNS_DIR, with_own_processes};
use integration_tests::plugin::{Outcome, Plugins};
use integration_tests::runtime::{Runtime, start_containerd};
use integration_tests::server_process::ServerProcess;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use crate::etcd::{Node, on_etcd};
use crate::scene::{NODE, Scene, on_a_good_node};

/// Longer than the 60 s between two looks, in which the command waits.
const DEADLINE: Duration = Duration::from_secs(180);

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

fn conf() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "nodename": "node1",
        "nodename_file_optional": true, "ipam": { "type": "calico-ipam" },
        "datastore_type": "etcdv3",
        "etcd_endpoints": ENDPOINT,
    })
}

/// Connects a container of this name, which is also the ID. Returns its first address.
fn add(host: &Host, name: &str) -> String {
    let netns = host.add_pod(name).unwrap();
    let result = Plugins::locate()
        .unwrap()
        .verb("calico", "ADD", name, &netns, &conf())
        .run()
        .unwrap()
        .success();
    first_address(&result)
}

fn first_address(result: &Value) -> String {
    result["ips"][0]["address"]
        .as_str()
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned()
}

fn interface(name: &str) -> String {
    format!("cali{name}")
}

/// Deletes the endpoint of a container from etcd.
fn delete_endpoint(node: &Node, name: &str) {
    let stored = node.etcd.dump().unwrap();
    let is_wanted = |value: &Value| value["spec"]["interfaceName"] == interface(name).as_str();
    let (key, _) = stored.iter().find(|(_, value)| is_wanted(value)).unwrap();
    node.etcd.delete(key).unwrap();
}

/// Returns the names of the interfaces that begin like those of pods.
fn interfaces() -> Vec<String> {
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

/// Runs a test on a node in etcd, with a container runtime at a socket.
fn on_a_node(test: impl FnOnce(&Host, &mut Node, &Runtime, &Path) + Send) {
    let on_host = |host: &Host, node: &mut Node| {
        let socket = host.dir("cri").join("cri.sock");
        let runtime = Runtime::listen(&socket).unwrap();
        test(host, node, &runtime, &socket);
    };
    with_own_processes(|| on_etcd(json!({}), on_host));
}

/// Runs doctor with `--repair` on a node in etcd.
fn repair(node: &Node, socket: &Path) -> (Vec<Value>, Outcome) {
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
            .run()
            .unwrap(),
    )
}

fn repairs(outcome: Outcome) -> (Vec<Value>, Outcome) {
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
    with_own_processes(|| {
        thread::scope(|scope| {
            scope.spawn(repair_removes_an_interface_kept_by_a_mount);
            scope.spawn(repair_without_rights_removes_nothing_and_names_the_missing_one);
            if has_containerd {
                scope.spawn(repair_removes_the_interface_of_a_deleted_pod_and_keeps_those_of_pods);
            }
        });
    });
    if !has_containerd {
        skipped("there is no containerd: run tests/install-go-tools.sh containerd");
    }
}

fn repair_removes_an_interface_kept_by_a_mount() {
    on_a_node(|host, node, runtime, socket| {
        let address = add(host, "dead1");
        add(host, "live1");
        delete_endpoint(node, "dead1");
        let process = InPod::start("live1");
        runtime.set_sandboxes(&["other"]);
        let (repaired, outcome) = repair(node, socket);
        let expected = json!([{
            "interface": "calidead1", "container": "dead1", "addresses": [address], "removed": true,
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
    });
}

#[test]
fn repair_keeps_interfaces_of_live_pods_and_of_others() {
    on_a_node(|host, node, runtime, socket| {
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
    });
}

#[test]
fn repair_without_the_runtime_removes_nothing() {
    on_a_node(|host, node, runtime, socket| {
        add(host, "dead1");
        delete_endpoint(node, "dead1");
        runtime.set_broken(true);
        for socket in [socket, host.dir("cri").join("none.sock").as_path()] {
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
        let (repaired, outcome) = repairs(
            Plugins::locate()
                .unwrap()
                .call("calico")
                .args(words)
                .run()
                .unwrap(),
        );
        assert!(
            reasons(&repaired)[0]
                .1
                .starts_with("no socket of a container runtime exists"),
            "{outcome:?}"
        );
        assert_eq!(interfaces(), ["calidead1"]);
    });
}

/// Tenants write the annotations that the runtime lists. The agent, which looks in the same way,
/// has little memory.
#[test]
fn repair_reads_no_list_of_sandboxes_that_is_too_large() {
    on_a_node(|host, node, runtime, socket| {
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
    });
}

/// Without SYS_PTRACE a process may not see all others, and without NET_ADMIN it removes no
/// interface.
fn repair_without_rights_removes_nothing_and_names_the_missing_one() {
    on_a_node(|host, node, runtime, socket| {
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
        let (repaired, outcome) = repairs(
            call()
                .under("setpriv --bounding-set=-sys_ptrace")
                .run()
                .unwrap(),
        );
        let reason =
            "this process lacks the capability SYS_PTRACE, which shows the processes of the node";
        assert_eq!(
            (reasons(&repaired), runtime.calls()),
            (vec![("calidead2", reason)], 0),
            "{outcome:?}"
        );
        let (repaired, outcome) = repairs(
            call()
                .under("setpriv --bounding-set=-net_admin")
                .run()
                .unwrap(),
        );
        let [("calidead2", reason)] = reasons(&repaired)[..] else {
            panic!("{outcome:?}")
        };
        assert!(reason.contains("Operation not permitted"), "{reason}");
        assert_eq!(
            (outcome.exit, interfaces()),
            (Some(1), vec!["calidead2".to_owned()])
        );
    });
}

/// A tenant has each right in the network namespace of its pod. It moves the pod's end into a
/// namespace without a process, sets it down, or deletes its address.
#[test]
fn tenant_in_its_namespace_loses_no_interface() {
    on_a_node(|host, node, runtime, socket| {
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
    });
}

/// Creates a pod, and connects its container. Returns the path of the pod.
fn add_pod(scene: &Scene<'_>, name: &str) -> String {
    let api = &scene.kubernetes.api;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "shop" },
        "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "none" }] },
    });
    api.admin()
        .create("/api/v1/namespaces/shop/pods", &pod)
        .unwrap()
        .success()
        .unwrap();
    ip(&format!("netns add {name}")).unwrap();
    call(scene, "calico", "ADD", name);
    format!("/api/v1/namespaces/shop/pods/{name}")
}

/// Calls a plugin for the container of a pod.
fn call(scene: &Scene<'_>, program: &str, verb: &str, name: &str) {
    let conf = json!({
        "cniVersion": "1.0.0", "name": "k8s-pod-network", "type": "calico", "log_level": "error",
        "datastore_type": "kubernetes", "calico_api_group": "crd.projectcalico.org/v1",
        "kubernetes": { "kubeconfig": scene.pod.kubeconfig() }, "nodename": NODE,
        "nodename_file_optional": true,
        "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
    });
    let call = Plugins::locate().unwrap().verb(
        program,
        verb,
        name,
        &Path::new(NETNS_DIR).join(name),
        &conf,
    );
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
    call.env("CNI_ARGS", args).run().unwrap().success();
}

/// Connects a pod as [`add_pod`] does, and deletes the host route to its address.
fn add_pod_without_a_route(scene: &Scene<'_>, name: &str) -> String {
    let before = interfaces();
    let path = add_pod(scene, name);
    let interface = interfaces()
        .into_iter()
        .find(|interface| !before.contains(interface))
        .unwrap();
    let route = ip_json(&format!("route show dev {interface}")).unwrap();
    ip(&format!(
        "route delete {} dev {interface}",
        route[0]["dst"].as_str().unwrap()
    ))
    .unwrap();
    path
}

/// A real containerd lists no sandbox. The address of the deleted pod stays allocated until garbage
/// collection.
fn repair_removes_the_interface_of_a_deleted_pod_and_keeps_those_of_pods() {
    on_a_good_node(|scene| {
        let directory = scene.pod.container.path("containerd");
        std::fs::create_dir_all(&directory).unwrap();
        let mut containerd = ServerProcess::default();
        let socket = start_containerd(&mut containerd, &directory)
            .unwrap()
            .display()
            .to_string();
        let api = &scene.kubernetes.api;
        api.namespace("shop").unwrap();
        // Only the handle of its container leads to this pod.
        add_pod_without_a_route(scene, "kept");
        // IPAM names no pod for this interface, as for the target of a live migration.
        let unnamed = add_pod_without_a_route(scene, "unnamed");
        call(scene, "calico-ipam", "DEL", "unnamed");
        api.admin().delete(&unnamed).unwrap().success().unwrap();
        let before = interfaces();
        let gone = add_pod(scene, "gone");
        api.admin().delete(&gone).unwrap().success().unwrap();
        let words = [
            "doctor",
            "--repair",
            "-o",
            "json",
            "--runtime-socket",
            socket.as_str(),
        ];
        let (repaired, outcome) =
            repairs(scene.pod.calico(&words).deadline(DEADLINE).run().unwrap());
        assert_eq!(interfaces(), before, "{outcome:?}");
        let mut results: Vec<_> = repaired
            .iter()
            .map(|repair| {
                (
                    repair["container"].as_str().unwrap(),
                    &repair["removed"],
                    repair["reason"].as_str(),
                )
            })
            .collect();
        results.sort_by_key(|(container, ..)| *container);
        let [gone, kept, ("unnamed", removed, Some(reason))] = results[..] else {
            panic!("{results:?}")
        };
        assert_eq!(gone, ("gone", &json!(true), None));
        assert_eq!(kept, ("kept", &json!(false), Some("an endpoint has it")));
        assert_eq!(removed, &json!(false));
        assert!(reason.contains("IPAM names no pod"), "{reason}");
    });
}

/// The block of the address has the size that the pool had before.
#[test]
fn doctor_finds_the_pod_of_an_address_in_a_block_of_a_former_size() {
    on_a_good_node(|scene| {
        scene.kubernetes.api.namespace("shop").unwrap();
        add_pod(scene, "web");
        scene.patch("ippools/pool", &json!({ "spec": { "blockSize": 29 } }));
        let report = scene.pod.calico(&["doctor", "-o", "json"]).run().unwrap();
        let report = crate::scene::Said::of(&report);
        let words = report.words("interfaces of pods");
        assert!(
            words.starts_with("1 interfaces, each with an endpoint"),
            "{words}"
        );
    });
}

#[test]
fn runtime_socket_without_repair_is_refused() {
    let call = Plugins::locate().unwrap().call("calico").args([
        "doctor",
        "--runtime-socket",
        "/run/x.sock",
    ]);
    let outcome = call.run().unwrap();
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
