//! The number of requests to the API server for a pod, and of sequential round trips.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use integration_tests::cluster::{
    Cluster, ControlPlane, NAMESPACE, Pod, on_one_group, restricted as on,
};
use integration_tests::content::Content;
use integration_tests::kubernetes::{Request, waves};
use integration_tests::migration::{Migration, migrate};
use integration_tests::on;
use integration_tests::proxy::{Fault, Point, Refusal};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};
use time::OffsetDateTime;

/// Time for which the proxy holds each request: concurrent requests arrive together, and dependent
/// requests later.
const HELD: Duration = Duration::from_millis(200);

/// An ADD repeats the reads of a prefetch that took longer (IPAM-100).
const LONGEST_READ: Duration = Duration::from_millis(400);

/// A read that the server's cache has not answered after this time is repeated without the cache.
const LONGEST_CACHED_READ: Duration = Duration::from_secs(1);

/// The objects that an ADD reads before it chooses a block.
const INPUTS: [&str; 6] = [
    "blockaffinities",
    "ipamconfigs",
    "ipamconfigurations",
    "ippools",
    "ipreservations",
    "nodes",
];

fn requests(
    cluster: &Cluster<'_>,
    control_plane: &ControlPlane<'_>,
    verb: &str,
    pod: &Pod,
    families: &[&str],
) -> Vec<Request> {
    requests_with(
        cluster,
        control_plane,
        verb,
        pod,
        &conf_of(cluster, families),
    )
}

fn conf_of(cluster: &Cluster<'_>, families: &[&str]) -> Value {
    let assign = |family| {
        if families.contains(&family) {
            "true"
        } else {
            "false"
        }
    };
    let ipam =
        json!({ "type": "calico-ipam", "assign_ipv4": assign("4"), "assign_ipv6": assign("6") });
    cluster.conf("node1", json!({ "ipam": ipam }))
}

fn requests_with(
    cluster: &Cluster<'_>,
    control_plane: &ControlPlane<'_>,
    verb: &str,
    pod: &Pod,
    conf: &Value,
) -> Vec<Request> {
    let began = OffsetDateTime::now_utc();
    without_second_read(
        all_requests_with(cluster, control_plane, verb, pod, conf),
        began,
    )
}

fn all_requests_with(
    cluster: &Cluster<'_>,
    control_plane: &ControlPlane<'_>,
    verb: &str,
    pod: &Pod,
    conf: &Value,
) -> Vec<Request> {
    control_plane
        .proxy
        .arm(Some((Point::EveryRequest, Fault::Delay(HELD))));
    let audit = control_plane.servers.api.audit().unwrap();
    let outcome = cluster.verb(verb, pod, conf).run();
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    assert_eq!(
        control_plane.proxy.traffic().connections,
        1,
        "one connection for all requests"
    );
    audit.of(&control_plane.account.user).unwrap()
}

fn is_read_of_input(request: &Request) -> bool {
    ["get", "list"].contains(&request.verb.as_str()) && INPUTS.contains(&request.resource.as_str())
}

/// Returns the requests without those that only a slow server causes: a second read of the inputs,
/// the handle and the block, and of a block that the server's cache did not send in time. `began`
/// is the start of the call. A second read follows a time limit that begins later, and the proxy
/// holds this read too. An earlier second read is not dropped.
fn without_second_read(mut requests: Vec<Request>, began: OffsetDateTime) -> Vec<Request> {
    let (mut seen, mut reads_inputs_again) = (BTreeSet::new(), false);
    requests.retain(|request| {
        let path = request
            .uri
            .split("resourceVersion=")
            .next()
            .unwrap_or_default()
            .trim_end_matches(['?', '&']);
        let is_again = !seen.insert((request.verb.clone(), path.to_owned()));
        let is_after = |limit: Duration| is_again && request.received - began > limit + HELD;
        let is_of_block =
            (request.verb.as_str(), request.resource.as_str()) == ("get", "ipamblocks");
        let is_input = is_read_of_input(request) && is_after(LONGEST_READ);
        reads_inputs_again |= is_input;
        let is_block =
            is_of_block && (reads_inputs_again && is_again || is_after(LONGEST_CACHED_READ));
        !is_input && !is_block
    });
    if reads_inputs_again {
        requests.retain(|request| {
            (request.verb.as_str(), request.resource.as_str()) != ("get", "ipamhandles")
        });
    }
    requests
}

#[track_caller]
fn assert_within(what: &str, requests: &[Request], most: usize, in_sequence: usize) {
    let listed: String = requests
        .iter()
        .map(|request| format!("{} {request}\n", request.received))
        .collect();
    // The requests of the next round trip arrive only after the proxy has released the ones before.
    let waves = waves(requests, HELD * 9 / 10);
    let lines = format!(
        "{what}: {} requests in {waves} round trips\n{listed}",
        requests.len()
    );
    assert!(
        !requests.is_empty() && requests.len() <= most && waves <= in_sequence,
        "{lines}"
    );
    // No list grows with the number of nodes.
    for request in requests.iter().filter(|request| request.verb == "list") {
        let few = ["ippools", "ipreservations"].contains(&request.resource.as_str());
        assert!(few || request.uri.contains("hostname-hash"), "{lines}");
    }
}

