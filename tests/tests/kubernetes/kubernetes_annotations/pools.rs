//! Selection of pools and families.

use integration_tests::cluster::Cluster;
use integration_tests::content::Content;
use serde_json::{Value, json};

use crate::kubernetes_annotations::{addresses, annotated, mark_namespace, named, on};

fn addresses_of(
    cluster: &Cluster<'_>,
    number: usize,
    annotations: &[(&str, &str)],
    conf: &Value,
) -> Vec<String> {
    let pod = annotated(cluster, number, annotations);
    let result = cluster.add(&pod, conf);
    cluster.delete(&pod, conf);
    addresses(&result).into_iter().map(str::to_owned).collect()
}

#[on(kubernetes_v1)]
fn pools_of_the_pod_precede_those_of_namespace_and_configuration(cluster: &Cluster<'_>) {
    let pools =
        Content::dual_stack()
            .pool("conf", "10.71.0.0/24", 26)
            .pool("space", "10.72.0.0/24", 26);
    cluster.load(&pools.pool("pod", "10.73.0.0/24", 26));
    let ipam = json!({ "ipam": { "type": "calico-ipam", "ipv4_pools": ["conf"] } });
    let conf = cluster.conf("node1", ipam);
    assert!(addresses_of(cluster, 1, &[], &conf)[0].starts_with("10.71."));
    mark_namespace(
        cluster,
        &named(&[("ipv4pools", "[\"10.72.0.0/24\"]")]),
        &json!({}),
    );
    assert!(addresses_of(cluster, 2, &[], &conf)[0].starts_with("10.72."));
    assert!(addresses_of(cluster, 3, &[("ipv4pools", "")], &conf)[0].starts_with("10.72."));
    assert!(
        addresses_of(cluster, 4, &[("ipv4pools", "[\"pod\"]")], &conf)[0].starts_with("10.73.")
    );

    mark_namespace(
        cluster,
        &named(&[("ipFamilies", "[\"IPv6\"]"), ("ipv6pools", "[\"pool6\"]")]),
        &json!({}),
    );
    assert!(addresses_of(cluster, 5, &[], &conf)[0].starts_with("fd00:65::"));
    let both = addresses_of(cluster, 6, &[("ipFamilies", "[\"IPv6\", \"IPv4\"]")], &conf);
    assert!(
        both[0].starts_with("10.72.") && both[1].starts_with("fd00:65::"),
        "{both:?}"
    );
    let none = annotated(cluster, 7, &[("ipFamilies", "[]")]);
    let error = cluster.verb("ADD", &none, &conf).run().error();
    assert_eq!(error.msg, "IPAM plugin returned missing IP config");
    mark_namespace(
        cluster,
        &json!({ "cni.projectcalico.org/ipv4pools": null,
            "cni.projectcalico.org/ipFamilies": null, "cni.projectcalico.org/ipv6pools": null }),
        &json!({}),
    );
    cluster.assert_nothing_left();
}

pub(crate) fn pool_of_namespaces(cluster: &Cluster<'_>, name: &str, cidr: &str, selector: &str) {
    create_pool(cluster, name, cidr, "Workload", ("all()", selector));
}

/// Creates a pool whose addresses are for tunnels alone.
pub(crate) fn pool_of_tunnels(cluster: &Cluster<'_>, name: &str, cidr: &str) {
    create_pool(cluster, name, cidr, "Tunnel", ("all()", ""));
}

/// Creates a pool for one use, with a node selector and a namespace selector.
fn create_pool(
    cluster: &Cluster<'_>,
    name: &str,
    cidr: &str,
    allowed: &str,
    (nodes, namespaces): (&str, &str),
) {
    let spec = json!({ "cidr": cidr, "blockSize": 26, "namespaceSelector": namespaces,
            "nodeSelector": nodes,
        "allowedUses": [allowed], "assignmentMode": "Automatic", "ipipMode": "Never",
        "vxlanMode": "Never" });
    let version = cluster.objects().group().api_version();
    let pool = json!({
        "apiVersion": version, "kind": "IPPool", "metadata": { "name": name }, "spec": spec,
    });
    cluster.objects().client().apply_object(&pool).unwrap();
}

