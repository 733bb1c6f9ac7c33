//! The annotation `ipAddrsAnyOf`: a list of addresses, of which each pod gets the first free one.

use std::collections::BTreeMap;

use integration_tests::cluster::{Cluster, Pod};
use integration_tests::content::Content;
use serde_json::{Value, json};

use crate::kubernetes_annotations::pools::{pool_of_namespaces, pool_of_tunnels};
use crate::kubernetes_annotations::{
    addresses, annotated, annotation, check, create_on, host_routes, mark_namespace, on,
};

const NONE_FREE: &str =
    "no address of the annotation \"cni.projectcalico.org/ipAddrsAnyOf\" is free";

/// Three addresses in two blocks.
const LIST: &str = "[\"10.65.3.3\", \"10.65.9.8/31\"]";

fn add(cluster: &Cluster<'_>, number: usize, list: &str, conf: &Value) -> (Pod, Vec<String>) {
    let pod = annotated(cluster, number, &[("ipAddrsAnyOf", list)]);
    let result = cluster.add(&pod, conf);
    (
        pod,
        addresses(&result).into_iter().map(str::to_owned).collect(),
    )
}

#[on(kubernetes_v1, kubernetes_v3)]
fn pods_of_a_deployment_get_listed_addresses(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack().node("node2"));
    let (conf, conf2) = (
        cluster.conf("node1", json!({})),
        cluster.conf("node2", json!({})),
    );
    let (first, found) = add(cluster, 1, LIST, &conf);
    assert_eq!(found, ["10.65.3.3/32"]);
    assert_eq!(annotation(cluster, "pod1", "podIPs"), "10.65.3.3/32");
    // The routes are those of an automatic assignment, and the plugin creates them.
    assert_eq!(host_routes(), ["10.65.3.3"]);
    create_on(
        cluster.objects().client(),
        "pod2",
        "node2",
        &[("ipAddrsAnyOf", LIST)],
    );
    let second = cluster.pod(2);
    let result = cluster.add(&second, &conf2);
    assert_eq!(addresses(&result), ["10.65.9.8/32"]);
    assert_eq!(result["routes"], json!([{ "dst": "10.65.9.8/26" }]));
    let (third, found) = add(cluster, 3, LIST, &conf);
    assert_eq!(found, ["10.65.9.9/32"]);
    cluster.assert_only(&[&first, &second, &third]);
    check(cluster, &second, &conf2, &result);

    // A rolling update with maxSurge 0: the address of the deleted pod is free for the next
    // one.
    cluster.delete(&first, &conf);
    let (next, found) = add(cluster, 4, LIST, &conf);
    assert_eq!(found, ["10.65.3.3/32"]);
    for (pod, conf) in [(&second, &conf2), (&third, &conf), (&next, &conf)] {
        cluster.delete(pod, conf);
    }
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1, kubernetes_v3)]
fn restarted_pod_keeps_its_address_while_the_list_is_full(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let pods: Vec<Pod> = (1..=3)
        .map(|number| add(cluster, number, LIST, &conf).0)
        .collect();
    let newer = cluster.sandbox(&pods[1], 11);
    assert_eq!(addresses(&cluster.add(&newer, &conf)), ["10.65.9.8/32"]);
    cluster.delete(&pods[1], &conf);
    cluster.assert_only(&[&pods[0], &newer, &pods[2]]);
    for pod in [&pods[0], &newer, &pods[2]] {
        cluster.delete(pod, &conf);
    }
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn full_list_names_holders(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let (holder, _) = add(cluster, 1, "[\"10.65.3.3\"]", &conf);
    let late = annotated(
        cluster,
        2,
        &[("ipAddrsAnyOf", "[\"10.65.3.3\", \"192.0.2.1\"]")],
    );
    let error = cluster.verb("ADD", &late, &conf).run().error();
    assert_eq!((error.code, error.msg.as_str()), (11, NONE_FREE));
    assert!(
        error.details.starts_with("10.65.3.3 is held by "),
        "{error:?}"
    );
    assert!(error.details.contains("pod suite/pod1"), "{error:?}");
    assert!(
        error.details.ends_with("192.0.2.1 is in no IPPool"),
        "{error:?}"
    );
    cluster.assert_only(&[&holder]);
    cluster.delete(&holder, &conf);
    assert_eq!(addresses(&cluster.add(&late, &conf)), ["10.65.3.3/32"]);
    cluster.delete(&late, &conf);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn dual_stack_list_serves_each_family(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let ipam = |six: &str| json!({ "ipam": { "type": "calico-ipam", "assign_ipv6": six } });
    let (single, dual) = (
        cluster.conf("node1", ipam("false")),
        cluster.conf("node1", ipam("true")),
    );
    let both = "[\"fd00:65::3\", \"10.65.3.3\", \"fd00:65::4\"]";
    let (first, found) = add(cluster, 1, both, &single);
    assert_eq!(found, ["10.65.3.3/32", "fd00:65::3/128"]);
    // One family of the list is full, so the other one is not assigned either.
    let late = annotated(cluster, 2, &[("ipAddrsAnyOf", both)]);
    let error = cluster.verb("ADD", &late, &single).run().error();
    assert!(
        error.msg == NONE_FREE && error.details.starts_with("10.65.3.3 is held by "),
        "{error:?}"
    );
    cluster.assert_only(&[&first]);
    // A family that is not in the list is assigned as the configuration says.
    let (third, found) = add(cluster, 3, "[\"fd00:65::3\", \"fd00:65::4\"]", &dual);
    assert!(
        found[0].starts_with("10.65.") && found[1] == "fd00:65::4/128",
        "{found:?}"
    );
    [&first, &third]
        .into_iter()
        .for_each(|pod| cluster.delete(pod, &dual));
    cluster.assert_nothing_left();
}

/// The recordings of upstream show the objects that `ipAddrs` leaves.
#[on(kubernetes_v1, kubernetes_v3)]
fn stored_objects_equal_those_of_ip_addrs(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let list = "[\"10.65.3.3\", \"fd00:65::33\"]";
    let after = |name: &str| {
        let pod = annotated(cluster, 1, &[(name, list)]);
        cluster.add(&pod, &conf);
        let stored = stored(cluster);
        cluster.delete(&pod, &conf);
        cluster.remove_pod(&pod);
        let content = cluster.store.dump().unwrap();
        let claims = content
            .keys()
            .filter(|key| key.starts_with("ipamblocks/") || key.starts_with("blockaff"));
        claims.for_each(|key| cluster.store.delete(key).unwrap());
        stored
    };
    assert_eq!(after("ipAddrsAnyOf"), after("ipAddrs"));
}

/// Returns the objects of IPAM and the pods, without names, numbers and times that differ from call
/// to call.
fn stored(cluster: &Cluster<'_>) -> BTreeMap<String, Value> {
    let content = cluster.store.dump().unwrap();
    let of_ipam = |key: &str| {
        ["ipam", "blockaff", "pods/"]
            .iter()
            .any(|start| key.starts_with(start))
    };
    let mut stored: BTreeMap<String, Value> = content
        .into_iter()
        .filter(|(key, _)| of_ipam(key))
        .collect();
    stored.values_mut().for_each(strip);
    stored
}

fn strip(value: &mut Value) {
    const OF_ONE_CALL: [&str; 9] = [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "timestamp",
        "affinityClaimTime",
        "sequenceNumber",
        "sequenceNumberForAllocation",
        "cni.projectcalico.org/ipAddrs",
        "cni.projectcalico.org/ipAddrsAnyOf",
    ];
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !OF_ONE_CALL.contains(&key.as_str()));
            object.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Another pod may get a listed address automatically, or request it.
#[on(kubernetes_v1)]
fn listed_address_in_use_by_upstreams_rules_is_skipped(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let asking = annotated(cluster, 1, &[("ipAddrs", "[\"10.65.3.3\"]")]);
    cluster.add(&asking, &conf);
    let automatic = annotated(cluster, 2, &[]);
    let result = cluster.add(&automatic, &conf);
    let held = addresses(&result)[0].split('/').next().unwrap().to_owned();
    let list = json!(["10.65.3.3", held, "10.65.3.4"]).to_string();
    let (listed, found) = add(cluster, 3, &list, &conf);
    assert_eq!(found, ["10.65.3.4/32"]);
    [&asking, &automatic, &listed]
        .into_iter()
        .for_each(|pod| cluster.delete(pod, &conf));
    cluster.assert_nothing_left();
}

/// A tenant writes the list, also without `restrict_annotations`. Shows SEC-13.
#[on(kubernetes_v1, kubernetes_v3)]
fn listed_addresses_outside_the_namespaces_pools_are_refused(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    pool_of_namespaces(cluster, "blues", "10.71.0.0/24", "team == 'blue'");
    pool_of_tunnels(cluster, "tunnels", "10.72.0.0/24");
    let open = cluster.conf("node1", json!({}));
    let restricted = cluster.conf(
        "node1",
        json!({ "feature_control": { "restrict_annotations": true } }),
    );
    for (number, conf) in [&open, &restricted].into_iter().enumerate() {
        let pod = annotated(
            cluster,
            number,
            &[("ipAddrsAnyOf", "[\"10.72.0.8\", \"10.71.0.8/30\"]")],
        );
        let before = cluster.state();
        let error = cluster.verb("ADD", &pod, conf).run().error();
        assert_eq!((error.code, error.msg.as_str()), (7, NONE_FREE));
        let reason = "its namespaceSelector `team == 'blue'` does not match namespace suite";
        assert!(error.details.contains(reason), "{error:?}");
        let other_use = "10.72.0.8 is in no IPPool for this pod: pool tunnels (10.72.0.0/24): \
                             its allowedUses [Tunnel] do not include Workload";
        assert!(error.details.contains(other_use), "{error:?}");
        cluster.assert_unchanged(&before);
        let list = "[\"10.72.0.8\", \"10.71.0.8\", \"10.65.3.3\"]";
        let (mixed, found) = add(cluster, number + 10, list, conf);
        assert_eq!(found, ["10.65.3.3/32"]);
        cluster.delete(&mixed, conf);
    }
    mark_namespace(cluster, &json!({}), &json!({ "team": "blue" }));
    let (pod, found) = add(
        cluster,
        20,
        "[\"10.72.0.8\", \"10.71.0.8/30\"]",
        &restricted,
    );
    assert_eq!(found, ["10.71.0.8/32"]);
    cluster.delete(&pod, &restricted);
    mark_namespace(cluster, &json!({}), &json!({ "team": null }));
    cluster.assert_nothing_left();
}

/// Tenants control the annotations that name the earlier sandbox and its address. Shows SEC-1.
#[on(kubernetes_v1, kubernetes_v3)]
fn forged_sandbox_gets_no_listed_address(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let holder = annotated(cluster, 1, &[]);
    let result = cluster.add(&holder, &conf);
    let held = addresses(&result)[0].split('/').next().unwrap().to_owned();
    let (network, list) = (format!("{held}/32"), json!([held]).to_string());
    for (number, container) in [(2, holder.container_id.as_str()), (3, "vmi.suite.db")] {
        let forged = [
            ("containerID", container),
            ("podIP", &network),
            ("podIPs", &network),
            ("ipAddrsAnyOf", &list),
        ];
        let thief = annotated(cluster, number, &forged);
        let error = cluster.verb("ADD", &thief, &conf).run().error();
        assert!(
            error.code == 11 && error.details.contains("pod suite/pod1"),
            "{error:?}"
        );
        cluster.remove_pod(&thief);
        cluster.assert_only(&[&holder]);
    }
    cluster.delete(&holder, &conf);
    cluster.assert_nothing_left();
}
