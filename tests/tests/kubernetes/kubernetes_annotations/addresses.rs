//! Addresses that a pod requests in its annotations: allocated in IPAM (`ipAddrs`), or not
//! (`ipAddrsNoIpam`).

use integration_tests::cluster::{Cluster, ControlPlane, Pod, handle};
use integration_tests::content::{Content, container_id};
use integration_tests::kernel;
use integration_tests::plugin::Outcome;
use serde_json::{Value, json};

use crate::kubernetes_annotations::{
    addresses, annotated, annotation, check, create_on, host_routes, named, on,
};

/// A namespace without other pods.
const TENANT: &str = "bank";

#[on(kubernetes_v1, kubernetes_v3)]
fn requested_addresses_are_assigned_to_each_sandbox_of_the_pod(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let pod = annotated(
        cluster,
        1,
        &[("ipAddrs", "[\"10.65.3.3\", \"fd00:65::33\"]")],
    );
    let result = cluster.add(&pod, &conf);
    assert_eq!(addresses(&result), ["10.65.3.3/32", "fd00:65::33/128"]);
    assert_eq!(result["routes"], Value::Null);
    assert_eq!(
        annotation(cluster, "pod1", "podIPs"),
        "10.65.3.3/32,fd00:65::33/128"
    );
    // As in upstream, Felix creates the host routes of such pods (CNI-127).
    assert_eq!(host_routes(), [""; 0]);
    cluster.assert_only(&[&pod]);
    check(cluster, &pod, &conf, &result);

    let newer = cluster.sandbox(&pod, 11);
    assert_eq!(cluster.add(&newer, &conf)["ips"], result["ips"]);
    cluster.assert_only(&[&newer]);
    cluster.delete(&pod, &conf);
    cluster.assert_only(&[&newer]);
    assert_eq!(cluster.add(&newer, &conf)["ips"], result["ips"]);
    cluster.assert_only(&[&newer]);
    cluster.delete(&newer, &conf);
    cluster.assert_nothing_left();
}

