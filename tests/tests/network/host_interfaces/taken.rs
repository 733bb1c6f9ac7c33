//! ADDs for which an interface with the name of the host interface already exists.

use std::thread;

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::journal::{JOURNAL, journal_entries};
use integration_tests::kernel;
use integration_tests::plugin::CniError;
use serde_json::{Value, json};

use crate::host_interfaces::{Sandbox, alias_of};

/// Pods whose host interfaces have the same name.
const VICTIM: (&str, &str) = ("team-a", "p723961");
const NAMESAKE: (&str, &str) = ("team-a", "p6680456");
const SHARED: &str = "calib3d7af96bd3";

/// Pods of two namespaces whose host interfaces have the same name.
const NEIGHBOR: (&str, &str) = ("team-a", "p1469077");
const TENANT: (&str, &str) = ("team-b", "p358033");
const SHARED_BY_NAMESPACES: &str = "cali1f5545acb16";

fn prepared(cluster: &Cluster<'_>) -> Value {
    cluster.load(&Content::dual_stack());
    let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
    cluster.conf("node1", json!({ "ipam": ipam }))
}

fn sandbox(
    cluster: &Cluster<'_>,
    number: usize,
    (namespace, name): (&'static str, &'static str),
) -> Sandbox {
    Sandbox::new(cluster, number, namespace, name)
}

fn add(cluster: &Cluster<'_>, sandbox: &Sandbox, conf: &Value) -> Value {
    sandbox.call(cluster, "ADD", conf).run().success()
}

#[track_caller]
fn refused(cluster: &Cluster<'_>, sandbox: &Sandbox, conf: &Value) -> CniError {
    let before = cluster.state();
    let error = sandbox.call(cluster, "ADD", conf).run().error();
    cluster.assert_unchanged(&before);
    error
}

#[track_caller]
fn assert_says(error: &CniError, words: &[&str]) {
    for word in words {
        assert!(error.msg.contains(word), "{word:?} is not in {error:?}");
    }
}

fn check(cluster: &Cluster<'_>, sandbox: &Sandbox, conf: &Value, result: &Value) {
    let mut conf = conf.clone();
    conf["prevResult"] = result.clone();
    sandbox.call(cluster, "CHECK", &conf).run().success();
}

/// Shows SEC-8.
#[on(etcd, local)]
fn host_interface_name_of_another_pod_is_an_error_naming_the_pod(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let (victim, namesake) = (sandbox(cluster, 1, VICTIM), sandbox(cluster, 2, NAMESAKE));
    assert_eq!(
        (victim.host_ifname(), namesake.host_ifname()),
        (SHARED.to_owned(), SHARED.to_owned())
    );
    let result = add(cluster, &victim, &conf);
    let holder = [SHARED, &victim.pod.container_id, "team-a/p723961"];
    assert_says(&refused(cluster, &namesake, &conf), &holder);
    check(cluster, &victim, &conf, &result);
    // A pod may set its interface down.
    ip(&format!("-n {} link set eth0 down", victim.pod.name)).unwrap();
    assert_says(&refused(cluster, &namesake, &conf), &holder[..1]);
    ip(&format!("-n {} link set eth0 up", victim.pod.name)).unwrap();

    let before = cluster.state();
    namesake.call(cluster, "DEL", &conf).run().success();
    namesake
        .call(cluster, "DEL", &conf)
        .env("CNI_NETNS", "")
        .run()
        .success();
    cluster.assert_unchanged(&before);

    victim.call(cluster, "DEL", &conf).run().success();
    let result = add(cluster, &namesake, &conf);
    check(cluster, &namesake, &conf, &result);
    victim
        .call(cluster, "DEL", &conf)
        .env("CNI_NETNS", "")
        .run()
        .success();
    check(cluster, &namesake, &conf, &result);
    namesake.call(cluster, "DEL", &conf).run().success();
    cluster.assert_nothing_left();
}

