//! Deferred DELs with an unreachable API server.
//!
//! A call tries to reach the server until its deadline, so many cases share an outage.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;

use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, Faulty, Pod, handle, on, restricted};
use integration_tests::content::{Content, NETWORK};
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::kubernetes::Identity;
use integration_tests::proxy::{Fault, Point, Proxy, Refusal};
use serde_json::{Value, json};

use super::{assert_ready_or_slow, conf};

/// Number of STATUS calls at once.
const STATUSES: usize = 5;

/// A pod whose DEL did not reach the API server: its interface is gone, but its address and
/// endpoint remain.
struct DeferredDel {
    pod: Pod,
    entry: PathBuf,
    text: Vec<u8>,
}

impl DeferredDel {
    fn restore(&self) -> &Pod {
        fs::write(&self.entry, &self.text).unwrap();
        &self.pod
    }
}

/// Adds pods, deletes them while the API server is unreachable, and empties the journal.
fn outage(faulty: &mut Faulty<'_>, pods: usize) -> Vec<DeferredDel> {
    let pods: Vec<Pod> = (0..pods).map(|_| faulty.pod()).collect();
    pods.iter().for_each(|pod| drop(faulty.run("ADD", pod)));
    faulty.proxy.go_away();
    let calls: Vec<_> = pods.iter().map(|pod| faulty.call("DEL", pod)).collect();
    thread::scope(|scope| {
        let started: Vec<_> = calls
            .iter()
            .map(|call| scope.spawn(|| call.run()))
            .collect();
        for outcome in started.into_iter().map(|thread| thread.join().unwrap()) {
            assert_eq!(outcome.success(), "");
        }
    });
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    faulty.proxy.arm(None);
    let recorded: Vec<(PathBuf, Vec<u8>)> = journal_entries()
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    assert_eq!(recorded.len(), pods.len());
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert!(recorded.iter().all(|(path, _)| mode(path) == 0o600));
    let deferred = |pod: Pod| {
        let of_pod =
            |(_, text): &&(PathBuf, Vec<u8>)| String::from_utf8_lossy(text).contains(&handle(&pod));
        let (entry, text) = recorded
            .iter()
            .find(of_pod)
            .expect("an entry names its handle")
            .clone();
        fs::remove_file(&entry).unwrap();
        DeferredDel { pod, entry, text }
    };
    pods.into_iter().map(deferred).collect()
}

fn is_held(faulty: &Faulty<'_>, pod: &Pod) -> bool {
    let accounts = faulty.cluster.accounts();
    let of_pod = handle(pod);
    let held = accounts.held.values().any(|holder| *holder == of_pod);
    assert_eq!(
        held,
        accounts.counted.keys().any(|(holder, _)| *holder == of_pod)
    );
    held
}

pub(crate) fn faulty<'a>(cluster: &'a Cluster<'_>, proxy: &'a Proxy) -> Faulty<'a> {
    cluster.load(&Content::dual_stack());
    Faulty::new(cluster, proxy, conf(cluster))
}

#[test]
fn deferred_del_on_an_api_server_is_replayed_once_by_the_next_call() {
    restricted(Place::KubernetesV3, replayed_once);
}

fn replayed_once(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let mut deferred = outage(faulty, 8);
    let mut next = || deferred.pop().unwrap();
    replayed_by_each_verb(faulty, [next(), next(), next(), next()]);
    replayed_by_an_add_of_the_same_container(faulty, &next());
    replayed_by_many_at_once(faulty, &[next(), next()]);
    not_replayed_while_not_ready(faulty, &next());
    faulty.cluster.assert_nothing_left();
}

