//! Obstacles to an ADD, and the state after a failed ADD.

use std::collections::BTreeMap;
use std::fs;

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::kernel;
use integration_tests::plugin::CniError;
use serde_json::{Value, json};

const HOST_LINK: &str = "cali00000001ccc";
const ADDRESS: &str = "10.65.0.5";
const ARGS: &str = "IP=10.65.0.5";

/// Returns a new pod and its configuration, on a cluster with another pod in the block of
/// [`ADDRESS`].
fn prepared(cluster: &Cluster<'_>) -> (Pod, Value) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    cluster
        .verb("ADD", &cluster.pod(2), &conf)
        .env("CNI_ARGS", "IP=10.65.0.9")
        .run()
        .success();
    (cluster.pod(1), conf)
}

/// The state that a failed ADD must not change. Excluded are a block's sequence number and the
/// order of its free addresses, which change when an address is assigned and released.
#[derive(Debug, PartialEq)]
struct State {
    host: Value,
    pods: Value,
    accounts: String,
    endpoints: BTreeMap<String, Value>,
}

fn state(cluster: &Cluster<'_>) -> State {
    let accounts = cluster.accounts();
    assert_eq!(accounts.problems, Vec::<String>::new());
    State {
        host: kernel::host().unwrap(),
        pods: kernel::pods(cluster.host).unwrap(),
        accounts: format!("{accounts:?}"),
        endpoints: cluster.endpoints(),
    }
}

fn failed_add(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) -> CniError {
    cluster
        .verb("ADD", pod, conf)
        .env("CNI_ARGS", ARGS)
        .run()
        .error()
}

#[on(etcd, local)]
fn add_replaces_a_stale_host_link(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    ip(&format!("link add {HOST_LINK} type veth peer name old0")).unwrap();
    let index = |name: &str| fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok();
    cluster.add(&pod, &conf);
    let links = kernel::host().unwrap()["links"].clone();
    assert_eq!(links[HOST_LINK]["mac"], "ee:ee:ee:ee:ee:ee");
    assert_eq!(index("old0"), None, "the other end went with it");
    cluster.delete(&pod, &conf);
    assert_eq!(
        kernel::host().unwrap()["links"].as_object().unwrap().len(),
        1
    );
}

/// An earlier sandbox may have such a route while the kernel is still deleting its network
/// namespace.
#[on(etcd, local)]
fn add_replaces_the_route_of_a_dead_interface(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    ip("link add dead0 type veth peer name dead1").unwrap();
    ip("link set dead0 up").unwrap();
    ip(&format!("route add {ADDRESS} dev dead0")).unwrap();
    let result = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_ARGS", ARGS)
        .run()
        .success();
    assert_eq!(result["ips"][0]["address"], format!("{ADDRESS}/32"));
    let routes = kernel::host().unwrap()["routes"].clone();
    let ours = routes
        .as_array()
        .unwrap()
        .iter()
        .find(|route| route["dst"] == ADDRESS)
        .unwrap();
    assert_eq!(ours["dev"], HOST_LINK);
    cluster.delete(&pod, &conf);
}

#[on(etcd, local)]
fn add_with_a_route_of_a_live_interface_fails_and_names_the_interface(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    ip("link add live0 type veth peer name live1").unwrap();
    ip("link set live0 up").unwrap();
    ip("link set live1 up").unwrap();
    ip(&format!("route add {ADDRESS} dev live0")).unwrap();
    let before = state(cluster);
    let error = failed_add(cluster, &pod, &conf);
    assert!(
        error.msg.contains("live0") && error.msg.contains(ADDRESS),
        "{error:?}"
    );
    assert!(error.details.contains("released"), "{error:?}");
    assert_eq!(state(cluster), before);
    ip("link delete live0").unwrap();
    cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_ARGS", ARGS)
        .run()
        .success();
}

#[on(etcd, local)]
fn add_with_an_existing_pod_interface_fails_and_names_the_interface(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    ip("link add other0 type veth peer name eth0 netns pod1").unwrap();
    let before = state(cluster);
    let error = failed_add(cluster, &pod, &conf);
    assert!(
        error.msg.contains("eth0") && error.msg.contains("pod1"),
        "{error:?}"
    );
    assert_eq!(state(cluster), before);
    let result = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_IFNAME", "eth1")
        .run()
        .success();
    assert_eq!(result["interfaces"][1]["name"], "eth1");
    assert!(kernel::pod(cluster.host, "pod1").unwrap()["links"]["eth0"].is_object());
}

