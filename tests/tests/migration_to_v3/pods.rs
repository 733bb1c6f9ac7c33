//! Pods that start and end on two nodes while a migration runs. kube-controllers run in a pod on the host network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use integration_tests::accounts::Accounts;
use integration_tests::cluster::{NAMESPACE, on_api_server, pod_path};
use integration_tests::content::{Content, NETWORK};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Audit, Client, Objects, Request};
use integration_tests::migration::Migration;
use integration_tests::node::{Node, Sandbox};
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};
use time::OffsetDateTime;

const NODES: [&str; 2] = ["node1", "node2"];
/// Number of pods that run on a node at the same time.
const RUNNING: usize = 5;
/// Pause between two calls of a node. Kubelet repeats a failed call after a second or later.
const PAUSE: Duration = Duration::from_millis(300);

/// Number of calls after which a test fails: more than a lock of some minutes makes fail.
const MOST_CALLS: usize = 1000;

/// A failed call.
#[derive(Debug)]
struct FailedCall {
    verb: &'static str,
    began: OffsetDateTime,
    ended: OffsetDateTime,
    error: String,
}

/// The pods of a node, as its kubelet starts and ends them.
struct Kubelet<'a> {
    node: &'a Node,
    admin: &'a Client,
    pods: Vec<(Sandbox, IpAddr)>,
    started: usize,
    failed: Vec<FailedCall>,
}

impl<'a> Kubelet<'a> {
    fn new(node: &'a Node, admin: &'a Client) -> Kubelet<'a> {
        Kubelet { node, admin, pods: Vec::new(), started: 0, failed: Vec::new() }
    }

    /// Starts and ends pods until `stop`, always the oldest one.
    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if self.pods.len() < RUNNING {
                self.start();
            } else {
                self.end();
            }
            thread::sleep(PAUSE);
        }
    }

    /// Starts a new pod. Repeats a failed ADD in the same sandbox.
    fn start(&mut self) {
        self.started += 1;
        let name = format!("{}-{}", self.node.name, self.started);
        let spec = json!({ "nodeName": self.node.name, "containers": [{ "name": "c", "image": "none" }] });
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.admin.create(&pods, &pod).unwrap().success().unwrap();
        let number = self.started + 1000 * NODES.iter().position(|node| *node == self.node.name).unwrap();
        let sandbox = self.node.sandbox(number, Some((NAMESPACE, &name))).unwrap();
        let answer = self.until_success("ADD", &sandbox);
        let address = answer["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap();
        self.pods.push((sandbox, address.parse().unwrap()));
    }

    /// Ends the oldest pod.
    fn end(&mut self) {
        let (sandbox, _) = self.pods.remove(0);
        self.until_success("DEL", &sandbox);
        self.node.on(|host| host.delete_pod(&sandbox.netns)).unwrap();
        let (_, name) = sandbox.pod.unwrap();
        self.admin.delete(&pod_path(&name)).unwrap().success().unwrap();
    }

    fn until_success(&mut self, verb: &'static str, sandbox: &Sandbox) -> Value {
        for _ in 0..MOST_CALLS {
            let began = OffsetDateTime::now_utc();
            let outcome = self.node.run(&self.node.verb(verb, sandbox)).unwrap();
            if outcome.exit == Some(0) {
                return outcome.answer();
            }
            let error = outcome.error();
            let error = format!("{} {}", error.msg, error.details);
            self.failed.push(FailedCall { verb, began, ended: OffsetDateTime::now_utc(), error });
            thread::sleep(PAUSE);
        }
        panic!("{verb} never succeeds: {:#?}", self.failed.last());
    }
}

/// Returns the time at which v1 was locked, and the time at which v3 was open, according to the API server.
fn time_of_the_lock(audit: &Audit) -> (OffsetDateTime, OffsetDateTime) {
    let requests = audit.requests().unwrap();
    let writes: Vec<&Request> = requests
        .iter()
        .filter(|one| one.verb == "update" && one.resource == "clusterinformations" && one.code == Some(200))
        .collect();
    let of_group = |group: ApiGroup| writes.iter().filter(move |one| one.group == group.name());
    let locked = of_group(ApiGroup::CrdV1).next().unwrap_or_else(|| panic!("no lock: {writes:?}"));
    let opened = of_group(ApiGroup::V3).next_back().unwrap_or_else(|| panic!("v3 is not open: {writes:?}"));
    (locked.received, opened.answered)
}