/// kubelet writes the error into an Event, which the tenant can read. Shows SEC-8.
#[on(etcd, local)]
fn host_interface_of_another_namespace_is_not_named(cluster: &Cluster<'_>) {
    let mut conf = prepared(cluster);
    conf["log_level"] = json!("info");
    let (neighbor, tenant) = (sandbox(cluster, 1, NEIGHBOR), sandbox(cluster, 2, TENANT));
    let shared = SHARED_BY_NAMESPACES.to_owned();
    assert_eq!(
        (neighbor.host_ifname(), tenant.host_ifname()),
        (shared.clone(), shared.clone())
    );
    let result = add(cluster, &neighbor, &conf);
    let before = cluster.state();
    let outcome = tenant.call(cluster, "ADD", &conf).run();
    let error = outcome.error();
    assert_eq!(
        error.msg,
        format!("host interface {shared} belongs to another pod (pod of another namespace)")
    );
    assert!(
        error
            .details
            .contains("the plugin's log on the node names the owner"),
        "{error:?}"
    );
    let (pod, container) = (
        format!("{}/{}", NEIGHBOR.0, NEIGHBOR.1),
        neighbor.pod.container_id.as_str(),
    );
    for name in [NEIGHBOR.0, NEIGHBOR.1, container] {
        assert!(
            !outcome.stdout.contains(name),
            "{name} is in {}",
            outcome.stdout
        );
    }
    assert!(
        outcome.stderr.contains(&pod) && outcome.stderr.contains(container),
        "{}",
        outcome.stderr
    );
    cluster.assert_unchanged(&before);
    check(cluster, &neighbor, &conf, &result);
    tenant.call(cluster, "DEL", &conf).run().success();
    neighbor.call(cluster, "DEL", &conf).run().success();
    cluster.assert_nothing_left();
}

/// Between the creation of a pair and the write of its alias, the pair has no identified owner.
/// Shows SEC-8.
#[on(etcd, local)]
fn two_concurrent_pods_with_the_same_host_interface_connect_exactly_one(cluster: &Cluster<'_>) {
    const TURNS: usize = 40;
    let conf = prepared(cluster);
    let sandboxes = [sandbox(cluster, 1, VICTIM), sandbox(cluster, 2, NAMESAKE)];
    for turn in 0..TURNS {
        let outcomes = thread::scope(|scope| {
            let adds: Vec<_> = sandboxes
                .iter()
                .map(|sandbox| scope.spawn(|| sandbox.call(cluster, "ADD", &conf).run()))
                .collect();
            adds.into_iter()
                .map(|add| add.join().unwrap())
                .collect::<Vec<_>>()
        });
        let connected: Vec<_> = (0..2).filter(|n| outcomes[*n].exit == Some(0)).collect();
        let [winner] = connected[..] else {
            panic!("turn {turn}: {outcomes:?}")
        };
        assert_says(&outcomes[1 - winner].error(), &[SHARED]);
        check(
            cluster,
            &sandboxes[winner],
            &conf,
            &outcomes[winner].success(),
        );
        for sandbox in &sandboxes {
            sandbox.call(cluster, "DEL", &conf).run().success();
        }
        cluster.assert_nothing_left();
    }
}