#[on(etcd, local)]
fn add_of_a_second_interface_is_refused_and_the_first_stays(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    cluster.add(&pod, &conf);
    let before = state(cluster);
    let error = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_IFNAME", "eth1")
        .run()
        .error();
    assert_eq!(error.code, 4);
    assert!(
        error.msg.contains("eth0") && error.msg.contains("eth1"),
        "{error:?}"
    );
    assert_eq!(state(cluster), before);
}

#[on(etcd, local)]
fn add_into_the_plugins_own_namespace_is_refused_without_changes(cluster: &Cluster<'_>) {
    // The Linux dataplane cannot put both ends of a veth pair into one namespace.
    let (pod, conf) = prepared(cluster);
    let before = state(cluster);
    let own = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_NETNS", "/proc/self/ns/net");
    for call in [
        own.clone(),
        own.clone().env("CNI_NETNS_OVERRIDE", "0"),
        own.env("CNI_NETNS_OVERRIDE", "true"),
    ] {
        let error = call.run().error();
        assert_eq!(error.code, 8, "{error:?}");
        assert!(error.msg.contains("/proc/self/ns/net"), "{error:?}");
        assert_eq!(state(cluster), before);
    }
}

#[on(etcd, local)]
fn add_with_invalid_endpoint_names_is_refused_without_changes(cluster: &Cluster<'_>) {
    let (pod, conf) = prepared(cluster);
    let before = state(cluster);
    let long = cluster.conf("node1", json!({ "name": "n".repeat(80) }));
    let no_ipam = cluster.conf(
        "node1",
        json!({ "feature_control": { "ip_addrs_no_ipam": true } }),
    );
    let node = cluster.conf("-node-", json!({}));
    for (call, code, words) in [
        (cluster.verb("ADD", &pod, &long), 7, "name"),
        (cluster.verb("ADD", &pod, &no_ipam), 2, "ip_addrs_no_ipam"),
        (cluster.verb("ADD", &pod, &node), 4, "node"),
        (
            cluster
                .verb("ADD", &pod, &conf)
                .env("CNI_CONTAINERID", "ends-with-a-dash-"),
            4,
            "ends-with-a-dash-",
        ),
    ] {
        let error = call.run().error();
        assert_eq!(error.code, code, "{error:?}");
        assert!(
            format!("{} {}", error.msg, error.details).contains(words),
            "{words}: {error:?}"
        );
        assert_eq!(state(cluster), before, "{words}");
    }
}

#[on(etcd, local)]
fn add_on_a_datastore_that_is_not_ready_fails_without_changes(cluster: &Cluster<'_>) {
    const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    let (pod, conf) = prepared(cluster);
    let ready = cluster.store.dump().unwrap()[CLUSTER].clone();
    let mut not_ready = ready.clone();
    not_ready["spec"]["datastoreReady"] = json!(false);
    cluster.store.put(CLUSTER, &not_ready).unwrap();
    let before = state(cluster);
    let error = failed_add(cluster, &pod, &conf);
    assert_eq!(
        (error.code, error.msg.contains("not ready")),
        (11, true),
        "{error:?}"
    );
    assert_eq!(state(cluster), before);
}

fn failed_connections() -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut rows = counters
        .lines()
        .filter_map(|line| line.strip_prefix("Tcp: "))
        .map(str::split_whitespace);
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    names
        .zip(values)
        .find(|(name, _)| *name == "AttemptFails")
        .unwrap()
        .1
        .parse()
        .unwrap()
}

#[on(etcd)]
fn add_with_etcd_unreachable_fails_with_a_transient_error(cluster: &Cluster<'_>) {
    let conf = cluster.conf("node1", json!({ "etcd_endpoints": "http://127.0.0.1:1" }));
    let before = failed_connections();
    let error = cluster.verb("ADD", &cluster.pod(1), &conf).run().error();
    assert_eq!(
        (error.code, error.msg.contains("127.0.0.1:1")),
        (11, true),
        "{error:?}"
    );
    assert_eq!(
        failed_connections() - before,
        1,
        "the runtime repeats the call, not the plugin: {error:?}"
    );
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
}