#[on(kubernetes_v1, kubernetes_v3)]
fn namespace_selectors_of_pools_match_the_namespace_labels(cluster: &Cluster<'_>) {
    cluster.load(&Content::ready().node("node1"));
    for (name, cidr, selector) in [
        ("everyones", "10.65.0.0/16", "!has(team)"),
        ("blues", "10.71.0.0/16", "team == 'blue'"),
        (
            "suites",
            "10.72.0.0/16",
            "kubernetes.io/metadata.name == 'suite' && team == 'red'",
        ),
    ] {
        pool_of_namespaces(cluster, name, cidr, selector);
    }
    let conf = cluster.conf("node1", json!({}));
    for (number, (labels, start)) in [
        (json!({}), "10.65."),
        (json!({ "team": "blue" }), "10.71."),
        (json!({ "team": "red" }), "10.72."),
    ]
    .into_iter()
    .enumerate()
    {
        mark_namespace(cluster, &json!({}), &labels);
        assert!(
            addresses_of(cluster, number, &[], &conf)[0].starts_with(start),
            "{labels}"
        );
        // The same with another main plugin, which runs `calico-ipam`.
        let pod = cluster.pod(number + 10);
        let ipam = |verb: &str| {
            let call =
                cluster
                    .plugins
                    .verb("calico-ipam", verb, &pod.container_id, &pod.netns, &conf);
            call.env("CNI_ARGS", pod.args()).run().success()
        };
        assert!(addresses(&ipam("ADD"))[0].starts_with(start), "{labels}");
        ipam("DEL");
    }
    mark_namespace(cluster, &json!({}), &json!({ "team": "green" }));
    let pod = cluster.pod(20);
    let error = cluster.verb("ADD", &pod, &conf).run().error();
    assert!(error.details.contains("blues"), "{error:?}");
    mark_namespace(cluster, &json!({}), &json!({ "team": null }));
    cluster.assert_nothing_left();
}

/// Without this feature, annotations select pools regardless of the namespace, as in upstream.
/// Shows SEC-10.
#[on(kubernetes_v1, kubernetes_v3)]
fn restricted_annotations_select_only_pools_of_the_namespace(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    pool_of_namespaces(cluster, "blues", "10.71.0.0/24", "team == 'blue'");
    let open = cluster.conf("node1", json!({}));
    let restricted = cluster.conf(
        "node1",
        json!({ "feature_control": { "restrict_annotations": true } }),
    );
    let wishes = [("ipv4pools", "[\"blues\"]"), ("ipAddrs", "[\"10.71.0.9\"]")];
    for (number, wish) in wishes.into_iter().enumerate() {
        assert!(
            addresses_of(cluster, number, &[wish], &open)[0].starts_with("10.71."),
            "{wish:?}"
        );
        let pod = annotated(cluster, number + 10, &[wish]);
        let error = cluster.verb("ADD", &pod, &restricted).run().error();
        let text = format!("{} {}", error.msg, error.details);
        assert!(
            text.contains("its namespaceSelector `team == 'blue'` does not match namespace suite"),
            "{text}"
        );
    }
    cluster.assert_nothing_left();
    mark_namespace(cluster, &json!({}), &json!({ "team": "blue" }));
    for (number, wish) in wishes.into_iter().enumerate() {
        assert!(
            addresses_of(cluster, number + 20, &[wish], &restricted)[0].starts_with("10.71."),
            "{wish:?}"
        );
    }
    mark_namespace(cluster, &json!({}), &json!({ "team": null }));
    cluster.assert_nothing_left();
}

/// Without this feature, annotations select pools regardless of the node, as in upstream.
/// Shows SEC-11.
#[on(kubernetes_v1, kubernetes_v3)]
fn annotated_pools_respect_the_node_selector_if_told(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    create_pool(
        cluster,
        "here",
        "10.71.0.0/24",
        "Workload",
        ("kubernetes.io/hostname == 'node1'", ""),
    );
    create_pool(
        cluster,
        "there",
        "10.72.0.0/24",
        "Workload",
        ("kubernetes.io/hostname == 'node2'", ""),
    );
    let node = json!({ "metadata": { "labels": { "kubernetes.io/hostname": "node1" } } });
    cluster
        .objects()
        .client()
        .patch("/api/v1/nodes/node1", &node)
        .unwrap()
        .success();
    let open = cluster.conf("node1", json!({}));
    let respecting = cluster.conf(
        "node1",
        json!({ "feature_control": { "pools_respect_node_selector": true } }),
    );
    let both = [("ipv4pools", "[\"there\", \"here\"]")];
    assert!(addresses_of(cluster, 1, &both, &open)[0].starts_with("10.72."));
    assert!(addresses_of(cluster, 2, &both, &respecting)[0].starts_with("10.71."));
    let pod = annotated(cluster, 3, &[("ipv4pools", "[\"there\"]")]);
    let error = cluster.verb("ADD", &pod, &respecting).run().error();
    assert_eq!(error.msg, "no configured Calico pools for node node1");
    let reason = "its nodeSelector `kubernetes.io/hostname == 'node2'` does not match node node1";
    assert!(error.details.contains(reason), "{error:?}");
    // The pool of the configuration, and an address, are not a choice of the pod's annotations
    // among pools.
    let mut configured = respecting.clone();
    configured["ipam"] = json!({ "type": "calico-ipam", "ipv4_pools": ["there"] });
    assert!(addresses_of(cluster, 4, &[], &configured)[0].starts_with("10.72."));
    for (number, name) in [(5, "ipAddrs"), (6, "ipAddrsAnyOf")] {
        assert_eq!(
            addresses_of(cluster, number, &[(name, "[\"10.72.0.9\"]")], &respecting),
            ["10.72.0.9/32"]
        );
    }
    cluster.assert_nothing_left();
}
