//! STATUS names causes for which an ADD would fail; GC removes containers that the runtime does not
//! list.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use integration_tests::cluster::{Cluster, Pod, handle, on};
use integration_tests::command::{ip, run};
use integration_tests::content::{Content, NETWORK};
use integration_tests::kernel;
use integration_tests::plugin::{Call, CniError};
use integration_tests::store::Store;
use serde_json::{Value, json};

const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/pool4";
const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/node1";

/// Returns a configuration of the version that STATUS and GC need.
fn prepared(cluster: &Cluster<'_>, more: Value) -> Value {
    cluster.load(&Content::dual_stack());
    let mut conf = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
    conf.as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap_or_default());
    conf
}

fn verb(cluster: &Cluster<'_>, verb: &str, conf: &Value) -> Call {
    cluster
        .plugins
        .call("calico")
        .env("CNI_COMMAND", verb)
        .stdin(conf.to_string())
}

fn unavailable(cluster: &Cluster<'_>, conf: &Value) -> CniError {
    let error = verb(cluster, "STATUS", conf).run().error();
    assert_eq!(error.code, 50, "{error:?}");
    error
}

fn assert_unavailable(cluster: &Cluster<'_>, conf: &Value, words: &str) {
    let error = unavailable(cluster, conf);
    assert!(
        format!("{} {}", error.msg, error.details).contains(words),
        "{words:?} is not in {error:?}"
    );
}

#[on(etcd, local)]
fn status_of_a_working_node_succeeds_with_few_requests(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let before = cluster.state();
    let timings = cluster.host.dir("timings").join("status");
    let outcome = verb(cluster, "STATUS", &conf)
        .env("CALICO_TIMINGS", &timings)
        .run();
    assert_eq!(
        (outcome.success(), outcome.stderr.as_str()),
        (json!(""), "")
    );
    assert_eq!(cluster.state(), before);
    let timings: Value = serde_json::from_str(&fs::read_to_string(timings).unwrap()).unwrap();
    // The second request reads the alarms.
    let expected = if matches!(cluster.store, Store::Etcd(_)) {
        2
    } else {
        1
    };
    assert_eq!(
        timings["requests"], expected,
        "runtimes ask every few seconds: {timings}"
    );
    // STATUS exists since version 1.1.0.
    let old = cluster.conf("node1", json!({ "cniVersion": "1.0.0" }));
    assert_eq!(verb(cluster, "STATUS", &old).run().error().code, 1);
}

#[on(etcd, local)]
fn status_names_each_cause_of_a_failing_add(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let with = |more: Value| prepared(cluster, more);

    assert_unavailable(
        cluster,
        &with(json!({ "require_mtu_file": true })),
        "/var/lib/calico/mtu",
    );
    // On the embedded datastore, an ADD creates a missing Node.
    let makes_nodes = matches!(cluster.store, Store::Local(_));
    let assert_without_node = |conf: &Value, words: &str| match makes_nodes {
        true => _ = verb(cluster, "STATUS", conf).run().success(),
        false => assert_unavailable(cluster, conf, words),
    };
    assert_without_node(&with(json!({ "nodename": "stranger" })), "Node(stranger)");

    let content = cluster.store.dump().unwrap();
    let mut not_ready = content[CLUSTER].clone();
    not_ready["spec"]["datastoreReady"] = json!(false);
    cluster.store.put(CLUSTER, &not_ready).unwrap();
    assert_unavailable(cluster, &conf, "not ready");
    cluster.store.delete(CLUSTER).unwrap();
    assert_unavailable(cluster, &conf, "ClusterInformation");
    cluster.store.put(CLUSTER, &content[CLUSTER]).unwrap();

    cluster.store.delete(POOL).unwrap();
    assert_unavailable(cluster, &conf, "pool");
    let v6 =
        json!({ "ipam": { "type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true" } });
    let mut conf_v6 = conf.clone();
    conf_v6
        .as_object_mut()
        .unwrap()
        .extend(v6.as_object().cloned().unwrap());
    verb(cluster, "STATUS", &conf_v6).run().success();
    cluster.store.put(POOL, &content[POOL]).unwrap();

    cluster.store.delete(NODE).unwrap();
    assert_without_node(&conf, "Node(node1)");
    cluster.store.put(NODE, &content[NODE]).unwrap();
    verb(cluster, "STATUS", &conf).run().success();
}

/// A runtime calls STATUS every few seconds.
#[on(etcd)]
fn status_with_etcd_unreachable_fails_with_code_50(cluster: &Cluster<'_>) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    // Without a neighbor entry, the kernel finds the address unreachable after three seconds.
    // No interface has this hardware address.
    ip("neighbour add 192.0.2.77 lladdr 02:00:00:00:00:02 dev uplink0 nud permanent").unwrap();
    for (endpoints, says) in [
        ("http://127.0.0.1:1", "refused"),
        // The error has the time that remained for the request.
        (silent.as_str(), "no answer within "),
        ("http://192.0.2.77:2379", "no answer within "),
    ] {
        let conf = prepared(cluster, json!({ "etcd_endpoints": endpoints }));
        let error = verb(cluster, "STATUS", &conf).run().error();
        assert_eq!(error.code, 50);
        assert!(error.msg.contains(says), "{error:?}");
    }
}