#[on(kubernetes_v3)]
fn warm_add_and_its_del_stay_within_their_request_limits(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    for families in [&["4"][..], &["6"], &["4", "6"]] {
        let (first, pod) = (cluster.pod(1), cluster.pod(2));
        let (more, of) = (families.len() - 1, |verb, pod| {
            requests(cluster, control_plane, verb, pod, families)
        });
        of("ADD", &first);
        // Each family has its own block. The hint of the first ADD names the block.
        assert_within("ADD", &of("ADD", &pod), 12 + 2 * more, 3 + more);
        assert_within("DEL", &of("DEL", &pod), 8 + 2 * more, 4 + more);
        assert_within(
            "the DEL that empties the block",
            &of("DEL", &first),
            10 + 2 * more,
            5 + more,
        );
        assert_within("a DEL with nothing left", &of("DEL", &first), 5, 2);
        [first, pod].iter().for_each(|pod| cluster.remove_pod(pod));
    }
}

/// Blocks are read in the order of the list, and a read stops at the first free address.
#[on(kubernetes_v1)]
fn add_with_any_of_sends_two_more_at_most(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    // The first ADDs claim the blocks of all lists.
    let lists = [
        ("ipAddrs", "[\"10.65.3.1\"]"),
        ("ipAddrs", "[\"10.65.4.1\"]"),
        ("ipAddrs", "[\"10.65.5.1\"]"),
        ("ipAddrs", "[\"10.65.5.2\"]"),
        ("ipAddrsAnyOf", "[\"10.65.5.1\", \"10.65.5.3\"]"),
        (
            "ipAddrsAnyOf",
            "[\"10.65.3.1\", \"10.65.4.1\", \"10.65.5.8/29\"]",
        ),
    ];
    let sent: Vec<usize> = lists
        .into_iter()
        .zip(1..)
        .map(|((name, list), number)| {
            let annotations = json!({ format!("cni.projectcalico.org/{name}"): list });
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": format!("pod{number}"), "namespace": NAMESPACE,
                    "annotations": annotations,
                },
                "spec": {
                    "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }],
                },
            });
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
            cluster
                .objects()
                .client()
                .create(&path, &pod)
                .unwrap()
                .success();
            let conf = conf_of(cluster, &["4"]);
            let sent =
                all_requests_with(cluster, control_plane, "ADD", &cluster.pod(number), &conf);
            // A slow server makes the plugin read pools and settings again before it writes
            // (IPAM-100).
            let mut seen = BTreeSet::new();
            let first = sent
                .iter()
                .filter(|sent| !is_read_of_input(sent) || seen.insert(sent.resource.as_str()));
            first.count()
        })
        .collect();
    let [.., requested, same_block, three_blocks] = sent[..] else {
        panic!("{sent:?}")
    };
    assert!(
        same_block <= requested && three_blocks <= requested + 2,
        "{sent:?}"
    );
}

/// After each conflict, DEL reads the pod again and repeats the patch.
#[on(kubernetes_v3)]
fn endpoint_conflict_costs_a_del_two_requests(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    let pods: Vec<Pod> = (1..=4).map(|number| cluster.pod(number)).collect();
    let [first, calm, once, twice] = &pods[..] else {
        panic!("four pods")
    };
    let conf = cluster.conf("node1", json!({}));
    pods.iter().for_each(|pod| drop(cluster.add(pod, &conf)));
    let conflict = (
        Point::First("PATCH", "/pods/"),
        Fault::Refuse(Refusal::of(409)),
    );
    for (pod, conflicts) in [(calm, 0), (once, 1), (twice, 2)] {
        let mut faults = vec![conflict; conflicts];
        faults.push((Point::EveryRequest, Fault::Delay(HELD)));
        control_plane.proxy.arm_all(&faults);
        let audit = control_plane.servers.api.audit().unwrap();
        cluster.verb("DEL", pod, &conf).run().success();
        assert_eq!(
            control_plane.proxy.requests().len(),
            8 + 2 * conflicts,
            "{:?}",
            control_plane.proxy.requests()
        );
        // The audit log lacks the requests that the proxy itself rejects.
        assert_within(
            "DEL",
            &audit.of(&control_plane.account.user).unwrap(),
            8 + conflicts,
            4 + conflicts,
        );
    }
    cluster.delete(first, &conf);
    cluster.assert_nothing_left();
}

