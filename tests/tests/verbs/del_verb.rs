//! DEL removes the interface, the endpoint and the addresses of an ADD, and leaves those of others.

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::command::ip;
use integration_tests::content::Content;
use integration_tests::kernel;
use serde_json::{Value, json};

fn prepared(cluster: &Cluster<'_>) -> Value {
    cluster.load(&Content::dual_stack());
    cluster.conf(
        "node1",
        json!({ "ipam": { "type": "calico-ipam", "assign_ipv6": "true" } }),
    )
}

#[on(etcd, local)]
fn del_before_any_add_and_repeated_del_succeed(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    let before = cluster.state();
    cluster.delete(&pod, &conf);
    assert_eq!(cluster.state(), before);

    cluster.add(&pod, &conf);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
    let after = cluster.state();
    cluster.delete(&pod, &conf);
    assert_eq!(cluster.state(), after);
}

#[on(etcd, local)]
fn del_after_the_netns_is_deleted_removes_everything_else(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    cluster.host.delete_pod(&pod.name).unwrap();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

/// Runtimes that lost the network namespace pass an empty CNI_NETNS, or none.
#[on(etcd, local)]
fn del_without_cni_netns_removes_the_host_interface_too(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    for number in [1, 2] {
        let pod = cluster.pod(number);
        cluster.add(&pod, &conf);
        let call = cluster.verb("DEL", &pod, &conf);
        let call = if number == 1 {
            call.env("CNI_NETNS", "")
        } else {
            call.without_env("CNI_NETNS")
        };
        call.run().success();
        cluster.assert_nothing_left();
    }
}

#[on(etcd, local)]
fn del_after_the_pod_interface_is_deleted_removes_everything_else(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    ip(&format!("-n {} link delete eth0", pod.name)).unwrap();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn del_leaves_the_network_of_another_container(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let (pod, other) = (cluster.pod(1), cluster.pod(2));
    cluster.add(&other, &conf);
    let alone = cluster.state();
    cluster.add(&pod, &conf);
    cluster.delete(&pod, &conf);
    let after = cluster.state();
    for part in ["/host", "/pods/pod2"] {
        assert_eq!(after.pointer(part), alone.pointer(part), "{part}");
    }
    let endpoints: Vec<_> = cluster.endpoints().into_keys().collect();
    assert_eq!(
        endpoints,
        [format!("default/node1-cni-{}-eth0", other.container_id)]
    );
    assert_eq!(
        cluster.accounts().held.len(),
        2,
        "an address of each family"
    );

    // Its ID begins like that of the other container.
    let stranger = Pod {
        container_id: other.container_id[..63].to_owned(),
        ..pod
    };
    cluster.delete(&stranger, &conf);
    assert_eq!(cluster.endpoints().len(), 1);
    assert_eq!(cluster.accounts().held.len(), 2);
    cluster.assert_in_order();
}

#[on(etcd, local)]
fn del_leaves_a_foreign_interface_of_the_pod(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    ip("link add other0 type veth peer name eth1 netns pod1").unwrap();
    cluster.delete(&pod, &conf);
    let links = &kernel::pod(cluster.host, &pod.name).unwrap()["links"];
    assert_eq!(
        links.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["eth1"]
    );
}

/// The names of the host interface and of the handle do not depend on the name of the pod's
/// interface.
#[on(etcd, local)]
fn del_of_a_different_interface_changes_nothing(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let before = cluster.state();
    cluster
        .verb("DEL", &pod, &conf)
        .env("CNI_IFNAME", "eth1")
        .run()
        .success();
    assert_eq!(cluster.state(), before);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

/// The name alone does not prove that an interface is ours.
#[on(etcd, local)]
fn del_leaves_a_foreign_host_interface_of_the_same_name(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    ip("link add cali00000001ccc type bridge").unwrap();
    cluster
        .verb("DEL", &pod, &conf)
        .env("CNI_NETNS", "")
        .run()
        .success();
    assert!(kernel::host().unwrap()["links"]["cali00000001ccc"].is_object());
}

#[on(etcd, local)]
fn del_with_a_netns_of_no_container_succeeds_and_keeps_the_hosts_eth0(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    ip("link add eth0 type veth peer name other0").unwrap();
    for netns in [
        "/etc/passwd",
        "/etc/passwd/below",
        "/etc",
        "/proc/self/ns/net",
        "/proc/self/ns/mnt",
    ] {
        cluster.add(&pod, &conf);
        cluster
            .verb("DEL", &pod, &conf)
            .env("CNI_NETNS", netns)
            .run()
            .success();
        assert_eq!(
            (cluster.endpoints().len(), cluster.accounts().held.len()),
            (0, 0),
            "{netns}"
        );
        // These links are the pods' only.
        assert!(
            kernel::host().unwrap()["links"]
                .as_object()
                .unwrap()
                .is_empty(),
            "{netns}"
        );
        ip("link show eth0").unwrap();
    }
    ip("link delete eth0").unwrap();
    cluster.assert_nothing_left();
}

/// As with upstream, DEL fails and the runtime repeats it.
#[on(etcd, local)]
fn del_on_a_datastore_that_is_not_ready_fails_without_changes(cluster: &Cluster<'_>) {
    const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let ready = cluster.store.dump().unwrap()[CLUSTER].clone();
    let mut not_ready = ready.clone();
    not_ready["spec"]["datastoreReady"] = json!(false);
    let mut silent = ready.clone();
    silent["spec"]
        .as_object_mut()
        .unwrap()
        .remove("datastoreReady");
    for information in [not_ready, silent] {
        cluster.store.put(CLUSTER, &information).unwrap();
        let before = cluster.state();
        let error = cluster.verb("DEL", &pod, &conf).run().error();
        assert_eq!(
            (error.code, error.msg.contains("not ready")),
            (11, true),
            "{error:?}"
        );
        assert_eq!(cluster.state(), before, "{information:?}");
    }
    cluster.store.put(CLUSTER, &ready).unwrap();
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(etcd, local)]
fn del_ignores_an_invalid_prev_result(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    for (number, garbage) in [
        (1, json!({})),
        (2, json!({ "cniVersion": "9.9.9" })),
        (
            3,
            json!({ "cniVersion": 7, "ips": "none", "interfaces": [7], "routes": { "dst": "x" } }),
        ),
    ] {
        let pod = cluster.pod(number);
        cluster.add(&pod, &conf);
        let mut conf = conf.clone();
        conf["prevResult"] = garbage;
        cluster.delete(&pod, &conf);
        cluster.assert_nothing_left();
    }
}

/// The configuration may have been damaged after the pod was started.
#[on(etcd, local)]
fn del_ignores_invalid_settings_that_only_add_uses(cluster: &Cluster<'_>) {
    let conf = prepared(cluster);
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf);
    let mut wrong = conf.clone();
    wrong["num_queues"] = json!(5000);
    wrong["mtu"] = json!("large");
    wrong["ipam"]["assign_ipv4"] = json!("perhaps");
    wrong["log_level"] = json!("info");
    let error = cluster.verb("ADD", &cluster.pod(2), &wrong).run().error();
    assert!(matches!(error.code, 6 | 7), "{error:?}");
    let outcome = cluster.verb("DEL", &pod, &wrong).run();
    outcome.success();
    for key in ["num_queues", "mtu", "assign_ipv4"] {
        assert!(outcome.stderr.contains(key), "{key}: {}", outcome.stderr);
    }
    cluster.assert_nothing_left();
}
