//! Many concurrent plugin processes of several nodes on the same blocks.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use datastore::config::DEFAULT_DEADLINE;
use integration_tests::Place;
use integration_tests::cluster::{Cluster, Pod, handle, on, restricted};
use integration_tests::content::Content;
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::plugin::{Outcome, RUNTIMES_LIMIT};
use serde_json::{Value, json};

const PROCESSES: usize = 32;
const NODES: usize = 4;
const PODS: usize = 200;

/// Most ADDs at once that a slow server may leave without an answer.
const MOST_UNANSWERED: usize = 5;

/// The error code of a call that the runtime should repeat.
const TRY_AGAIN: u32 = 11;

/// The time for which a DEL waits for the first response. A later DEL is deferred.
const FIRST_RESPONSE_LIMIT: Duration = Duration::from_secs(3);

fn content(cidr: &str, block_size: u8) -> Content {
    (0..NODES).fold(Content::ready().pool("pool4", cidr, block_size), |c, n| {
        c.node(&node_of(n))
    })
}

/// Returns a guard that keeps the tests with the most load on an API server apart. At the same time
/// on two processors, their calls would reach their time limits.
fn alone() -> MutexGuard<'static, ()> {
    static LOAD: Mutex<()> = Mutex::new(());
    LOAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the node of a pod. The pods are spread over [`NODES`] nodes.
fn node_of(number: usize) -> String {
    format!("node{}", number % NODES + 1)
}

/// Runs a CNI command for every pod on its node, [`PROCESSES`] at a time.
fn all_at_once(cluster: &Cluster<'_>, verb: &str, pods: &[(usize, Pod)]) -> Vec<(usize, Outcome)> {
    at_a_time(PROCESSES, cluster, verb, pods, node_of)
}