/// A killed call may have deleted the handle.
#[on(kubernetes_v1, kubernetes_v3)]
fn requested_addresses_without_a_handle_pass_to_the_next_sandbox(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let pod = annotated(
        cluster,
        1,
        &[("ipAddrs", "[\"10.65.3.3\", \"fd00:65::33\"]")],
    );
    let result = cluster.add(&pod, &conf);
    let handles = cluster
        .store
        .dump()
        .unwrap()
        .into_keys()
        .filter(|key| key.starts_with("ipamhandles/"));
    handles.for_each(|key| cluster.store.delete(&key).unwrap());
    let newer = cluster.sandbox(&pod, 11);
    assert_eq!(cluster.add(&newer, &conf)["ips"], result["ips"]);
    cluster.assert_only(&[&newer]);
    cluster.delete(&pod, &conf);
    cluster.delete(&newer, &conf);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn address_annotation_takes_precedence_over_cni_args(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let pod = annotated(cluster, 1, &[("ipAddrs", "[\"10.65.3.3\"]")]);
    let args = format!("{};IP=10.65.9.9", pod.args());
    let result = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_ARGS", args)
        .run()
        .success();
    assert_eq!(addresses(&result), ["10.65.3.3/32"]);
    cluster.delete(&pod, &conf);
    cluster.assert_nothing_left();
}

#[on(kubernetes_v1)]
fn unavailable_requested_address_fails_the_add_without_a_leak(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let holder = annotated(cluster, 1, &[("ipAddrs", "[\"10.65.3.3\"]")]);
    cluster.add(&holder, &conf);

    let late = annotated(
        cluster,
        2,
        &[("ipAddrs", "[\"fd00:65::44\", \"10.65.3.3\"]")],
    );
    let error = cluster.verb("ADD", &late, &conf).run().error();
    let upstreams = "error getting IP from IPAM: resource already exists: 10.65.3.3 with \
                         error: Address already assigned in block";
    assert_eq!(error.msg, upstreams);
    assert!(error.details.contains("pod suite/pod1"), "{error:?}");
    cluster.assert_only(&[&holder]);

    let elsewhere = annotated(cluster, 3, &[("ipAddrs", "[\"192.0.2.1\"]")]);
    let error = cluster.verb("ADD", &elsewhere, &conf).run().error();
    assert_eq!(
        error.msg,
        "error getting IP from IPAM: The provided IP address is not in a configured pool\n"
    );
    cluster.assert_only(&[&holder]);
}

/// kubelet writes the error of a call into an Event, which the tenant can read. Shows SEC-22.
#[on(kubernetes_v1)]
fn taken_address_names_its_holder_in_the_same_namespace_only(
    cluster: &Cluster<'_>,
    control_plane: &mut ControlPlane<'_>,
) {
    cluster.load(&Content::dual_stack());
    let mut conf = cluster.conf("node1", json!({ "log_level": "info" }));
    let wanted = [("ipAddrs", "[\"10.65.3.3\"]")];
    let holder = annotated(cluster, 1, &wanted);
    let result = cluster.add(&holder, &conf);

    let near = cluster
        .verb("ADD", &annotated(cluster, 2, &wanted), &conf)
        .run()
        .error();
    assert!(
        near.details.starts_with(&format!(
            "it is held by handle {}, pod suite/pod1",
            handle(&holder)
        )),
        "{near:?}"
    );

    control_plane.servers.api.namespace(TENANT).unwrap();
    let far = tenants_pod(cluster, 3, &wanted);
    let call = |verb: &str, pod: &Pod, conf: &Value| {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={TENANT};K8S_POD_NAME={}",
            pod.name
        );
        cluster.verb(verb, pod, conf).env("CNI_ARGS", args).run()
    };
    let outcome = call("ADD", &far, &conf);
    assert_eq!(outcome.error().details, "it is held by another namespace");
    assert_unnamed(&outcome, &holder);
    let with_a_list = tenants_pod(cluster, 4, &[("ipAddrsAnyOf", wanted[0].1)]);
    let outcome = call("ADD", &with_a_list, &conf);
    assert_eq!(
        outcome.error().details,
        "10.65.3.3 is held by another namespace"
    );
    assert!(
        outcome
            .stderr
            .contains(": no listed address is free addresses="),
        "{}",
        outcome.stderr
    );
    assert_unnamed(&outcome, &holder);
    cluster.assert_only(&[&holder]);

    conf["prevResult"] = result;
    let outcome = call("CHECK", &far, &conf);
    let details = outcome.error().details;
    assert!(
        details.contains("10.65.3.3 is held by another namespace"),
        "{details}"
    );
    assert_unnamed(&outcome, &holder);
    for Pod { name, .. } in [&far, &with_a_list] {
        cluster
            .objects()
            .client()
            .delete(&format!("/api/v1/namespaces/{TENANT}/pods/{name}"))
            .unwrap()
            .success();
    }
}

/// Creates a pod in another namespace than that of the other pods.
fn tenants_pod(cluster: &Cluster<'_>, number: usize, annotations: &[(&str, &str)]) -> Pod {
    let name = format!("pod{number}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "annotations": named(annotations) },
        "spec": { "nodeName": "node1", "containers": [{ "name": "c", "image": "none" }] },
    });
    cluster
        .objects()
        .client()
        .create(&format!("/api/v1/namespaces/{TENANT}/pods"), &pod)
        .unwrap()
        .success();
    let netns = cluster.host.add_pod(&name).unwrap();
    Pod {
        name,
        netns,
        container_id: container_id(number),
        object: None,
    }
}

/// Asserts that the log of a failed call names the holder of an address, and that the error does
/// not.
#[track_caller]
fn assert_unnamed(outcome: &Outcome, holder: &Pod) {
    for name in ["suite", "pod1", &holder.container_id] {
        assert!(
            !outcome.stdout.contains(name),
            "{name} is in {}",
            outcome.stdout
        );
    }
    let whole = format!("handle {}, pod suite/pod1, node node1", handle(holder));
    assert!(
        outcome.stderr.contains(&whole),
        "{whole} is not in {}",
        outcome.stderr
    );
}

/// Upstream releases the old address by address alone, and thus the other pod's allocation
/// (CNI-246).
#[on(kubernetes_v1, kubernetes_v3)]
fn annotated_address_reassigned_to_another_pod_is_not_released(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let holder = annotated(cluster, 1, &[("ipAddrs", "[\"10.65.3.3\"]")]);
    cluster.add(&holder, &conf);
    let annotations = [
        ("podIP", "10.65.3.3/32"),
        ("containerID", "gone"),
        ("ipAddrs", "[\"10.65.3.4\"]"),
    ];
    let pod = annotated(cluster, 2, &annotations);
    assert_eq!(addresses(&cluster.add(&pod, &conf)), ["10.65.3.4/32"]);
    cluster.assert_only(&[&holder, &pod]);
}

