//! An unreachable datastore: DEL removes the pod's network, and later calls replay the remaining
//! cleanup.

mod datastores;
mod kubernetes;
mod refused;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use integration_tests::cluster::{self, Cluster, Pod, handle};
use integration_tests::content::{self, Content, NETWORK};
use integration_tests::controllers::{PATIENCE, await_that};
use integration_tests::journal::{JOURNAL, journal_entries};
use integration_tests::kernel;
use integration_tests::plugin::{DEADLINE, Outcome, wait};
use integration_tests::store::Store;
use integration_tests::{Place, on};
use serde_json::{Value, json};

/// The time after which a STATUS ends, although a DEL may still be deferred.
const LIMIT_OF_STATUS: Duration = Duration::from_secs(2);

/// Runs a test on a cluster with a node and pools, whose etcd it may stop.
fn on(place: Place, test: impl FnOnce(&mut Cluster<'_>) + Send) {
    cluster::on(place, |cluster: &mut Cluster<'_>| {
        cluster.load(&Content::dual_stack());
        test(cluster);
    });
}

/// Returns a configuration of version 1.1.0, which STATUS and GC need.
fn conf(cluster: &Cluster<'_>) -> Value {
    cluster.conf("node1", json!({ "cniVersion": "1.1.0" }))
}

/// The unreadable endpoint may list the address.
#[on(etcd)]
fn del_with_an_unreadable_endpoint_keeps_the_address(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let content = cluster.store.dump().unwrap();
    let key = content
        .keys()
        .find(|key| key.contains("/workloadendpoints/"))
        .unwrap();
    cluster.store.put(key, &json!("no endpoint")).unwrap();
    // The runtime's DEL after a failed ADD is not for the interface of the endpoint.
    let before = cluster.state();
    cluster
        .verb("DEL", &pod, &conf)
        .env("CNI_IFNAME", "net1")
        .run()
        .success();
    cluster.assert_unchanged(&before);
    assert!(journal_entries().is_empty());
    cluster.delete(&pod, &conf);
    assert_eq!(
        (journal_entries().len(), cluster.accounts().held.len()),
        (1, 1)
    );
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    cluster.store.delete(key).unwrap();
    cluster.delete(&pod, &conf);
    assert!(journal_entries().is_empty());
    cluster.assert_nothing_left();
}

/// Adds a pod and deletes it while etcd is stopped. The address and the endpoint remain.
fn pod_with_deferred_del(cluster: &mut Cluster<'_>, number: usize) -> Pod {
    let conf = conf(cluster);
    let pod = cluster.pod(number);
    cluster.add(&pod, &conf);
    cluster.etcd().stop();
    cluster.delete(&pod, &conf);
    cluster.etcd().restart().unwrap();
    assert!(
        cluster
            .accounts()
            .held
            .values()
            .any(|holder| *holder == handle(&pod))
    );
    pod
}

/// Runs a CNI command for a pod. A GC gets an empty list of attachments.
fn later_call(cluster: &Cluster<'_>, verb: &str, newcomer: &Pod) {
    let mut conf = conf(cluster);
    if verb == "GC" {
        conf["cni.dev/valid-attachments"] = json!([]);
    }
    cluster.verb(verb, newcomer, &conf).run().success();
}

/// Does the same as [`await_entries`], until the journal is empty.
#[track_caller]
fn await_replayed(cluster: &Cluster<'_>, pod: &Pod) {
    await_entries(cluster, pod, &conf(cluster), 0);
}

/// Repeats STATUS until the journal has this number of entries. Only a STATUS that used up its two
/// seconds is repeated.
#[track_caller]
fn await_entries(cluster: &Cluster<'_>, pod: &Pod, conf: &Value, entries: usize) {
    let is_done = || {
        let outcome = cluster.verb("STATUS", pod, conf).try_run()?;
        let is_done = outcome.exit == Some(0) && journal_entries().len() == entries;
        assert!(
            is_done || outcome.wall >= LIMIT_OF_STATUS,
            "{outcome:?}, {:?}",
            journal_entries()
        );
        Ok(is_done)
    };
    let done = await_that(PATIENCE, is_done);
    assert!(done.is_ok(), "{done:?}, {:?}", journal_entries());
}