fn replayed_by_each_verb(faulty: &mut Faulty<'_>, deferred: [DeferredDel; 4]) {
    for (verb, deferred) in ["ADD", "DEL", "STATUS", "GC"].into_iter().zip(&deferred) {
        let pod = deferred.restore();
        assert!(is_held(faulty, pod));
        let newcomer = faulty.pod();
        if verb == "GC" {
            // Addresses of pods without a journal entry belong to other cases.
            let others: Vec<Value> = faulty
                .cluster
                .accounts()
                .held
                .values()
                .map(|holder| {
                    json!({
                        "containerID": holder.trim_start_matches(&format!("{NETWORK}.")),
                        "ifname": "eth0",
                    })
                })
                .collect();
            faulty.conf["cni.dev/valid-attachments"] = json!(others);
        }
        faulty.run(verb, &newcomer);
        assert_eq!(journal_entries(), Vec::<PathBuf>::new(), "after {verb}");
        assert!(!is_held(faulty, pod), "after {verb}");
        faulty.run("DEL", &newcomer);
        faulty.cluster.assert_in_order();
    }
}

/// A later replay could remove the new network.
fn replayed_by_an_add_of_the_same_container(faulty: &mut Faulty<'_>, deferred: &DeferredDel) {
    let pod = deferred.restore();
    let result = faulty.run("ADD", pod);
    assert_eq!(journal_entries(), Vec::<PathBuf>::new());
    faulty.await_replayed(pod);
    let mut checked = faulty.conf.clone();
    checked["prevResult"] = result;
    faulty.cluster.verb("CHECK", pod, &checked).run().success();
    faulty.run("DEL", pod);
    assert!(!is_held(faulty, pod));
}

fn replayed_by_many_at_once(faulty: &mut Faulty<'_>, deferred: &[DeferredDel]) {
    let pods: Vec<&Pod> = deferred.iter().map(DeferredDel::restore).collect();
    let other = faulty.pod();
    let calls: Vec<_> = (0..STATUSES)
        .map(|_| faulty.call("STATUS", &other))
        .chain([faulty.call("ADD", &other), faulty.call("DEL", pods[0])])
        .collect();
    faulty.proxy.arm(None);
    thread::scope(|scope| {
        let started: Vec<_> = calls
            .iter()
            .map(|call| scope.spawn(|| call.run()))
            .collect();
        let outcomes: Vec<_> = started
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let (statuses, others) = outcomes.split_at(STATUSES);
        statuses.iter().for_each(assert_ready_or_slow);
        others.iter().for_each(|outcome| drop(outcome.success()));
    });
    faulty.await_replayed(&other);
    assert!(pods.iter().all(|pod| !is_held(faulty, pod)) && is_held(faulty, &other));
    faulty.cluster.assert_in_order();
    faulty.run("DEL", &other);
}

fn not_replayed_while_not_ready(faulty: &mut Faulty<'_>, deferred: &DeferredDel) {
    const CLUSTER: &str = "clusterinformations/default";
    let pod = deferred.restore();
    let store = &faulty.cluster.store;
    let set_ready = |ready: bool| {
        let mut cluster = store.dump().unwrap()[CLUSTER].clone();
        cluster["spec"]["datastoreReady"] = json!(ready);
        store.put(CLUSTER, &cluster).unwrap();
    };
    set_ready(false);
    let before = store.dump().unwrap();
    let error = faulty.call("ADD", pod).run().error();
    assert!(error.msg.contains("not ready"), "{error:?}");
    assert_eq!(
        (store.dump().unwrap(), journal_entries().len()),
        (before, 1)
    );
    // A busy server also defers the replay.
    let busy = Fault::Refuse(Refusal {
        code: 429,
        retry_after: Some(0),
    });
    let error = faulty
        .faulted("STATUS", pod, Point::First("GET", CLUSTER), busy)
        .error();
    assert!(
        error.code == 50 && error.msg.contains("not ready"),
        "{error:?}"
    );
    set_ready(true);
    faulty.await_replayed(pod);
}

/// A replay removes the address from the endpoint first, as DEL does.
#[on(kubernetes_v3)]
fn replay_killed_at_each_request_leaves_no_free_address_in_annotations(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let mut deferred = outage(faulty, 25).into_iter();
    let bystander = faulty.pod();
    deferred.next().unwrap().restore();
    let requests = faulty.requests("STATUS", &bystander);
    for point in (0..requests).map(Point::Request) {
        let deferred = deferred
            .next()
            .expect("a call with a replay sends no more than 24 requests");
        deferred.restore();
        faulty.faulted("STATUS", &bystander, point, Fault::Kill);
        assert!(faulty.proxy.fired(), "{point:?}");
        faulty.await_replayed(&bystander);
        assert!(!is_held(faulty, &deferred.pod), "{point:?}");
    }
}

