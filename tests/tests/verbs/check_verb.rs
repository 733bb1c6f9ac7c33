//! CHECK with one broken item at a time.

use std::fs;

use integration_tests::cluster::{Cluster, Pod, handle, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::store::Store;
use serde_json::{Value, json};

const HOST_LINK: &str = "cali00000001ccc";

/// Returns a dual-stack pod, and its configuration with prevResult.
fn added(cluster: &Cluster<'_>) -> (Pod, Value) {
    cluster.load(&Content::dual_stack());
    let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
    let pod = cluster.pod(1);
    let conf = cluster.conf("node1", json!({ "ipam": ipam, "mtu": 1410 }));
    let result = cluster.add(&pod, &conf);
    assert_eq!(result["interfaces"][0]["name"], HOST_LINK);
    let mut with_result = conf;
    with_result["prevResult"] = result;
    (pod, with_result)
}

fn assert_passes(cluster: &Cluster<'_>, pod: &Pod, conf: &Value) {
    let outcome = cluster.verb("CHECK", pod, conf).run();
    assert_eq!(
        (outcome.exit, outcome.stdout.as_str()),
        (Some(0), ""),
        "stderr: {}",
        outcome.stderr
    );
}

fn assert_named(cluster: &Cluster<'_>, pod: &Pod, conf: &Value, thing: &str, words: &[&str]) {
    let outcome = cluster.verb("CHECK", pod, conf).run();
    assert_eq!(outcome.exit, Some(1), "{thing} went unnoticed");
    let error = outcome.error();
    let said = format!("{} {}", error.msg, error.details);
    for word in words {
        assert!(said.contains(word), "{thing}: {word:?} is not in: {said}");
    }
}

#[on(etcd, local)]
fn check_of_an_unchanged_pod_succeeds(cluster: &Cluster<'_>) {
    let (pod, conf) = added(cluster);
    assert_passes(cluster, &pod, &conf);
    cluster.delete(&pod, &conf);
    assert_named(cluster, &pod, &conf, "a deleted pod", &["eth0"]);
}

/// The changes of `tuning` and `sbr`, and further addresses in the result of the last plugin.
#[on(etcd, local)]
fn check_accepts_the_changes_of_later_plugins(cluster: &Cluster<'_>) {
    let (pod, mut conf) = added(cluster);
    let mac = "02:00:00:00:00:99";
    for command in [
        "link set eth0 mtu 1400".to_owned(),
        format!("link set eth0 address {mac}"),
        "route add 169.254.1.1 dev eth0 table 100".to_owned(),
        "route del default".to_owned(),
        "route del 169.254.1.1".to_owned(),
        "address add 192.0.2.99/24 dev eth0".to_owned(),
    ] {
        ip(&format!("-n {} {command}", pod.name)).unwrap();
    }
    ip(&format!(
        "netns exec {} sysctl -qw net.ipv4.ip_forward=1",
        pod.name
    ))
    .unwrap();
    let result = &mut conf["prevResult"];
    result["interfaces"][1]["mac"] = json!(mac);
    result["interfaces"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "bwp00000000" }));
    result["ips"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "address": "192.0.2.99/24", "interface": 1 }));
    result["routes"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "dst": "0.0.0.0/0" }));
    assert_passes(cluster, &pod, &conf);
}

#[on(etcd, local)]
fn check_without_a_prev_result_fails(cluster: &Cluster<'_>) {
    let (pod, mut conf) = added(cluster);
    conf.as_object_mut().unwrap().remove("prevResult");
    assert_named(cluster, &pod, &conf, "no prevResult", &["prevResult"]);
}