/// Asserts that a STATUS beside other calls succeeded, or that it reports a datastore that was too
/// slow for the two seconds of a STATUS.
#[track_caller]
fn assert_ready_or_slow(outcome: &Outcome) {
    if outcome.exit != Some(0) {
        assert_eq!(outcome.error().code, 50, "{outcome:?}");
        assert!(outcome.wall >= LIMIT_OF_STATUS, "{outcome:?}");
    }
}

/// Shows SEC-77.
#[on(etcd)]
fn del_without_etcd_removes_the_interface_and_is_deferred_without_secrets(
    cluster: &mut Cluster<'_>,
) {
    let conf = conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    cluster.etcd().stop();
    let mut with_secrets = conf.clone();
    with_secrets["etcd_username"] = json!("root");
    with_secrets["etcd_password"] = json!("correct-horse");

    let outcome = cluster.verb("DEL", &pod, &with_secrets).run();
    assert_eq!(outcome.success(), "");
    let host = kernel::host().unwrap();
    assert_eq!((&host["links"], &host["routes"]), (&json!({}), &json!([])));
    assert_eq!(
        kernel::pod(cluster.host, &pod.name).unwrap()["links"],
        json!({})
    );

    let [entry] = &journal_entries()[..] else {
        panic!("{:?}", journal_entries())
    };
    let recorded = fs::read_to_string(entry).unwrap();
    assert!(
        recorded.contains(&handle(&pod)) && recorded.contains(NETWORK),
        "{recorded}"
    );
    assert!(!recorded.contains("correct-horse"), "{recorded}");

    cluster.delete(&pod, &conf);
    assert_eq!(journal_entries().len(), 1);

    cluster.etcd().restart().unwrap();
    cluster.delete(&pod, &conf);
    assert_eq!(journal_entries(), Vec::<PathBuf>::new());
    cluster.assert_nothing_left();
}

/// A line about a deferred DEL has the container of that DEL, and also names the container of the
/// call.
#[on(etcd)]
fn log_lines_of_a_replay_name_the_container_of_the_deferred_del(cluster: &mut Cluster<'_>) {
    let deferred = pod_with_deferred_del(cluster, 1);
    let newcomer = cluster.pod(2);
    let conf = cluster.conf("node1", json!({ "log_level": "debug" }));
    let outcome = cluster.verb("ADD", &newcomer, &conf).run();
    outcome.success();
    let of = |id: &str, replayed_by: &str| {
        format!(" ContainerID=\"{id}\"{replayed_by} WorkloadEndpoint=\"node1-cni-{id}-eth0\"")
    };
    let replay = of(
        &deferred.container_id,
        &format!(" ReplayedBy=\"{}\"", newcomer.container_id),
    );
    let call = of(&newcomer.container_id, "");
    let (replaying, others): (Vec<_>, Vec<_>) = outcome
        .stderr
        .lines()
        .partition(|line| line.ends_with(&replay));
    for words in ["deleted the endpoint", "replayed a deferred DEL"] {
        assert!(
            replaying.iter().any(|line| line.contains(words)),
            "{words:?}: {}",
            outcome.stderr
        );
    }
    others
        .iter()
        .for_each(|line| assert!(line.ends_with(&call), "{line}"));
}

