//! Busy addresses on an API server, where endpoints are annotations of pods.

use std::path::Path;

use integration_tests::cluster::{Cluster, NAMESPACE, on, pod_path};
use integration_tests::content::Content;
use integration_tests::kubernetes::Client;
use integration_tests::plugin::Outcome;
use integration_tests::store::Store;
use serde_json::{Value, json};

use crate::busy_addresses::{
    NOTES, OTHER, add, addresses, conf, devices, next, other_program, restore, route,
};

fn api<'c>(cluster: &'c Cluster<'_>) -> &'c Client {
    let Store::Kubernetes(objects) = &cluster.store else {
        panic!("no API server")
    };
    objects.client()
}

fn listed(cluster: &Cluster<'_>, pod: &str) -> Value {
    let object = api(cluster).get(&pod_path(pod)).unwrap().success();
    object["metadata"]["annotations"]["cni.projectcalico.org/podIPs"].clone()
}

fn create_requesting(cluster: &Cluster<'_>, name: &str, address: &str) {
    create_annotated(cluster, name, "ipAddrs", address);
}

/// Creates a pod with an annotation that names an address.
fn create_annotated(cluster: &Cluster<'_>, name: &str, annotation: &str, address: &str) {
    let annotations =
        json!({ format!("cni.projectcalico.org/{annotation}"): json!([address]).to_string() });
    create_pod(cluster, name, &annotations);
}

fn create_pod(cluster: &Cluster<'_>, name: &str, annotations: &Value) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
        "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
    });
    api(cluster)
        .create(&format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod)
        .unwrap()
        .success();
}

#[on(kubernetes_v1)]
fn add_with_busy_addresses_annotates_the_final_addresses_only(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = conf(cluster);
    let (resident, pod) = (cluster.pod(100), cluster.pod(1));
    cluster.add(&resident, &conf);
    other_program();
    let (free4, free6) = (next(cluster, "-4"), next(cluster, "-6"));
    [&free4[0], &free4[1], &free6[0]]
        .into_iter()
        .for_each(|address| route("add", address));
    let (given, tried) = add(cluster, &pod, &conf);
    assert_eq!(
        (given, tried),
        (vec![free4[2].clone(), free6[1].clone()], 3)
    );
    assert_eq!(
        listed(cluster, "pod1"),
        format!("{}/32,{}/128", free4[2], free6[1])
    );
    cluster.assert_only(&[&resident, &pod]);
    let next = cluster.pod(2);
    assert_eq!(add(cluster, &next, &conf).1, 0);
    cluster.delete(&pod, &conf);
    cluster.delete(&next, &conf);
    cluster.assert_only(&[&resident]);
}

#[on(kubernetes_v3)]
fn add_with_three_busy_addresses_fails_and_writes_no_annotations(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = conf(cluster);
    let (resident, pod) = (cluster.pod(100), cluster.pod(1));
    cluster.add(&resident, &conf);
    other_program();
    let free = next(cluster, "-4");
    free[..3].iter().for_each(|address| route("add", address));
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(
        free[..3]
            .iter()
            .all(|address| error.msg.contains(address.as_str())),
        "{error:?}"
    );
    assert_eq!(listed(cluster, "pod1"), "");
    cluster.assert_only(&[&resident]);
}

/// Asserts that an ADD failed because of an address, and that only the log names the interface of
/// the other pod.
#[track_caller]
fn assert_withholds(outcome: &Outcome, address: &str, ifname: &str) {
    let error = outcome.error();
    assert!(
        error.msg.contains(address) && error.msg.contains("the interface of another pod"),
        "{error:?}"
    );
    assert!(
        !error.msg.contains(ifname) && !error.details.contains(ifname),
        "{error:?}"
    );
    assert!(outcome.stderr.contains(ifname), "{}", outcome.stderr);
}