/// A cached v3 is verified together with the first reads, because upstream prefers v1 (DS-22).
#[test]
fn unconfigured_api_group_costs_no_round_trip() {
    for (group, confirmed) in [(ApiGroup::V3, 1), (ApiGroup::CrdV1, 0)] {
        let is_counted = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
            cluster.load(&Content::dual_stack());
            let ipam =
                json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "false" });
            let mut conf = cluster.conf("node1", json!({ "ipam": ipam }));
            conf.as_object_mut().unwrap().remove("calico_api_group");
            let (first, pod) = (cluster.pod(1), cluster.pod(2));
            let of = |verb, pod| requests_with(cluster, control_plane, verb, pod, &conf);
            of("ADD", &first);
            assert_within("ADD", &of("ADD", &pod), 12 + confirmed, 3);
            assert_within("DEL", &of("DEL", &pod), 8 + confirmed, 4);
            of("DEL", &first);
        };
        on_one_group(group, is_counted);
    }
}

/// `calico-ipam` of another main plugin reads the lock of the datastore together with the pools.
#[on(kubernetes_v1)]
fn standalone_add_sends_one_read_more_in_the_same_round(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let (first, second) = (cluster.pod(1), cluster.pod(2));
    for (verb, pod) in [
        ("ADD", &first),
        ("ADD", &second),
        ("DEL", &second),
        ("DEL", &first),
    ] {
        control_plane
            .proxy
            .arm(Some((Point::EveryRequest, Fault::Delay(HELD))));
        let audit = control_plane.servers.api.audit().unwrap();
        let call = cluster
            .plugins
            .verb("calico-ipam", verb, &pod.container_id, &pod.netns, &conf);
        call.env("CNI_ARGS", pod.args()).run().success();
        let sent = audit.of(&control_plane.account.user).unwrap();
        let in_sequence = waves(&sent, HELD * 9 / 10);
        let (of_cluster, others): (Vec<_>, Vec<_>) = sent
            .into_iter()
            .partition(|request| request.resource == "clusterinformations");
        assert_eq!(
            (of_cluster.len(), waves(&others, HELD * 9 / 10)),
            (1, in_sequence),
            "{verb}: {others:?}"
        );
    }
}

/// Returns the sorted requests of four calls after a migration: by kube-controllers, or else as
/// upstream leaves it.
fn requests_after_a_migration(by_kube_controllers: bool) -> Vec<Vec<String>> {
    let lists = Mutex::new(Vec::new());
    let collect = |cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>| {
        cluster.load(&Content::dual_stack());
        let mut conf = cluster.conf("node1", json!({}));
        conf.as_object_mut().unwrap().remove("calico_api_group");
        let [first, second, third] = [1, 2, 3].map(|number| cluster.pod(number));
        let of = |verb, pod| requests_with(cluster, control_plane, verb, pod, &conf);
        of("ADD", &first);
        let migration = Migration::new(&control_plane.servers.api);
        if by_kube_controllers {
            migration.create(None);
            let mut process = migration
                .setup("controllers")
                .start(cluster.host, "controllers")
                .unwrap();
            migration.await_open(&mut process);
        } else {
            migrate(&control_plane.servers.api);
        }
        for (verb, pod) in [
            ("ADD", &second),
            ("ADD", &third),
            ("DEL", &second),
            ("DEL", &third),
        ] {
            let line = |sent: &Request| {
                format!(
                    "{} {}.{}: {:?}",
                    sent.verb, sent.resource, sent.group, sent.code
                )
            };
            let mut sent: Vec<String> = of(verb, pod).iter().map(line).collect();
            sent.sort();
            lists.lock().unwrap().push(sent);
        }
    };
    on_one_group(ApiGroup::CrdV1, collect);
    lists.into_inner().unwrap()
}

/// The first ADD finds v1 locked, and the other calls use v3 at once.
#[test]
fn add_after_v3_is_open_sends_what_a_followed_migration_sent() {
    assert_eq!(
        requests_after_a_migration(true),
        requests_after_a_migration(false)
    );
}

/// Only the content of the node's blocks shows which of them has free addresses.
#[on(kubernetes_v1)]
fn first_add_of_a_node_and_add_beside_full_blocks_stay_within_limits(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("pool4", "10.65.0.0/24", 30),
    );
    let pods: Vec<Pod> = (1..=6).map(|number| cluster.pod(number)).collect();
    let of = |verb, pod| requests(cluster, control_plane, verb, pod, &["4"]);
    let first = of("ADD", &pods[0]);
    pods[1..5].iter().for_each(|pod| _ = of("ADD", pod));
    let beside_a_full_block = of("ADD", &pods[5]);
    assert_within("beside a full block", &beside_a_full_block, 13, 3);
    cluster.assert_only(&pods.iter().collect::<Vec<_>>());
    // An ADD reads the first eight blocks of the search, and lists the names of all blocks
    // before and after it creates its block.
    assert!(first.len() <= 24, "{first:?}");
    pods.iter().for_each(|pod| cluster.remove_pod(pod));
}