/// The pod's annotations are the endpoint of both sandboxes.
#[on(kubernetes_v1)]
fn deferred_del_keeps_the_next_sandboxs_addresses_and_stores_no_token(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let [deferred] = &outage(faulty, 1)[..] else {
        panic!("one pod")
    };
    let old = deferred.restore();
    let Identity::Token(token) = &control_plane.account.identity else {
        panic!("plugins call with a token")
    };
    let text = String::from_utf8_lossy(&deferred.text);
    assert!(!text.contains(token.as_str()), "{text}");

    fs::remove_file(&deferred.entry).unwrap();
    let new = faulty.sandbox(old);
    let mut checked = faulty.conf.clone();
    checked["prevResult"] = faulty.run("ADD", &new);
    // The plugin is killed in the middle of the replay: the address is free, and its handle
    // exists.
    deferred.restore();
    let killed = faulty.faulted(
        "STATUS",
        &new,
        Point::First("DELETE", "/ipamhandles/"),
        Fault::Kill,
    );
    assert!(faulty.proxy.fired() && killed.exit.is_none(), "{killed:?}");
    let accounts = faulty.cluster.accounts();
    assert!(
        accounts.held.values().all(|holder| *holder == handle(&new)),
        "{accounts:#?}"
    );
    assert!(
        accounts
            .counted
            .keys()
            .any(|(holder, _)| *holder == handle(old)),
        "{accounts:#?}"
    );
    assert_eq!(journal_entries(), std::slice::from_ref(&deferred.entry));
    // The next call completes the replay.
    faulty.await_replayed(&new);
    faulty.cluster.assert_only(&[&new]);
    faulty.cluster.verb("CHECK", &new, &checked).run().success();

    // A replay after the DEL is complete changes nothing.
    deferred.restore();
    faulty.await_replayed(&new);
    faulty.cluster.assert_only(&[&new]);
    faulty.run("DEL", &new);
    faulty.cluster.assert_nothing_left();
}

/// The UID of the namespace kube-system identifies a cluster among those with the same address.
#[on(kubernetes_v1)]
fn deferred_del_of_another_cluster_stays_listed_until_its_cluster_is_used(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    let faulty = &mut faulty(cluster, &control_plane.proxy);
    let admin = control_plane.servers.api.admin();
    let namespace = admin
        .get("/api/v1/namespaces/kube-system")
        .unwrap()
        .success();
    // GC makes the node store the identity.
    let collector = faulty.pod();
    faulty.conf["cni.dev/valid-attachments"] = json!([]);
    faulty.run("GC", &collector);
    let [deferred] = &outage(faulty, 1)[..] else {
        panic!("one pod")
    };
    let mut pending_del: Value = serde_json::from_slice(&deferred.text).unwrap();
    assert_eq!(
        pending_del["identity"],
        json!(format!(
            "kubernetes {}",
            namespace["metadata"]["uid"].as_str().unwrap()
        ))
    );

    pending_del["identity"] = json!("kubernetes 00000000-0000-0000-0000-000000000001");
    fs::write(&deferred.entry, pending_del.to_string()).unwrap();
    for verb in ["ADD", "STATUS", "DEL"] {
        faulty.run(verb, &collector);
        assert_eq!(
            fs::read_to_string(&deferred.entry).unwrap(),
            pending_del.to_string(),
            "after {verb}"
        );
    }
    assert!(is_held(faulty, &deferred.pod));
    let listed = faulty
        .cluster
        .store
        .calico_ipam(&faulty.cluster.plugins, &["journal", "-o", "json"])
        .unwrap();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed[0]["identity"], pending_del["identity"], "{listed}");

    deferred.restore();
    faulty.await_replayed(&collector);
    faulty.cluster.assert_nothing_left();
}