/// The runtime runs CHECK and DEL of both interfaces.
#[on(etcd, local)]
fn add_of_a_second_pod_interface_returns_the_first_result_and_changes_nothing(
    cluster: &Cluster<'_>,
) {
    let mut conf = prepared(cluster);
    conf["log_level"] = json!("info");
    let pod = sandbox(cluster, 1, VICTIM);
    let result = add(cluster, &pod, &conf);
    // Another plugin's interface has the requested name.
    ip(&format!("-n {} link add net1 type bridge", pod.pod.name)).unwrap();
    let before = cluster.state();
    let second = |verb: &str, conf: &Value| {
        pod.call(cluster, verb, conf)
            .env("CNI_IFNAME", "net1")
            .run()
    };
    let added = second("ADD", &conf);
    assert_eq!(added.success(), result);
    assert!(
        added.stderr.contains("eth0") && added.stderr.contains("net1"),
        "{}",
        added.stderr
    );
    cluster.assert_unchanged(&before);
    let mut with_first = conf.clone();
    with_first["prevResult"] = result.clone();
    second("CHECK", &with_first).success();
    second("DEL", &with_first).success();
    cluster.assert_unchanged(&before);
    second("DEL", &conf).success();
    cluster.assert_unchanged(&before);

    // Runtimes before CNI 0.4.0 send a DEL without prevResult.
    second("DEL", &away(&conf)).success();
    let mut with_result = away(&conf);
    with_result["prevResult"] = json!({ "cniVersion": "1.0.0", "interfaces": [], "ips": [] });
    second("DEL", &with_result).success();
    for conf in [&conf, &with_first, &away(&conf), &away(&with_first)] {
        for netns in ["", "/var/run/netns/gone"] {
            let del = pod
                .call(cluster, "DEL", conf)
                .env("CNI_IFNAME", "net1")
                .env("CNI_NETNS", netns);
            del.run().success();
        }
    }
    assert!(
        journal_entries().is_empty(),
        "no journal entry for a later call: {:?}",
        journal_entries()
    );
    cluster.assert_unchanged(&before);
    check(cluster, &pod, &conf, &result);
    let other = cluster.conf("node1", json!({ "name": "other-network" }));
    assert_says(&second("ADD", &other).error(), &[SHARED, "eth0"]);
    second("DEL", &other).success();
    check(cluster, &pod, &conf, &result);
    cluster.assert_unchanged(&before);
    ip(&format!("-n {} link delete net1", pod.pod.name)).unwrap();
    assert_eq!(second("ADD", &conf).success(), result);
    let mut gc = conf.clone();
    gc["cniVersion"] = json!("1.1.0");
    gc["cni.dev/valid-attachments"] =
        json!([{ "containerID": pod.pod.container_id, "ifname": "net1" }]);
    cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", "GC")
        .stdin(gc.to_string())
        .run()
        .success();
    second("DEL", &conf).success();
    check(cluster, &pod, &conf, &result);

    // As if upstream's plugin had created the interface.
    replace_alias(SHARED);
    let before = cluster.state();
    assert_eq!(second("ADD", &conf).success(), result);
    assert_says(&second("ADD", &other).error(), &[SHARED, "eth0"]);
    second("DEL", &conf).success();
    cluster.assert_unchanged(&before);
    pod.call(cluster, "DEL", &conf).run().success();
    cluster.assert_nothing_left();
    let files: Vec<_> = std::fs::read_dir(JOURNAL)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path())
        .collect();
    assert!(
        !files.iter().any(|file| file
            .extension()
            .is_some_and(|extension| extension == "second")),
        "{files:?}"
    );
}

fn away(conf: &Value) -> Value {
    let mut away = conf.clone();
    away["etcd_endpoints"] = json!("http://127.0.0.1:1");
    away["datastore_path"] = json!("/proc/nowhere/calico.db");
    away
}