/// Tenants control these annotations, which name another pod's sandbox and its address.
/// Shows SEC-1.
#[on(kubernetes_v1, kubernetes_v3)]
fn add_with_forged_annotations_keeps_the_address_of_the_other_pod(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack().node("node2"));
    let conf = cluster.conf("node1", json!({}));
    let holder = annotated(cluster, 1, &[]);
    let result = cluster.add(&holder, &conf);
    let held = addresses(&result)[0].split('/').next().unwrap().to_owned();
    let (network, wanted) = (format!("{held}/32"), json!([held]).to_string());
    let forged = [
        ("containerID", holder.container_id.as_str()),
        ("podIP", &network),
        ("podIPs", &network),
        ("ipAddrs", &wanted),
    ];
    for (number, node) in [(2, "node1"), (3, "node2")] {
        create_on(
            cluster.objects().client(),
            &format!("pod{number}"),
            node,
            &forged,
        );
        let thief = cluster.pod(number);
        let conf = cluster.conf(node, json!({}));
        let error = cluster.verb("ADD", &thief, &conf).run().error();
        assert!(
            error.msg.ends_with("Address already assigned in block"),
            "{error:?}"
        );
        assert!(error.details.contains("pod suite/pod1"), "{error:?}");
        cluster.remove_pod(&thief);
        cluster.assert_only(&[&holder]);
    }
}

/// A VMI's handle consists of the names of objects, so a tenant can name it in an annotation.
/// Shows SEC-3.
#[on(kubernetes_v1, kubernetes_v3)]
fn add_with_a_forged_vmi_handle_keeps_the_address_of_the_vmi(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let forged = [
        ("containerID", "vmi.suite.db"),
        ("podIP", "10.65.3.3/32"),
        ("ipAddrs", "[\"10.65.3.3\"]"),
    ];
    let pod = annotated(cluster, 1, &forged);
    let machine = cluster
        .plugins
        .verb("calico-ipam", "ADD", "vmi.suite.db", &pod.netns, &conf);
    machine
        .env("CNI_ARGS", format!("{};IP=10.65.3.3", pod.args()))
        .run()
        .success();
    let before = cluster.accounts().held;
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(
        error.msg.ends_with("Address already assigned in block"),
        "{error:?}"
    );
    assert_eq!(cluster.accounts().held, before);
}

#[on(kubernetes_v1)]
fn addresses_without_ipam_are_configured_and_not_allocated(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf(
        "node1",
        json!({ "feature_control": { "ip_addrs_no_ipam": true } }),
    );
    let holder = annotated(cluster, 1, &[("ipAddrs", "[\"10.65.3.3\"]")]);
    cluster.add(&holder, &conf);
    let held = cluster.accounts().held;
    assert_eq!(held.values().collect::<Vec<_>>(), [&handle(&holder)]);

    let pod = annotated(
        cluster,
        2,
        &[("ipAddrsNoIpam", "[\"10.65.3.3\", \"fd00:77::7\"]")],
    );
    let broken = cluster
        .verb("ADD", &pod, &conf)
        .env("CNI_NETNS", "/run/netns/missing")
        .run()
        .error();
    assert!(broken.msg.contains("/run/netns/missing"), "{broken:?}");
    assert_eq!(cluster.accounts().held, held);

    let result = cluster.add(&pod, &conf);
    assert_eq!(addresses(&result), ["10.65.3.3/32", "fd00:77::7/128"]);
    assert_eq!(result["routes"], Value::Null);
    assert_eq!(
        annotation(cluster, "pod2", "podIPs"),
        "10.65.3.3/32,fd00:77::7/128"
    );
    assert_eq!(host_routes(), [""; 0]);
    let inside = kernel::pod(cluster.host, "pod2").unwrap();
    assert_eq!(inside["links"]["eth0"]["addrs"][0], "10.65.3.3/32 global");
    check(cluster, &pod, &conf, &result);

    cluster.delete(&pod, &conf);
    assert_eq!(annotation(cluster, "pod2", "podIPs"), "");
    cluster.assert_only(&[&holder]);
    assert_eq!(cluster.accounts().held, held);
    cluster.delete(&holder, &conf);
    cluster.assert_nothing_left();
}