#[on(etcd, local)]
fn add_on_an_exhausted_pool_fails_and_names_the_pool(cluster: &Cluster<'_>) {
    cluster.load(
        &Content::ready()
            .node("node1")
            .pool("tiny", "10.65.0.0/30", 30),
    );
    let conf = cluster.conf("node1", json!({}));
    let pods: Vec<_> = (1..=5).map(|number| cluster.pod(number)).collect();
    pods[..4]
        .iter()
        .for_each(|pod| drop(cluster.add(pod, &conf)));
    let before = state(cluster);
    let error = cluster.verb("ADD", &pods[4], &conf).run().error();
    let said = format!("{} {}", error.msg, error.details);
    for words in ["tiny", "4 of 4"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    assert_eq!(state(cluster), before);
    cluster.delete(&pods[0], &conf);
    cluster.add(&pods[4], &conf);
}

#[on(etcd, local)]
fn each_log_line_of_a_call_names_container_pod_and_endpoint(cluster: &Cluster<'_>) {
    const LOG: &str = "/var/log/calico/cni/cni.log";
    let (pod, mut conf) = prepared(cluster);
    conf["log_file_path"] = json!(LOG);
    conf["log_level"] = json!("debug");
    let id = &pod.container_id;
    let container = format!(" ContainerID=\"{id}\" WorkloadEndpoint=\"node1-cni-{id}-eth0\"");
    let web = format!(
        " ContainerID=\"{id}\" Namespace=\"default\" Pod=\"web\" \
         WorkloadEndpoint=\"node1-k8s-web-eth0\""
    );
    for (args, end) in [
        ("", &container),
        ("K8S_POD_NAMESPACE=default;K8S_POD_NAME=web", &web),
    ] {
        let mut refused = conf.clone();
        refused["ipam"]["ipv4_pools"] = json!(["10.99.0.0/16"]);
        let mut unreadable = conf.clone();
        unreadable["mtu"] = json!("much");
        // Each call, its exit status, and texts that exactly one log line each contains.
        let expected: [(&str, &Value, i32, &[&str]); 4] = [
            ("ADD", &refused, 1, &["ADD failed error="]),
            (
                "ADD",
                &conf,
                0,
                &[
                    "assigned addresses addresses=\"10.65.",
                    "interface is up",
                    "endpoint is stored",
                ],
            ),
            (
                "DEL",
                &conf,
                0,
                &[
                    "deleted the interface",
                    "deleted the endpoint",
                    "ended the release of the container's addresses addresses=\"10.65.",
                ],
            ),
            (
                "ADD",
                &unreadable,
                1,
                &["the call is refused command=\"ADD\" error="],
            ),
        ];
        for (verb, conf, exit, words) in expected {
            _ = fs::remove_file(LOG);
            let call = cluster.verb(verb, &pod, conf).env("CNI_ARGS", args);
            let outcome = call.run();
            assert_eq!(
                outcome.exit,
                Some(exit),
                "{verb}: {}{}",
                outcome.stdout,
                outcome.stderr
            );
            let log = fs::read_to_string(LOG).unwrap();
            assert_eq!(log, outcome.stderr, "the file has the same lines");
            log.lines().for_each(|line| {
                assert!(line.ends_with(end.as_str()), "{end} does not end {line}")
            });
            for word in words {
                let lines: Vec<&str> = log.lines().filter(|line| line.contains(word)).collect();
                assert_eq!(
                    lines.len(),
                    1,
                    "{verb}: {word:?} is in {} lines of {log}",
                    lines.len()
                );
                let level = if exit == 0 { "[INFO]" } else { "[ERROR]" };
                assert!(lines[0].contains(level), "{}", lines[0]);
                let parts: &[&str] = match *word {
                    word if word.starts_with("assigned") => {
                        &[" blocks=\"10.65.", " pools=\"", " handle="]
                    }
                    word if word.starts_with("ended the release") => &[" handle="],
                    _ => &[],
                };
                assert!(
                    parts.iter().all(|part| lines[0].contains(part)),
                    "{}",
                    lines[0]
                );
            }
            assert_eq!(log.contains("[DEBUG]"), conf != &unreadable, "{log}");
            let by_hand = integration_tests::command::run("grep", &[id.as_str(), LOG]).unwrap();
            assert_eq!(by_hand, log, "grep of the container's id finds each line");
        }
    }
}