#[on(etcd)]
fn status_names_an_alarm_of_etcd_until_it_ends(cluster: &Cluster<'_>) {
    let Store::Etcd(etcd) = &cluster.store else {
        panic!("not on etcd")
    };
    let conf = prepared(cluster, json!({}));
    for (alarm, advice) in [("NOSPACE", "defragment etcd"), ("CORRUPT", "alarm list")] {
        etcd.raise_alarm(alarm).unwrap();
        assert_unavailable(cluster, &conf, advice);
        etcd.ctl(&["alarm", "disarm"]).unwrap();
        verb(cluster, "STATUS", &conf).run().success();
    }
}

#[on(local)]
fn status_names_an_embedded_datastore_that_cannot_be_opened(cluster: &Cluster<'_>) {
    let path = "/proc/nowhere/calico.db";
    assert_unavailable(
        cluster,
        &prepared(cluster, json!({ "datastore_path": path })),
        path,
    );
}

/// The embedded datastore works without calico-node, which writes the file.
#[on(etcd, local)]
fn nodename_file_is_required_on_etcd_and_optional_on_the_embedded_datastore(cluster: &Cluster<'_>) {
    const FILE: &str = "/var/lib/calico/nodename";
    let conf = prepared(cluster, json!({ "nodename_file_optional": false }));
    if matches!(cluster.store, Store::Local(_)) {
        verb(cluster, "STATUS", &conf).run().success();
        return;
    }
    assert_unavailable(cluster, &conf, FILE);
    let pod = cluster.pod(1);
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(
        error.msg.contains(FILE) && error.details.contains("calico/node"),
        "{error:?}"
    );
    // The host name may be the name of another node, whose containers are not in the list.
    let mut unnamed = valid(&conf, &[]);
    unnamed["nodename"] = json!("");
    let error = verb(cluster, "GC", &unnamed).run().error();
    assert!(error.msg.contains(FILE), "{error:?}");
    fs::create_dir_all("/var/lib/calico").unwrap();
    fs::write(FILE, "").unwrap();
    verb(cluster, "STATUS", &conf).run().success();
    cluster.add(&pod, &conf);
}

#[on(etcd, local)]
fn status_queries_a_foreign_ipam_plugin(cluster: &Cluster<'_>) {
    let conf = |kind: &str| prepared(cluster, json!({ "ipam": { "type": kind } }));
    assert_unavailable(cluster, &conf("no-such-ipam"), "no-such-ipam");

    let dir = cluster.host.dir("ipam");
    // Another process writes the program. A process that another test forks from this one would
    // have the file open, and the program could not be executed.
    let plugin = |name: &str, script: &str| {
        let (text, program) = (dir.join("text"), dir.join(name));
        fs::write(&text, format!("#!/bin/sh\n{script}\n")).unwrap();
        let words: [&OsStr; 4] = [
            "-m".as_ref(),
            "755".as_ref(),
            text.as_os_str(),
            program.as_os_str(),
        ];
        run("install", &words).unwrap();
    };
    plugin("well", "test \"$CNI_COMMAND\" = STATUS");
    plugin(
        "full",
        "echo '{\"code\": 11, \"msg\": \"no addresses today\"}'; exit 1",
    );
    plugin(
        "old",
        "echo '{\"code\": 1, \"msg\": \"incompatible CNI versions\"}'; exit 1",
    );
    let status = |kind: &str| {
        verb(cluster, "STATUS", &conf(kind))
            .env("CNI_PATH", dir.as_os_str())
            .run()
    };
    status("well").success();
    status("old").success();
    let error = status("full").error();
    assert_eq!((error.code, error.msg.as_str()), (50, "no addresses today"));
}

fn valid(conf: &Value, pods: &[&Pod]) -> Value {
    let mut conf = conf.clone();
    let known = pods
        .iter()
        .map(|pod| json!({ "containerID": pod.container_id, "ifname": "eth0" }));
    conf["cni.dev/valid-attachments"] = known.collect();
    conf
}

fn holders(cluster: &Cluster<'_>) -> BTreeSet<String> {
    cluster.accounts().held.into_values().collect()
}

