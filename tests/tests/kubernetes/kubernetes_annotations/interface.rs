//! The pod's MAC address, floating addresses, source prefixes and limits.

use integration_tests::Place;
use integration_tests::cluster::{Cluster, ControlPlane, Pod, pod_path, restricted};
use integration_tests::content::{Content, container_id};
use integration_tests::kernel;
use serde_json::json;

use crate::kubernetes_annotations::{addresses, annotated, annotation, create, on};

#[on(kubernetes_v1)]
fn mac_address_is_set_from_the_pods_annotation(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({}));
    let pod = annotated(cluster, 1, &[("hwAddr", "CA-fe-ca-fe-ca-fe")]);
    for sandbox in [pod.clone(), cluster.sandbox(&pod, 11)] {
        let result = cluster.add(&sandbox, &conf);
        assert_eq!(result["interfaces"][1]["mac"], "ca:fe:ca:fe:ca:fe");
        let inside = kernel::pod(cluster.host, &sandbox.name).unwrap();
        assert_eq!(inside["links"]["eth0"]["mac"], "ca:fe:ca:fe:ca:fe");
        cluster.delete(&sandbox, &conf);
    }
    cluster.assert_nothing_left();
}

/// Upstream's ADD fails while the pod's status still has the address of the previous sandbox
/// (CNI-240).
#[on(kubernetes_v1)]
fn floating_addresses_are_accepted_for_a_new_sandbox(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf(
        "node1",
        json!({ "feature_control": { "floating_ips": true } }),
    );
    let pod = annotated(
        cluster,
        1,
        &[
            ("floatingIPs", "[\"1.1.1.1\"]"),
            ("allowedSourcePrefixes", "[\"8.8.8.8/32\", \"1.1.1.7/24\"]"),
        ],
    );
    let first = cluster.add(&pod, &conf);
    let ip = addresses(&first)[0].trim_end_matches("/32");
    let status = json!({ "status": { "podIP": ip, "podIPs": [{ "ip": ip }] } });
    cluster
        .objects()
        .client()
        .patch(&format!("{}/status", pod_path("pod1")), &status)
        .unwrap()
        .success();
    let newer = cluster.sandbox(&pod, 11);
    assert_ne!(cluster.add(&newer, &conf)["ips"], first["ips"]);
    assert_eq!(
        annotation(cluster, "pod1", "containerID"),
        newer.container_id.as_str()
    );
    for sandbox in [&pod, &newer] {
        cluster.delete(sandbox, &conf);
    }
}

#[on(kubernetes_v1)]
fn floating_address_of_a_missing_family_is_refused(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf(
        "node1",
        json!({ "feature_control": { "floating_ips": true } }),
    );
    let pod = annotated(cluster, 1, &[("floatingIPs", "[\"1.1.1.1\", \"fd11::1\"]")]);
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(
        error.msg.contains("fd11::1 needs an IPv6 address"),
        "{error:?}"
    );
    cluster.assert_only(&[]);
}

/// On an API server, programs read these values from the pod.
#[test]
fn endpoint_in_etcd_stores_floating_addresses_and_source_prefixes() {
    restricted(Place::KubernetesV1, endpoint_in_etcd_has_the_values);
}

fn endpoint_in_etcd_has_the_values(cluster: &Cluster<'_>, control_plane: &mut ControlPlane<'_>) {
    let api = &control_plane.servers.api;
    let cluster = cluster.in_etcd();
    cluster.load(&Content::dual_stack());
    create(
        api.admin(),
        "pod1",
        &[
            ("floatingIPs", "[\"1.1.1.1\", \"fd11::1\"]"),
            ("allowedSourcePrefixes", "[\"1.1.1.7/24\"]"),
            ("ipFamilies", "[\"IPv4\", \"IPv6\"]"),
            ("hwAddr", "ca:fe:ca:fe:ca:fe"),
        ],
    );
    let conf = cluster.conf(
        "node1",
        json!({
            "policy": { "type": "k8s" }, "kubernetes": { "kubeconfig": api.admin_kubeconfig() },
            "feature_control": { "floating_ips": true },
        }),
    );
    let sandbox = |number: usize| Pod {
        name: format!("pod{number}"),
        netns: cluster.host.add_pod(&format!("pod{number}")).unwrap(),
        container_id: container_id(number),
        object: Some("pod1".into()),
    };
    // A second ADD must not extend the list, as upstream's does (CNI-240).
    for sandbox in [sandbox(1), sandbox(2)] {
        let result = cluster.add(&sandbox, &conf);
        let own: Vec<_> = addresses(&result)
            .iter()
            .map(|ip| ip.split_once('/').unwrap().0.to_owned())
            .collect();
        let endpoints = cluster.endpoints();
        let spec = &endpoints.values().next().unwrap()["spec"];
        assert_eq!(
            spec["ipNATs"],
            json!([
                { "internalIP": own[0], "externalIP": "1.1.1.1" },
                { "internalIP": own[1], "externalIP": "fd11::1" },
            ])
        );
        assert_eq!(spec["allowSpoofedSourcePrefixes"], json!(["1.1.1.0/24"]));
        assert_eq!(spec["mac"], "ca:fe:ca:fe:ca:fe");
        assert_eq!(spec.get("qosControls"), None);
    }
}

#[on(kubernetes_v1)]
fn invalid_qos_annotations_are_only_warned_about(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf(
        "node1",
        json!({ "log_level": "info", "mode": "vxlan", "windows_loopback_DSR": true }),
    );
    let keys = [
        "qos.projectcalico.org/ingressBandwidth",
        "qos.projectcalico.org/egressPacketBurst",
    ];
    let pod = annotated(cluster, 1, &[(keys[0], "much"), (keys[1], "5")]);
    let outcome = cluster.verb("ADD", &pod, &conf).run();
    outcome.success();
    for word in [keys[0], keys[1], "\"mode\"", "\"windows_loopback_DSR\""] {
        let said = |line: &&str| line.contains("[WARN") && line.contains(word);
        assert_eq!(
            outcome.stderr.lines().filter(said).count(),
            1,
            "{word}: {}",
            outcome.stderr
        );
    }
    cluster.delete(&pod, &conf);
}