/// An item in the kernel, the commands that break it, the commands that repair it, and words of its
/// error.
type Breakage = (&'static str, Vec<String>, Vec<String>, Vec<String>);

#[on(etcd, local)]
fn check_names_each_defect_in_the_kernel(cluster: &Cluster<'_>) {
    let (pod, conf) = added(cluster);
    let result = &conf["prevResult"];
    let v4 = result["ips"][0]["address"].as_str().unwrap().to_owned();
    let v6 = result["ips"][1]["address"].as_str().unwrap().to_owned();
    let in_pod = |command: &str| format!("ip -n {} {command}", pod.name);
    let in_host = |command: &str| format!("ip {command}");
    let sysctl = |path: String, value: u8| format!("sysctl {path} {value}");
    let of =
        |name: &'static str, broken: &[String], repairs: &[String], words: &[&str]| -> Breakage {
            (
                name,
                broken.to_vec(),
                repairs.to_vec(),
                words.iter().map(|w| (*w).to_owned()).collect(),
            )
        };
    let v4_bare = v4.trim_end_matches("/32");
    let breakages = [
        of(
            "the host's route",
            &[in_host(&format!("route del {v4}"))],
            &[in_host(&format!(
                "route add {v4} dev {HOST_LINK} scope link"
            ))],
            &[v4_bare, HOST_LINK],
        ),
        of(
            "the host's IPv6 route",
            &[in_host(&format!("-6 route del {v6}"))],
            &[in_host(&format!(
                "-6 route add {v6} dev {HOST_LINK} metric 1024"
            ))],
            &[v6.trim_end_matches("/128"), HOST_LINK],
        ),
        of(
            "the host's MTU",
            &[in_host(&format!("link set {HOST_LINK} mtu 1400"))],
            &[in_host(&format!("link set {HOST_LINK} mtu 1410"))],
            &["1400", "1410", HOST_LINK],
        ),
        of(
            "the pod's address",
            &[in_pod(&format!("address del {v4} dev eth0"))],
            &[in_pod(&format!("address add {v4} dev eth0"))],
            &[v4_bare],
        ),
        of(
            "the host's MAC",
            &[in_host(&format!(
                "link set {HOST_LINK} address 02:00:00:00:00:96"
            ))],
            &[in_host(&format!(
                "link set {HOST_LINK} address ee:ee:ee:ee:ee:ee"
            ))],
            &["02:00:00:00:00:96", HOST_LINK],
        ),
        of(
            "the host's link",
            &[in_host(&format!("link set {HOST_LINK} down"))],
            &[
                in_host(&format!("link set {HOST_LINK} up")),
                in_host(&format!("route add {v4} dev {HOST_LINK} scope link")),
                in_host(&format!("-6 route add {v6} dev {HOST_LINK} metric 1024")),
            ],
            &[HOST_LINK],
        ),
        of(
            "proxy_arp",
            &[sysctl(format!("ipv4/conf/{HOST_LINK}/proxy_arp"), 0)],
            &[sysctl(format!("ipv4/conf/{HOST_LINK}/proxy_arp"), 1)],
            &["proxy_arp"],
        ),
        of(
            "IPv6 forwarding",
            &[sysctl(format!("ipv6/conf/{HOST_LINK}/forwarding"), 0)],
            &[sysctl(format!("ipv6/conf/{HOST_LINK}/forwarding"), 1)],
            &["forwarding"],
        ),
        of(
            "a neighbour",
            &[in_pod(
                "neighbour replace 169.254.1.1 lladdr 02:00:00:00:00:98 dev eth0 nud permanent",
            )],
            &[in_pod("neighbour del 169.254.1.1 dev eth0")],
            &["169.254.1.1", "02:00:00:00:00:98"],
        ),
    ];
    for (thing, broken, repairs, words) in breakages {
        broken.iter().for_each(|command| apply(command));
        assert_named(
            cluster,
            &pod,
            &conf,
            thing,
            &words.iter().map(String::as_str).collect::<Vec<_>>(),
        );
        repairs.iter().for_each(|command| apply(command));
        assert_passes(cluster, &pod, &conf);
    }
}

fn apply(command: &str) {
    match command.split_once(' ').unwrap() {
        ("ip", arguments) => ip(arguments).unwrap(),
        (_, assignment) => {
            let (path, value) = assignment.split_once(' ').unwrap();
            fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
        }
    }
}

#[on(etcd, local)]
fn check_names_each_defect_in_the_datastore(cluster: &Cluster<'_>) {
    let (pod, conf) = added(cluster);
    let content = cluster.store.dump().unwrap();
    let key = |part: &str| {
        content
            .keys()
            .find(|key| key.contains(part))
            .unwrap()
            .clone()
    };
    let (endpoint, block) = (key("/workloadendpoints/"), key("/ipv4/block/10."));
    let other = json!("10.65.77.77/32");
    let breakages: [(&str, &str, &str, Value, &str); 4] = [
        (
            "the endpoint's address",
            &endpoint,
            "/spec/ipNetworks/0",
            other,
            "10.65.77.77",
        ),
        (
            "the endpoint's interface",
            &endpoint,
            "/spec/interfaceName",
            json!("cali-other"),
            "cali-other",
        ),
        (
            "the endpoint's container",
            &endpoint,
            "/spec/containerID",
            json!("another"),
            "another",
        ),
        (
            "the holder of the address",
            &block,
            "/attributes/0/handle_id",
            json!("someone-else"),
            "someone-else",
        ),
    ];
    for (thing, key, path, value, word) in breakages {
        let mut object = content[key].clone();
        *object
            .pointer_mut(path)
            .unwrap_or_else(|| panic!("{key} has no {path}")) = value;
        put(&cluster.store, key, &object);
        assert_named(cluster, &pod, &conf, thing, &[word]);
        put(&cluster.store, key, &content[key]);
        assert_passes(cluster, &pod, &conf);
    }
    for (thing, key, word) in [
        ("no endpoint", endpoint.clone(), pod.container_id.clone()),
        ("no handle", key("/ipam/v2/handle/"), handle(&pod)),
    ] {
        delete(&cluster.store, &key);
        assert_named(cluster, &pod, &conf, thing, &[&word]);
        put(&cluster.store, &key, &content[&key]);
        assert_passes(cluster, &pod, &conf);
    }
}

fn put(store: &Store, key: &str, value: &Value) {
    store.put(key, value).unwrap();
}

fn delete(store: &Store, key: &str) {
    store.delete(key).unwrap();
}