#[on(etcd, local)]
fn gc_releases_unlisted_containers_of_its_node_and_network(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack().node("node2"));
    let here = cluster.conf("node1", json!({ "cniVersion": "1.1.0" }));
    let there = cluster.conf("node2", json!({ "cniVersion": "1.1.0" }));
    let other = cluster.conf(
        "node1",
        json!({ "cniVersion": "1.1.0", "name": "other-network" }),
    );
    let longer = cluster.conf(
        "node1",
        json!({ "cniVersion": "1.1.0", "name": format!("{NETWORK}.blue") }),
    );
    let pods: Vec<_> = (0..6).map(|number| cluster.pod(number)).collect();
    let [kept, stale, gone, elsewhere, stranger, longer_name] = &pods[..] else {
        unreachable!()
    };
    for (pod, conf) in [
        (kept, &here),
        (stale, &here),
        (gone, &here),
        (elsewhere, &there),
        (stranger, &other),
        (longer_name, &longer),
    ] {
        cluster.add(pod, conf);
    }
    cluster.host.delete_pod(&gone.name).unwrap();
    // A VMI's addresses have their own handle and outlive its containers.
    let vm = "vmi.default.vm1";
    cluster
        .plugins
        .verb("calico-ipam", "ADD", vm, &kept.netns, &here)
        .run()
        .success();

    verb(cluster, "GC", &valid(&here, &[kept])).run().success();
    let expected = [
        handle(kept),
        handle(elsewhere),
        format!("other-network.{}", stranger.container_id),
        format!("{NETWORK}.blue.{}", longer_name.container_id),
        format!("{NETWORK}.{vm}"),
    ];
    assert_eq!(holders(cluster), BTreeSet::from(expected));
    let endpoints: BTreeSet<_> = cluster.endpoints().into_keys().collect();
    let of = |node: &str, pod: &Pod| format!("default/{node}-cni-{}-eth0", pod.container_id);
    let expected = [
        of("node1", kept),
        of("node2", elsewhere),
        of("node1", stranger),
        of("node1", longer_name),
    ];
    assert_eq!(endpoints, BTreeSet::from(expected));
    assert_eq!(cluster.accounts().problems, Vec::<String>::new());

    let host = kernel::host().unwrap();
    assert_eq!(
        host["links"].as_object().unwrap().len(),
        4,
        "{}",
        host["links"]
    );
    assert_eq!(
        kernel::pod(cluster.host, &stale.name).unwrap()["links"],
        json!({})
    );
    assert!(kernel::pod(cluster.host, &kept.name).unwrap()["links"]["eth0"].is_object());

    let before = cluster.state();
    verb(cluster, "GC", &valid(&here, &[kept])).run().success();
    assert_eq!(cluster.state(), before);

    verb(cluster, "GC", &valid(&here, &[])).run().success();
    assert_eq!(holders(cluster).len(), 4);
    assert_eq!(cluster.endpoints().len(), 3);
}

#[on(etcd, local)]
fn gc_reports_all_failures_together_and_releases_the_rest(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let pods: Vec<_> = (1..=3).map(|number| cluster.pod(number)).collect();
    pods.iter().for_each(|pod| drop(cluster.add(pod, &conf)));
    let content = cluster.store.dump().unwrap();
    let handle_key = |pod: &Pod| {
        content
            .keys()
            .find(|key| key.ends_with(&format!("/handle/{}", handle(pod))))
            .unwrap()
    };
    for pod in &pods[..2] {
        cluster
            .store
            .put(handle_key(pod), &json!({ "block": "damaged" }))
            .unwrap();
    }
    let error = verb(cluster, "GC", &valid(&conf, &[])).run().error();
    for pod in &pods[..2] {
        assert!(error.details.contains(&handle(pod)), "{error:?}");
    }
    assert!(!error.details.contains(&handle(&pods[2])), "{error:?}");
    assert_eq!(
        cluster.accounts().held.len(),
        2,
        "the third pod's address is free"
    );
    assert_eq!(cluster.endpoints().len(), 0);

    for pod in &pods[..2] {
        cluster
            .store
            .put(handle_key(pod), &content[handle_key(pod)])
            .unwrap();
    }
    verb(cluster, "GC", &valid(&conf, &[])).run().success();
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn gc_without_a_list_of_valid_attachments_is_refused(cluster: &Cluster<'_>) {
    let conf = prepared(cluster, json!({}));
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let before = cluster.state();
    let error = verb(cluster, "GC", &conf).run().error();
    assert_eq!(
        (error.code, error.msg.contains("cni.dev/valid-attachments")),
        (7, true),
        "{error:?}"
    );
    let mut misspelt = conf.clone();
    misspelt["cni.dev/attachments"] = json!([]);
    assert_eq!(verb(cluster, "GC", &misspelt).run().error().code, 7);
    let not_ready = {
        let mut object = cluster.store.dump().unwrap()[CLUSTER].clone();
        object["spec"]["datastoreReady"] = json!(false);
        object
    };
    assert_eq!(cluster.state(), before);
    cluster.store.put(CLUSTER, &not_ready).unwrap();
    let error = verb(cluster, "GC", &valid(&conf, &[])).run().error();
    assert!(error.msg.contains("not ready"), "{error:?}");
    assert_eq!(cluster.accounts().held.len(), 1);
    assert!(Path::new(&pod.netns).exists());
}