fn at_a_time(
    processes: usize,
    cluster: &Cluster<'_>,
    verb: &str,
    pods: &[(usize, Pod)],
    node: impl Fn(usize) -> String + Sync,
) -> Vec<(usize, Outcome)> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..processes {
            scope.spawn(|| {
                while let Some((number, pod)) = pods.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let conf = cluster.conf(&node(*number), json!({}));
                    let outcome = cluster
                        .verb(verb, pod, &conf)
                        .deadline(RUNTIMES_LIMIT)
                        .run();
                    outcomes.lock().unwrap().push((*number, outcome));
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

/// Runs ADD for all pods as [`at_a_time`] does. An ADD that a slow server left without an answer is
/// repeated as by kubelet: after the DEL of its sandbox, in a new sandbox, which replaces the other
/// one in `pods`.
fn added_at_once(
    processes: usize,
    cluster: &Cluster<'_>,
    pods: &mut [(usize, Pod)],
    node: impl Fn(usize) -> String + Sync,
) -> Vec<(usize, Outcome)> {
    let mut outcomes = at_a_time(processes, cluster, "ADD", pods, &node);
    let is_repeated = |(_, outcome): &&mut (usize, Outcome)| is_unanswered(outcome);
    let unanswered: Vec<_> = outcomes.iter_mut().filter(is_repeated).collect();
    assert!(unanswered.len() <= MOST_UNANSWERED, "{unanswered:?}");
    for (number, outcome) in unanswered {
        eprintln!("ADD of pod {number} is repeated: {:?}", outcome.error());
        let conf = cluster.conf(&node(*number), json!({ "cniVersion": "1.1.0" }));
        let (_, pod) = pods.iter_mut().find(|(other, _)| other == number).unwrap();
        cluster.delete(pod, &conf);
        cluster.await_replayed(pod, &conf);
        let accounts = cluster.accounts();
        let is_left = accounts.held.values().any(|owner| *owner == handle(pod))
            || accounts
                .counted
                .keys()
                .any(|(owner, _)| *owner == handle(pod));
        assert!(!is_left, "{pod:?}: {accounts:#?}");
        let links = kernel::pod_links(cluster.host, &pod.name).unwrap();
        assert!(links.is_empty(), "{pod:?}: {links:?}");
        *pod = cluster.sandbox(pod, 1000 + *number);
        *outcome = cluster.verb("ADD", pod, &conf).run();
    }
    outcomes
}

/// Returns true if a call failed because an API server did not answer in the whole time of a
/// request.
fn is_unanswered(outcome: &Outcome) -> bool {
    if outcome.exit == Some(0) || outcome.wall < DEFAULT_DEADLINE {
        return false;
    }
    let error = outcome.error();
    let text = format!("{} {}", error.msg, error.details);
    error.code == TRY_AGAIN && text.contains(&format!("no answer within {DEFAULT_DEADLINE:?}"))
}

#[test]
fn call_that_fails_before_its_time_or_for_another_reason_is_not_excused() {
    let outcome = |code: u32, msg: &str, wall: Duration| Outcome {
        exit: Some(1),
        stdout: json!({ "code": code, "msg": msg }).to_string(),
        stderr: String::new(),
        wall,
    };
    let (text, late) = ("GET /: no answer within 10s", Duration::from_secs(11));
    assert!(is_unanswered(&outcome(TRY_AGAIN, text, late)));
    for (code, text, wall) in [
        (TRY_AGAIN, text, Duration::from_secs(9)),
        (TRY_AGAIN, "no answer within 5s", late),
        (TRY_AGAIN, "the server refuses the request", late),
        (50, text, late),
    ] {
        let outcome = outcome(code, text, wall);
        assert!(!is_unanswered(&outcome), "{outcome:?}");
    }
}

fn pods(cluster: &Cluster<'_>, count: usize, node: impl Fn(usize) -> String) -> Vec<(usize, Pod)> {
    (0..count)
        .map(|number| (number, cluster.pod_on(&node(number), number)))
        .collect()
}

fn address(result: &Value) -> String {
    result["ips"][0]["address"].as_str().unwrap().to_owned()
}

/// Returns the pods in an irregular but constant order: 97 and 200 have no common factor.
fn scrambled(pods: &[(usize, Pod)]) -> Vec<(usize, Pod)> {
    (0..pods.len())
        .map(|i| pods[i * 97 % pods.len()].clone())
        .collect()
}

/// Runs DEL for every pod as [`all_at_once`] does, and STATUS on each node until no DEL is
/// deferred. Only a DEL that waited too long may be deferred. Only the token of its own node may
/// change a pod.
fn delete_all_at_once(cluster: &Cluster<'_>, pods: &[(usize, Pod)]) {
    let outcomes = all_at_once(cluster, "DEL", &scrambled(pods));
    outcomes
        .iter()
        .for_each(|(_, outcome)| drop(outcome.success()));
    let slow = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.wall >= FIRST_RESPONSE_LIMIT)
        .count();
    assert!(
        journal_entries().len() <= slow,
        "{slow} DELs were slow: {:?}",
        journal_entries()
    );
    let replayed = await_that(PATIENCE, || {
        for (number, pod) in &pods[..NODES] {
            if journal_entries().is_empty() {
                return Ok(true);
            }
            let conf = cluster.conf(&node_of(*number), json!({ "cniVersion": "1.1.0" }));
            cluster.verb("STATUS", pod, &conf).try_run()?;
        }
        Ok(journal_entries().is_empty())
    });
    assert!(replayed.is_ok(), "{replayed:?}, {:?}", journal_entries());
}

fn assert_held(cluster: &Cluster<'_>, pods: &[(usize, Pod)]) {
    let mut expected: Vec<String> = pods.iter().map(|(_, pod)| handle(pod)).collect();
    let mut held: Vec<String> = cluster.accounts().held.into_values().collect();
    expected.sort();
    held.sort();
    assert_eq!(held, expected);
}

#[on(etcd, local)]
fn two_hundred_concurrent_pods_get_unique_addresses_in_two_blocks(cluster: &Cluster<'_>) {
    cluster.load(&content("10.65.0.0/24", 25));
    let pods = pods(cluster, PODS, node_of);
    let added = all_at_once(cluster, "ADD", &pods);
    let addresses: BTreeSet<String> = added
        .iter()
        .map(|(_, outcome)| address(&outcome.success()))
        .collect();
    assert_eq!(addresses.len(), PODS, "an address was given twice");
    assert_held(cluster, &pods);
    assert_eq!(cluster.accounts().blocks.len(), 2);
    cluster.assert_in_order();

    let (first, second) = pods.split_at(PODS / 2);
    delete_all_at_once(cluster, first);
    assert_held(cluster, second);
    cluster.assert_in_order();
    thread::scope(|scope| {
        let leaving = scope.spawn(|| delete_all_at_once(cluster, second));
        let coming = scope.spawn(|| all_at_once(cluster, "ADD", &scrambled(first)));
        leaving.join().unwrap();
        coming
            .join()
            .unwrap()
            .iter()
            .for_each(|(_, outcome)| drop(outcome.success()));
    });
    assert_held(cluster, first);
    cluster.assert_in_order();

    delete_all_at_once(cluster, &pods);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn two_small_blocks_serve_exactly_as_many_pods_as_addresses(cluster: &Cluster<'_>) {
    cluster.load(&content("10.65.0.0/25", 26));
    let mut pods = pods(cluster, PODS, node_of);
    let (served, refused): (Vec<_>, Vec<_>) = added_at_once(PROCESSES, cluster, &mut pods, node_of)
        .into_iter()
        .partition(|(_, outcome)| outcome.exit == Some(0));
    let addresses: BTreeSet<String> = served
        .iter()
        .map(|(_, outcome)| address(&outcome.success()))
        .collect();
    assert_eq!(
        (served.len(), addresses.len(), refused.len()),
        (128, 128, 72)
    );
    for (number, outcome) in &refused {
        let error = outcome.error();
        let said = format!("{} {}", error.msg, error.details);
        assert!(
            said.contains("10.65.0.0/25") && said.contains("128"),
            "pod {number} got no clear error: {error:?}"
        );
    }
    cluster.assert_in_order();
    delete_all_at_once(cluster, &pods);
    cluster.assert_nothing_left();
}

/// The route of the deleted pod may still exist when the address is assigned to the next pod.
#[on(etcd, local, kubernetes_v1)]
fn only_address_of_a_pool_passes_from_pod_to_pod(cluster: &Cluster<'_>) {
    const TURNS: usize = 100;
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.7/32", 32),
    );
    let conf = cluster.conf("node1", json!({}));
    let pods = [cluster.pod(0), cluster.pod(1)];
    cluster.add(&pods[0], &conf);
    for turn in 0..TURNS {
        let (old, new) = (&pods[turn % 2], &pods[(turn + 1) % 2]);
        let (removal, mut added) = thread::scope(|scope| {
            let removal = scope.spawn(|| cluster.verb("DEL", old, &conf).run());
            let added = cluster.verb("ADD", new, &conf).run();
            (removal.join().unwrap(), added)
        });
        removal.success();
        if added.exit != Some(0) {
            let error = added.error();
            assert!(error.msg.contains("10.65.0.7/32"), "turn {turn}: {error:?}");
            added = cluster.verb("ADD", new, &conf).run();
        }
        let result = added.success();
        let host = kernel::host().unwrap();
        let to_pod = host["routes"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|route| route["dst"] == "10.65.0.7");
        let devices: Vec<&Value> = to_pod.map(|route| &route["dev"]).collect();
        assert_eq!(devices, [&result["interfaces"][0]["name"]], "turn {turn}");
        assert_held(cluster, &[(0, new.clone())]);
    }
    cluster.delete(&pods[0], &conf);
    cluster.assert_nothing_left();
}

#[test]
fn adds_of_a_hundred_pods_on_an_api_server_at_once_get_unique_addresses() {
    const AT_ONCE: usize = 100;
    let _alone = alone();
    on(Place::KubernetesV1, |cluster: &Cluster<'_>| {
        cluster.load(
            &Content::ready()
                .node("node1")
                .pool("pool4", "10.65.0.0/16", 26),
        );
        let node = |_: usize| "node1".to_owned();
        let mut pods = pods(cluster, AT_ONCE, node);
        let added = added_at_once(AT_ONCE, cluster, &mut pods, node);
        let addresses: BTreeSet<String> = added
            .iter()
            .map(|(_, outcome)| address(&outcome.success()))
            .collect();
        assert_eq!(addresses.len(), AT_ONCE, "an address was given twice");
        cluster.assert_only(&pods.iter().map(|(_, pod)| pod).collect::<Vec<_>>());
        at_a_time(AT_ONCE, cluster, "DEL", &pods, node)
            .iter()
            .for_each(|(_, outcome)| drop(outcome.success()));
        // A DEL that waits too long for the others is deferred.
        cluster.await_replayed(
            &pods[0].1,
            &cluster.conf("node1", json!({ "cniVersion": "1.1.0" })),
        );
        cluster.assert_nothing_left();
    });
}

/// Each node has a token of its own, and policies keep the blocks of a node from the others, which
/// only borrow.
#[test]
fn four_nodes_with_node_restriction_share_two_small_blocks() {
    let _alone = alone();
    restricted(
        Place::KubernetesV1,
        two_small_blocks_serve_exactly_as_many_pods_as_addresses,
    );
}