/// The plugin creates no host route to an address that an annotation requests, so the kernel
/// reports no conflict. Shows SEC-9.
#[on(kubernetes_v1)]
fn requested_address_of_another_pod_is_an_error_that_withholds_the_interface(
    cluster: &Cluster<'_>,
) {
    cluster.load(&Content::dual_stack());
    let conf = conf(cluster);
    let resident = cluster.pod(100);
    cluster.add(&resident, &conf);
    let backup = cluster.store.dump().unwrap();
    let old = cluster.pod(1);
    let result = cluster.add(&old, &conf);
    let (living, ifname) = (
        addresses(&result),
        result["interfaces"][0]["name"].as_str().unwrap().to_owned(),
    );
    restore(cluster, &backup);

    create_requesting(cluster, "pod2", &living[0]);
    let requesting = cluster.pod(2);
    assert_withholds(
        &cluster.verb("ADD", &requesting, &conf).run(),
        &living[0],
        &ifname,
    );
    assert_eq!(devices(&living[0]), [&*ifname]);
    assert!(crate::busy_addresses::held(cluster, &requesting).is_empty());
    // Felix, not the plugin, creates the routes to requested addresses.
    other_program();
    route("add", "10.65.7.7");
    create_requesting(cluster, "pod3", "10.65.7.7");
    assert_eq!(
        addresses(&cluster.add(&cluster.pod(3), &conf)),
        ["10.65.7.7"]
    );
    assert_eq!(devices("10.65.7.7"), [OTHER]);
    assert!(!Path::new(NOTES).exists());
}

#[on(kubernetes_v1)]
fn busy_listed_address_is_replaced_by_the_next_of_the_list(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({ "log_level": "info" }));
    other_program();
    ["10.65.3.3", "10.65.3.4"]
        .into_iter()
        .for_each(|address| route("add", address));
    let create_listed = |name: &str| {
        let annotation =
            json!({ "cni.projectcalico.org/ipAddrsAnyOf": "[\"10.65.3.3\",\"10.65.3.4/31\"]" });
        create_pod(cluster, name, &annotation);
    };
    create_listed("pod1");
    let first = cluster.pod(1);
    assert_eq!(add(cluster, &first, &conf), (vec!["10.65.3.5".into()], 2));
    assert_eq!(listed(cluster, "pod1"), "10.65.3.5/32");
    cluster.assert_only(&[&first]);
    // Busy addresses come last, and there is no other one.
    create_listed("pod2");
    let second = cluster.pod(2);
    let error = cluster.verb("ADD", &second, &conf).run().error();
    assert!(
        error.msg.contains("10.65.3.3") && error.msg.contains("10.65.3.4"),
        "{error:?}"
    );
    assert!(error.details.contains("is free"), "{error:?}");
    cluster.assert_only(&[&first]);
    cluster.delete(&first, &conf);
    // The free address precedes the busy ones.
    assert_eq!(add(cluster, &second, &conf), (vec!["10.65.3.5".into()], 0));
}

/// The annotation bypasses IPAM. Felix would move the host route to the interface of the later pod.
/// Shows SEC-9.
#[on(kubernetes_v1)]
fn address_without_ipam_of_another_pod_is_an_error_that_withholds_the_interface(
    cluster: &Cluster<'_>,
) {
    cluster.load(&Content::dual_stack());
    let usual = conf(cluster);
    let mut conf = usual.clone();
    conf["feature_control"] = json!({ "ip_addrs_no_ipam": true });
    let victim = cluster.pod(1);
    let result = cluster.add(&victim, &usual);
    let (used, ifname) = (
        addresses(&result),
        result["interfaces"][0]["name"].as_str().unwrap().to_owned(),
    );
    let before = cluster.accounts().held;
    for (number, address) in (2..).zip(&used) {
        let name = format!("pod{number}");
        create_annotated(cluster, &name, "ipAddrsNoIpam", address);
        assert_withholds(
            &cluster.verb("ADD", &cluster.pod(number), &conf).run(),
            address,
            &ifname,
        );
        assert_eq!(devices(address), [&*ifname]);
        assert!(
            listed(cluster, &name).as_str().is_none_or(str::is_empty),
            "{}",
            listed(cluster, &name)
        );
    }
    assert_eq!(cluster.accounts().held, before);
    cluster.assert_only(&[&victim]);
    // An address that no pod of the node has is the user's own decision.
    create_annotated(cluster, "pod9", "ipAddrsNoIpam", "10.65.7.7");
    assert_eq!(
        addresses(&cluster.add(&cluster.pod(9), &conf)),
        ["10.65.7.7"]
    );
}
