//! [`Kubelet`]: starts and ends pods on a node while a migration runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use integration_tests::accounts::Accounts;
use integration_tests::cluster::{NAMESPACE, pod_path};
use integration_tests::content::NETWORK;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::kubernetes::{ApiServer, Audit, Client, Objects, Request, ServiceAccount};
use integration_tests::namespaces::Host;
use integration_tests::node::{Node, Sandbox};
use integration_tests::plugin::Plugins;
use integration_tests::store::Store;
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};
use time::OffsetDateTime;

pub(crate) const NODES: [&str; 2] = ["node1", "node2"];
/// Number of pods that run on a node at the same time.
const RUNNING: usize = 5;
/// Pause between two calls of a node. Kubelet repeats a failed call after a second or later.
const PAUSE: Duration = Duration::from_millis(300);

/// Number of calls after which a test fails: more than a lock of some minutes makes fail.
const MOST_CALLS: usize = 1000;

/// A failed call.
#[derive(Debug)]
pub(crate) struct FailedCall {
    verb: &'static str,
    began: OffsetDateTime,
    ended: OffsetDateTime,
    error: String,
}

/// The pods of a node, as its kubelet starts and ends them.
pub(crate) struct Kubelet<'a> {
    pub(crate) node: &'a Node,
    admin: &'a Client,
    /// Keys of the configuration, beside those of the node.
    pub(crate) more: Value,
    /// The running pods, the oldest one first.
    pub(crate) pods: Vec<(Sandbox, IpAddr)>,
    /// The pod that ended last.
    ended: Option<Sandbox>,
    started: usize,
    pub(crate) failed: Vec<FailedCall>,
}

impl<'a> Kubelet<'a> {
    pub(crate) fn new(node: &'a Node, admin: &'a Client) -> Kubelet<'a> {
        Kubelet {
            node,
            admin,
            more: Value::Null,
            pods: Vec::new(),
            ended: None,
            started: 0,
            failed: Vec::new(),
        }
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
    pub(crate) fn start(&mut self) {
        self.started += 1;
        let name = format!("{}-{}", self.node.name, self.started);
        let spec =
            json!({ "nodeName": self.node.name, "containers": [{ "name": "c", "image": "none" }] });
        let metadata = json!({ "name": name, "namespace": NAMESPACE });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        self.admin.create(&pods, &pod).unwrap().success();
        let number = self.started
            + 1000
                * NODES
                    .iter()
                    .position(|node| *node == self.node.name)
                    .unwrap();
        let sandbox = self.node.sandbox(number, Some((NAMESPACE, &name))).unwrap();
        let answer = self.until_success("ADD", &sandbox);
        let address = answer["ips"][0]["address"]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap();
        self.pods.push((sandbox, address.parse().unwrap()));
    }

    /// Ends the oldest pod. After a failure, another pod is started first: a kubelet treats each
    /// pod by itself.
    pub(crate) fn end(&mut self) {
        let (sandbox, _) = self.pods.remove(0);
        if self.attempt("DEL", &sandbox).is_none() {
            self.start();
            self.until_success("DEL", &sandbox);
        }
        self.node
            .on(|host| host.delete_pod(&sandbox.netns))
            .unwrap();
        let (_, name) = sandbox.pod.as_ref().unwrap();
        self.admin.delete(&pod_path(name)).unwrap().success();
        self.ended = Some(sandbox);
    }

    /// Makes a call that completes deferred DELs of the node.
    pub(crate) fn replay(&self) -> Result<()> {
        let running = self.pods.first().map(|(sandbox, _)| sandbox);
        let Some(sandbox) = running.or(self.ended.as_ref()) else {
            return Ok(());
        };
        self.node.run(&self.node.verb("STATUS", sandbox)).map(drop)
    }

    /// Starts a pod, and ends this pod, without a failed call.
    #[track_caller]
    pub(crate) fn start_and_end(&mut self) {
        let failed = self.failed.len();
        self.start();
        self.pods.rotate_right(1);
        self.end();
        assert!(self.failed.len() == failed, "{:#?}", self.failed.last());
    }

    /// Returns address and handle of each running pod.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (IpAddr, String)> {
        self.pods
            .iter()
            .map(|(sandbox, address)| (*address, format!("{NETWORK}.{}", sandbox.container_id)))
    }

    fn until_success(&mut self, verb: &'static str, sandbox: &Sandbox) -> Value {
        for _ in 0..MOST_CALLS {
            if let Some(answer) = self.attempt(verb, sandbox) {
                return answer;
            }
            thread::sleep(PAUSE);
        }
        panic!("{verb} never succeeds: {:#?}", self.failed.last());
    }

    /// Makes one call. Returns `None` after a failure, which is recorded.
    fn attempt(&mut self, verb: &'static str, sandbox: &Sandbox) -> Option<Value> {
        let began = OffsetDateTime::now_utc();
        let outcome = self
            .node
            .run(&self.node.verb_with(verb, sandbox, &self.more))
            .unwrap();
        if outcome.exit == Some(0) {
            return Some(outcome.answer());
        }
        let error = outcome.error();
        let error = format!("{} {}", error.msg, error.details);
        self.failed.push(FailedCall {
            verb,
            began,
            ended: OffsetDateTime::now_utc(),
            error,
        });
        None
    }
}