#[on(etcd)]
fn del_with_a_silent_etcd_removes_the_interface_and_is_deferred(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    cluster.etcd().freeze().unwrap();
    let outcome = cluster.verb("DEL", &pod, &conf).run();
    cluster.etcd().thaw().unwrap();
    outcome.success();
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    assert_eq!(journal_entries().len(), 1);
    await_replayed(cluster, &pod);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn next_call_of_each_command_replays_the_deferred_del_of_another_pod(cluster: &mut Cluster<'_>) {
    for (number, verb) in [(1, "ADD"), (2, "DEL"), (3, "STATUS"), (4, "GC")] {
        let pod = pod_with_deferred_del(cluster, number);
        let newcomer = cluster.pod(10 + number);
        later_call(cluster, verb, &newcomer);
        assert_eq!(journal_entries(), Vec::<PathBuf>::new(), "after {verb}");
        let holders = cluster.accounts().held;
        assert!(
            !holders.values().any(|holder| *holder == handle(&pod)),
            "after {verb}: {holders:?}"
        );
        assert!(
            !cluster
                .endpoints()
                .keys()
                .any(|name| name.contains(&pod.container_id)),
            "after {verb}"
        );
        cluster.delete(&newcomer, &conf(cluster));
        cluster.assert_nothing_left();
    }
}

#[on(etcd)]
fn add_of_the_same_container_replays_first_and_keeps_its_new_address(cluster: &mut Cluster<'_>) {
    let pod = pod_with_deferred_del(cluster, 1);
    let mut conf = conf(cluster);
    let result = cluster.add(&pod, &conf);
    assert_eq!(journal_entries(), Vec::<PathBuf>::new());
    let accounts = cluster.accounts();
    assert_eq!(accounts.held.len(), 1);
    assert_eq!(accounts.held.values().next(), Some(&handle(&pod)));
    assert_eq!(cluster.endpoints().len(), 1);
    await_replayed(cluster, &pod);
    conf["prevResult"] = result;
    cluster.verb("CHECK", &pod, &conf).run().success();
}

#[on(etcd)]
fn no_deferred_del_is_replayed_while_the_datastore_is_not_ready(cluster: &mut Cluster<'_>) {
    const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    let pod = pod_with_deferred_del(cluster, 1);
    let ready = cluster.store.dump().unwrap()[CLUSTER].clone();
    let mut not_ready = ready.clone();
    not_ready["spec"]["datastoreReady"] = json!(false);
    cluster.store.put(CLUSTER, &not_ready).unwrap();
    let before = cluster.store.dump().unwrap();
    for pod in [pod, cluster.pod(2)] {
        let error = cluster.verb("ADD", &pod, &conf(cluster)).run().error();
        assert!(error.msg.contains("not ready"), "{error:?}");
        assert_eq!(cluster.store.dump().unwrap(), before);
        assert_eq!(journal_entries().len(), 1);
    }
}

#[on(etcd)]
fn failing_deferred_del_does_not_block_other_replays(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let (first, second) = (cluster.pod(1), cluster.pod(2));
    for pod in [&first, &second] {
        cluster.add(pod, &conf);
    }
    cluster.etcd().stop();
    for pod in [&first, &second] {
        cluster.delete(pod, &conf);
    }
    cluster.etcd().restart().unwrap();
    assert_eq!(journal_entries().len(), 2);
    let damaged = format!("/calico/ipam/v2/handle/{}", handle(&first));
    cluster
        .store
        .put(&damaged, &json!({ "block": "damaged" }))
        .unwrap();
    await_entries(cluster, &cluster.pod(3), &conf, 1);
    assert!(
        !cluster
            .accounts()
            .held
            .values()
            .any(|holder| *holder == handle(&second))
    );
}

#[on(etcd)]
fn del_without_etcd_with_an_unwritable_journal_fails_and_names_the_path(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    fs::create_dir_all(Path::new(JOURNAL).parent().unwrap()).unwrap();
    fs::write(JOURNAL, "not a directory").unwrap();
    cluster.etcd().stop();
    let error = cluster.verb("DEL", &pod, &conf).run().error();
    assert_eq!(error.code, 11, "{error:?}");
    assert!(error.details.contains(JOURNAL), "{error:?}");
    cluster.etcd().restart().unwrap();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn concurrent_replays_release_an_address_once(cluster: &mut Cluster<'_>) {
    for round in 0..3 {
        let pod = pod_with_deferred_del(cluster, 1 + round);
        let other = cluster.pod(11 + round);
        let conf = conf(cluster);
        let calls: Vec<_> = (0..6)
            .map(|_| cluster.verb("STATUS", &pod, &conf))
            .chain([cluster.verb("ADD", &other, &conf)])
            .collect();
        let outcomes: Vec<_> = thread::scope(|scope| {
            let started: Vec<_> = calls
                .iter()
                .map(|call| {
                    scope.spawn(|| {
                        wait(call.spawn().unwrap(), std::time::Instant::now(), DEADLINE).unwrap()
                    })
                })
                .collect();
            started
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let [statuses @ .., add] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        add.success();
        statuses.iter().for_each(assert_ready_or_slow);
        await_replayed(cluster, &pod);
        assert_eq!(
            cluster.accounts().held.values().collect::<Vec<_>>(),
            [&handle(&other)]
        );
        cluster.assert_in_order();
        cluster.delete(&other, &conf);
        cluster.assert_nothing_left();
    }
}

/// The endpoint of a pod's next sandbox has the same name.
#[on(etcd)]
fn replay_keeps_the_endpoint_of_the_pods_next_sandbox(cluster: &mut Cluster<'_>) {
    const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0";
    let conf = conf(cluster);
    let (old, new) = (cluster.pod(1), cluster.pod(2));
    let call = |cluster: &Cluster<'_>, verb: &str, pod: &Pod| {
        cluster
            .verb(verb, pod, &conf)
            .env("CNI_ARGS", ARGS)
            .run()
            .success()
    };
    call(cluster, "ADD", &old);
    cluster.etcd().stop();
    call(cluster, "DEL", &old);
    let [entry] = &journal_entries()[..] else {
        panic!("{:?}", journal_entries())
    };
    let pending_del = fs::read(entry).unwrap();
    fs::remove_file(entry).unwrap();
    cluster.etcd().restart().unwrap();

    call(cluster, "ADD", &new);
    fs::write(entry, pending_del).unwrap();
    await_replayed(cluster, &old);
    assert_eq!(
        cluster.accounts().held.values().collect::<Vec<_>>(),
        [&handle(&new)]
    );
    let endpoints = cluster.endpoints();
    assert_eq!(endpoints.len(), 1);
    assert_eq!(
        endpoints["prod/node1-k8s-web--0-eth0"]["spec"]["containerID"],
        json!(new.container_id)
    );
    cluster.assert_in_order();
    call(cluster, "DEL", &new);
    cluster.assert_nothing_left();
}

/// The names of the host interface and of the handle do not depend on the name of the pod's
/// interface.
#[on(etcd)]
fn replay_for_a_different_interface_keeps_the_containers_interface(cluster: &mut Cluster<'_>) {
    let conf = conf(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let before = cluster.state();
    cluster.etcd().stop();
    cluster
        .verb("DEL", &pod, &conf)
        .env("CNI_IFNAME", "eth1")
        .run()
        .success();
    cluster.etcd().restart().unwrap();
    assert_eq!(journal_entries().len(), 1);
    await_replayed(cluster, &pod);
    cluster.assert_unchanged(&before);

    cluster.etcd().stop();
    for ifname in ["eth1", "eth0"] {
        cluster
            .verb("DEL", &pod, &conf)
            .env("CNI_IFNAME", ifname)
            .run()
            .success();
    }
    cluster.etcd().restart().unwrap();
    await_replayed(cluster, &pod);
    cluster.assert_nothing_left();
}

/// A node may have networks in several datastores.
#[on(etcd)]
fn deferred_del_is_replayed_on_its_own_datastore_only(cluster: &mut Cluster<'_>) {
    let pod = pod_with_deferred_del(cluster, 1);
    let other = Store::local(cluster.host, &cluster.plugins);
    other.load(Content::dual_stack().pairs()).unwrap();
    let conf = content::conf(&other, "node1", json!({ "cniVersion": "1.1.0" }));
    await_entries(cluster, &pod, &conf, 1);
    await_replayed(cluster, &pod);
    cluster.assert_nothing_left();
}

#[on(etcd)]
fn damaged_journal_entry_does_not_block_other_replays(cluster: &mut Cluster<'_>) {
    let pod = pod_with_deferred_del(cluster, 1);
    let damaged = Path::new(JOURNAL).join("damaged.json");
    fs::write(&damaged, "{ \"network\": ").unwrap();
    let newcomer = cluster.pod(2);
    later_call(cluster, "ADD", &newcomer);
    assert_eq!(journal_entries(), [damaged]);
    assert!(
        !cluster
            .accounts()
            .held
            .values()
            .any(|holder| *holder == handle(&pod))
    );
}