/// Returns the objects of v3 of the administrator.
fn v3(api: &ApiServer) -> Objects {
    Objects::new(api.admin(), ApiGroup::V3, api.admin_kubeconfig())
}

/// Waits until each running pod, and no other one, has its address in one block.
fn assert_accounts(api: &ApiServer, kubelets: &[Kubelet<'_>]) {
    let expected: BTreeMap<IpAddr, String> = kubelets
        .iter()
        .flat_map(|kubelet| &kubelet.pods)
        .map(|(sandbox, address)| (*address, format!("{NETWORK}.{}", sandbox.container_id)))
        .collect();
    let pods: usize = kubelets.iter().map(|kubelet| kubelet.pods.len()).sum();
    assert_eq!(expected.len(), pods, "two pods have one address");
    let accounts = || Accounts::of(&v3(api).dump().unwrap());
    // A DEL during the lock may be deferred: a later call of its node completes it.
    let are_equal = || {
        for kubelet in kubelets {
            if let Some((sandbox, _)) = kubelet.pods.first() {
                kubelet.node.run(&kubelet.node.verb("STATUS", sandbox))?;
            }
        }
        Ok(accounts().held == expected)
    };
    let seen = await_that(PATIENCE, are_equal);
    assert!(seen.is_ok(), "{expected:#?}\n{:#?}", accounts());
    assert_eq!(accounts().problems, Vec::<String>::new());
}

#[test]
fn pods_start_and_end_on_two_nodes_during_a_migration() {
    on_api_server(ApiGroup::CrdV1, |cluster, control_plane| {
        let content = NODES.iter().fold(Content::ready(), |content, node| content.node(node));
        cluster.load(&content.pool("pool4", "10.65.0.0/24", 28));
        let api = &control_plane.servers.api;
        let migration = Migration::new(api);
        let caller = (api, &control_plane.account);
        let nodes = NODES.map(|name| {
            let mut node = Node::on_api_server(cluster.host, name, &cluster.store, caller, json!({})).unwrap();
            node.conf.as_object_mut().unwrap().remove("calico_api_group");
            node
        });
        let audit = api.audit().unwrap();
        let (stop, mut kubelets) =
            (AtomicBool::new(false), nodes.each_ref().map(|node| Kubelet::new(node, api.admin())));
        let mut process = migration.setup("controllers").start(cluster.host, "controllers").unwrap();
        thread::scope(|scope| {
            let stop = &stop;
            for kubelet in &mut kubelets {
                scope.spawn(move || kubelet.run(stop));
            }
            // A panic must end the other threads.
            let migrated = catch_unwind(AssertUnwindSafe(|| {
                process.await_log("this replica is the leader", 1).unwrap();
                migration.create(None);
                assert!(process.terminate().unwrap().success());
                process.restart().unwrap();
                migration.finish(&mut process);
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = migrated {
                resume_unwind(panic);
            }
        });

        let (locked, opened) = time_of_the_lock(&audit);
        let failed: Vec<&FailedCall> = kubelets.iter().flat_map(|kubelet| &kubelet.failed).collect();
        assert!(failed.iter().any(|call| call.verb == "ADD"), "the lock stops no pod");
        for call in &failed {
            assert!(call.began < opened && call.ended > locked, "{call:#?}\nlocked {locked}, open {opened}");
            assert!(call.error.contains("Calico is currently not ready to process requests"), "{call:#?}");
        }
        eprintln!("{} calls failed: {}", failed.len(), migration.condition("PodsBlocked")["message"]);

        assert_accounts(api, &kubelets);
        let store = Store::Kubernetes(v3(api));
        let check = store.calico_ipam(&cluster.plugins, &["check"]).unwrap();
        assert_eq!(check.exit, Some(0), "calico-ipam check: {}{}", check.stdout, check.stderr);
        migration.delete();
        assert!(process.terminate().unwrap().success());
        process.restart().unwrap();
        migration.until(&process, "the object is gone", || migration.is_gone());
        // The plugins find v3 alone.
        for kubelet in &mut kubelets {
            kubelet.start();
            while !kubelet.pods.is_empty() {
                kubelet.end();
            }
        }
        let accounts = Accounts::of(&v3(api).dump().unwrap());
        assert!(accounts.is_empty(), "{accounts:#?}");
    });
}