/// Returns the key of a configuration that names v3.
pub(crate) fn naming_v3() -> Value {
    json!({ "calico_api_group": ApiGroup::V3.api_version() })
}

/// Starts and ends a pod on each node, with v3 named in the configuration, without a failed call.
#[track_caller]
pub(crate) fn start_and_end_with_v3_named(kubelets: &mut [Kubelet<'_>]) {
    for kubelet in kubelets {
        kubelet.more = naming_v3();
        kubelet.start_and_end();
        kubelet.more = Value::Null;
    }
}

/// Returns the objects of v3 of the administrator.
pub(crate) fn v3(api: &ApiServer) -> Objects {
    Objects::new(api.admin(), ApiGroup::V3, api.admin_kubeconfig())
}

/// Waits until each running pod has its address in one block of v3, and no other owner but `others`
/// has one. Expects that `calico-ipam check` finds no problem in v3.
#[track_caller]
pub(crate) fn assert_accounts(api: &ApiServer, kubelets: &[Kubelet<'_>], others: &[(&str, &str)]) {
    let others = others
        .iter()
        .map(|(address, handle)| (address.parse::<IpAddr>().unwrap(), (*handle).to_owned()));
    let expected: BTreeMap<IpAddr, String> = kubelets
        .iter()
        .flat_map(Kubelet::addresses)
        .chain(others.clone())
        .collect();
    let pods: usize = kubelets.iter().map(|kubelet| kubelet.pods.len()).sum();
    assert_eq!(
        expected.len(),
        pods + others.len(),
        "two owners have one address"
    );
    let accounts = || Accounts::of(&v3(api).dump().unwrap());
    // A DEL during the lock, or a slow one, may be deferred: a later call of its node completes it.
    let are_equal = || {
        kubelets.iter().try_for_each(Kubelet::replay)?;
        Ok(accounts().held == expected)
    };
    let seen = await_that(PATIENCE, are_equal);
    assert!(seen.is_ok(), "{expected:#?}\n{:#?}", accounts());
    assert_eq!(accounts().problems, Vec::<String>::new());
    let check = Store::Kubernetes(v3(api))
        .calico_ipam(&Plugins::locate().unwrap(), &["check"])
        .unwrap();
    assert_eq!(
        check.exit,
        Some(0),
        "calico-ipam check: {}{}",
        check.stdout,
        check.stderr
    );
}

/// Creates a node whose configuration names no API group, so that its plugins follow a migration.
pub(crate) fn following_node(
    host: &Host,
    name: &str,
    (api, account): (&ApiServer, &ServiceAccount),
) -> Node {
    let store = Store::Kubernetes(Objects::new(
        api.admin(),
        ApiGroup::CrdV1,
        api.admin_kubeconfig(),
    ));
    let mut node = Node::on_api_server(host, name, &store, (api, account), json!({})).unwrap();
    node.conf
        .as_object_mut()
        .unwrap()
        .remove("calico_api_group");
    node
}

/// Lets the nodes start and end pods while `work` runs.
pub(crate) fn run_pods_during(kubelets: &mut [Kubelet<'_>], work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = &stop;
        for kubelet in kubelets {
            scope.spawn(move || kubelet.run(stop));
        }
        // A panic must end the other threads.
        let done = catch_unwind(AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            resume_unwind(panic);
        }
    });
}

/// Asserts that each failed call overlaps the time between the lock of v1 and the opening of v3,
/// according to the API server, and that an ADD is among the calls.
#[track_caller]
pub(crate) fn assert_failed_under_the_lock(kubelets: &[Kubelet<'_>], audit: &Audit) {
    let (locked, opened) = time_of_the_lock(audit);
    let failed: Vec<&FailedCall> = kubelets
        .iter()
        .flat_map(|kubelet| &kubelet.failed)
        .collect();
    assert!(
        failed.iter().any(|call| call.verb == "ADD"),
        "the lock stops no pod"
    );
    for call in &failed {
        assert!(
            call.began < opened && call.ended > locked,
            "{call:#?}\nlocked {locked}, open {opened}"
        );
        assert!(
            call.error
                .contains("Calico is currently not ready to process requests"),
            "{call:#?}"
        );
    }
}

/// Returns the time at which v1 was locked, and the time at which v3 was open, according to the API
/// server.
fn time_of_the_lock(audit: &Audit) -> (OffsetDateTime, OffsetDateTime) {
    let requests = audit.requests().unwrap();
    let writes: Vec<&Request> = requests
        .iter()
        .filter(|one| {
            one.verb == "update" && one.resource == "clusterinformations" && one.code == Some(200)
        })
        .collect();
    let of_group = |group: ApiGroup| writes.iter().filter(move |one| one.group == group.name());
    let locked = of_group(ApiGroup::CrdV1)
        .next()
        .unwrap_or_else(|| panic!("no lock: {writes:?}"));
    let opened = of_group(ApiGroup::V3)
        .next_back()
        .unwrap_or_else(|| panic!("v3 is not open: {writes:?}"));
    (locked.received, opened.answered)
}