/// KubeVirt's bridge binding renames the pod's end of the pair and gives its name to another
/// interface. Shows SEC-48.
#[on(etcd, local)]
fn del_of_a_pod_with_a_renamed_interface_removes_the_pair(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = sandbox(cluster, 1, VICTIM);
    let result = add(cluster, &pod, &conf);
    for change in [
        "set eth0 down",
        "set eth0 name eth0-nic",
        "set eth0-nic up",
        "add eth0 type bridge",
    ] {
        ip(&format!("-n {} link {change}", pod.pod.name)).unwrap();
    }
    // With an unreachable datastore, only the result of the ADD proves that the interface is the
    // container's.
    let mut away = away(&conf);
    assert_eq!(pod.call(cluster, "DEL", &away).run().error().code, 11);
    away["prevResult"] = result;
    pod.call(cluster, "DEL", &away).run().success();
    assert_eq!(journal_entries().len(), 1);
    pod.call(cluster, "DEL", &conf).run().success();
    assert_eq!(kernel::host().unwrap()["links"], json!({}));
    ip(&format!("-n {} link delete eth0", pod.pod.name)).unwrap();
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn add_with_a_bridge_of_the_host_interface_name_fails(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = sandbox(cluster, 1, VICTIM);
    ip(&format!("link add {SHARED} type bridge")).unwrap();
    assert_says(
        &refused(cluster, &pod, &conf),
        &[SHARED, "not one end of an interface pair"],
    );
    pod.call(cluster, "DEL", &conf).run().success();
    ip(&format!("link delete {SHARED}")).unwrap();
    add(cluster, &pod, &conf);
}

/// The plugin treats an interface with this alias as one without an alias, such as upstream's.
pub(super) fn replace_alias(ifname: &str) {
    ip(&format!("link set dev {ifname} alias other")).unwrap();
    assert_eq!(alias_of(ifname).as_deref(), Some("other"));
}

#[on(etcd, local)]
fn interface_without_alias_with_carrier_is_replaced_if_ipam_proves_ownership(
    cluster: &Cluster<'_>,
) {
    let conf = prepared(cluster);
    let (old, new, namesake) = (
        sandbox(cluster, 1, VICTIM),
        sandbox(cluster, 2, VICTIM),
        sandbox(cluster, 3, NAMESAKE),
    );
    let result = add(cluster, &old, &conf);
    replace_alias(SHARED);
    assert_says(
        &refused(cluster, &namesake, &conf),
        &[SHARED, &old.pod.container_id, "team-a/p723961"],
    );
    check(cluster, &old, &conf, &result);
    let result = add(cluster, &new, &conf);
    assert_eq!(alias_of(SHARED), Some(new.alias()));
    check(cluster, &new, &conf, &result);
    // The same sandbox again: its interface is in its own network namespace.
    replace_alias(SHARED);
    ip("route flush dev calib3d7af96bd3 scope link").unwrap();
    let result = add(cluster, &new, &conf);
    check(cluster, &new, &conf, &result);
}

#[on(etcd, local)]
fn interface_without_alias_with_carrier_stays_without_proof(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let (pod, other) = (
        sandbox(cluster, 1, VICTIM),
        sandbox(cluster, 2, ("team-b", "db-0")),
    );
    let result = add(cluster, &other, &conf);
    cluster.host.add_pod("elsewhere").unwrap();
    ip(&format!(
        "link add {SHARED} type veth peer name eth0 netns elsewhere"
    ))
    .unwrap();
    ip(&format!("link set {SHARED} up")).unwrap();
    ip("-n elsewhere link set eth0 up").unwrap();
    assert_says(&refused(cluster, &pod, &conf), &[SHARED]);
    // An address of another pod and an address in no pool prove nothing.
    let address = result["ips"][0]["address"].as_str().unwrap();
    ip(&format!("route add {address} dev {SHARED} metric 7")).unwrap();
    ip(&format!("route add 192.0.2.77/32 dev {SHARED}")).unwrap();
    let error = refused(cluster, &pod, &conf);
    assert_says(&error, &[SHARED, "pod of another namespace"]);
    assert!(
        !error.msg.contains("db-0") && !error.msg.contains(&other.pod.container_id),
        "{error:?}"
    );
    assert_eq!(
        kernel::pod(cluster.host, "elsewhere").unwrap()["links"]["eth0"]["kind"],
        "veth"
    );
}

#[on(etcd, local)]
fn interface_without_alias_and_carrier_is_replaced(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let (old, new) = (sandbox(cluster, 1, VICTIM), sandbox(cluster, 2, VICTIM));
    add(cluster, &old, &conf);
    replace_alias(SHARED);
    ip(&format!("route flush dev {SHARED} scope link")).unwrap();
    ip(&format!("-n {} link set eth0 down", old.pod.name)).unwrap();
    let result = add(cluster, &new, &conf);
    check(cluster, &new, &conf, &result);
}
