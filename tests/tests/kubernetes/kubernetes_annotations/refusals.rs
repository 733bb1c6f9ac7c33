//! Rejected annotations: the ADD changes neither the kernel nor the datastore.

use integration_tests::cluster::{Cluster, pod_path};
use integration_tests::content::Content;
use serde_json::{Value, json};

use crate::kubernetes_annotations::{annotated, on};

/// Annotations, additional keys of the configuration, the CNI error code, and the beginning of the
/// message.
type Refusal = (
    &'static [(&'static str, &'static str)],
    Value,
    u32,
    &'static str,
);

fn refusals() -> Vec<Refusal> {
    let (usual, features) = (
        json!({}),
        json!({ "feature_control": { "ip_addrs_no_ipam": true, "floating_ips": true } }),
    );
    let host_local = json!({ "ipam": { "type": "host-local", "subnet": "10.9.0.0/24" } });
    vec![
        (
            &[("ipAddrs", "[\"10.65.3.3\"")],
            usual.clone(),
            6,
            "failed to parse IPs [\"10.65.3.3\" for annotation \"cni.projectcalico.org/ipAddrs\": \
             failed to parse '[\"10.65.3.3\"' as JSON: unexpected end of JSON input",
        ),
        (
            &[("ipAddrs", "[]")],
            usual.clone(),
            7,
            "annotation \"cni.projectcalico.org/ipAddrs\" specified but empty",
        ),
        (
            &[("ipAddrs", "[\"10.65.3.3/32\"]")],
            usual.clone(),
            7,
            "invalid IP format: 10.65.3.3/32",
        ),
        (
            &[("ipAddrs", "[\"10.65.3.3\", \"10.65.3.4\"]")],
            usual.clone(),
            7,
            "cannot have more than one IPv4 address for \"cni.projectcalico.org/ipAddrs\" \
             annotation",
        ),
        (
            &[("ipAddrs", "[\"10.65.3.3\"]")],
            host_local.clone(),
            7,
            "ipAddrs is not compatible with configured IPAM: host-local",
        ),
        (
            &[("ipAddrsNoIpam", "[\"10.65.3.3\"]")],
            host_local.clone(),
            7,
            "ipAddrsNoIpam is not compatible with configured IPAM: host-local",
        ),
        (
            &[("ipAddrsAnyOf", "[\"10.65.3.3\"]")],
            host_local,
            7,
            "ipAddrsAnyOf is not compatible with configured IPAM: host-local",
        ),
        (
            &[("ipAddrsNoIpam", "[\"10.65.3.3\"]")],
            usual.clone(),
            7,
            "requested feature is not enabled: ip_addrs_no_ipam",
        ),
        (
            &[("ipAddrsNoIpam", "[\"fd00::1\", \"fd00::2\"]")],
            features.clone(),
            7,
            "cannot have more than one IPv6 address for \"cni.projectcalico.org/ipAddrsNoIpam\" \
             annotation",
        ),
        (
            &[
                ("ipAddrs", "[\"10.65.3.3\"]"),
                ("ipAddrsNoIpam", "[\"10.65.3.3\"]"),
            ],
            features.clone(),
            7,
            "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
        ),
        (
            &[("ipAddrsAnyOf", "[\"10.65.3.3\"")],
            usual.clone(),
            6,
            "failed to parse IPs [\"10.65.3.3\" for annotation \
             \"cni.projectcalico.org/ipAddrsAnyOf\": failed to parse '[\"10.65.3.3\"' as JSON: \
             unexpected end of JSON input",
        ),
        (
            &[("ipAddrsAnyOf", "[]")],
            usual.clone(),
            7,
            "annotation \"cni.projectcalico.org/ipAddrsAnyOf\" specified but empty",
        ),
        (
            &[("ipAddrsAnyOf", "[\"10.65.3.3\", \"pool4\"]")],
            usual.clone(),
            7,
            "invalid IP format: pool4",
        ),
        (
            &[("ipAddrsAnyOf", "[\"0.0.0.0/0\"]")],
            usual.clone(),
            7,
            "annotation \"cni.projectcalico.org/ipAddrsAnyOf\" names 0.0.0.0/0, which has more \
             than 256 addresses",
        ),
        (
            &[
                ("ipAddrsAnyOf", "[\"10.65.3.3\"]"),
                ("ipAddrs", "[\"10.65.3.3\"]"),
            ],
            usual.clone(),
            7,
            "can't have both annotations: 'ipAddrs' and 'ipAddrsAnyOf' in use at the same time",
        ),
        (
            &[
                ("ipAddrsAnyOf", "[\"10.65.3.3\"]"),
                ("ipAddrsNoIpam", "[\"10.65.3.3\"]"),
            ],
            features.clone(),
            7,
            "can't have both annotations: 'ipAddrsNoIpam' and 'ipAddrsAnyOf' in use at the same \
             time",
        ),
        (
            &[("ipAddrsAnyOf", "[\"192.0.2.1\"]")],
            usual.clone(),
            7,
            "no address of the annotation \"cni.projectcalico.org/ipAddrsAnyOf\" is free",
        ),
        (
            &[("hwAddr", "1c:0c:0a:c0")],
            usual.clone(),
            7,
            "failed to parse MAC address 1c:0c:0a:c0 provided via cni.projectcalico.org/hwAddr: \
             address 1c:0c:0a:c0: invalid MAC address",
        ),
        (
            &[("hwAddr", "")],
            usual.clone(),
            7,
            "failed to parse MAC address  provided via cni.projectcalico.org/hwAddr: address : \
             invalid MAC address",
        ),
        (
            &[("hwAddr", "01:00:5e:00:00:01")],
            usual.clone(),
            7,
            "failed to set MAC address 01:00:5e:00:00:01",
        ),
        (
            &[("floatingIPs", "[\"1.1.1.1\"]")],
            usual.clone(),
            7,
            "requested feature is not enabled: floating_ips",
        ),
        (
            &[("floatingIPs", "1.1.1.1")],
            features.clone(),
            6,
            "failed to parse '1.1.1.1' as JSON: ",
        ),
        (
            &[("floatingIPs", "[\"1.1.1\"]")],
            features.clone(),
            7,
            "error with field ExternalIP = '1.1.1' (invalid IP address)",
        ),
        (
            &[("podIP", "10.65.3.3/32"), ("floatingIPs", "[")],
            usual.clone(),
            6,
            "failed to parse '[' as JSON: unexpected end of JSON input",
        ),
        (
            &[("allowedSourcePrefixes", "[\"8.8.8.8\"]")],
            usual.clone(),
            7,
            "failed to parse '8.8.8.8' as a CIDR: invalid CIDR address: 8.8.8.8",
        ),
        (
            &[("allowedSourcePrefixes", "8.8.8.0/24")],
            usual.clone(),
            6,
            "failed to parse '8.8.8.0/24' as JSON: ",
        ),
        (
            &[("podIPs", "10.65.3.3/32,ten")],
            usual.clone(),
            7,
            "address of the pod: invalid CIDR address: ten",
        ),
        (
            &[("ipv4pools", "pool4")],
            usual.clone(),
            6,
            "failed to parse 'pool4' as JSON: ",
        ),
        (
            &[("ipv6pools", "[\"pool6\"")],
            usual.clone(),
            6,
            "failed to parse '[\"pool6\"' as JSON: unexpected end of JSON input",
        ),
        (
            &[("ipv4pools", "[\"missing\"]")],
            usual.clone(),
            7,
            "error parsing pool \"missing\": invalid CIDR address: missing",
        ),
        (
            &[("ipv4pools", "[\"10.99.0.0/16\"]")],
            usual.clone(),
            999,
            "the given pool (10.99.0.0/16) does not exist, or is not enabled",
        ),
        (
            &[("ipFamilies", "[\"ipv4\"]")],
            usual,
            7,
            "error parsing ipFamilies: [\"ipv4\"]",
        ),
    ]
}

/// Shows SEC-12.
#[on(kubernetes_v1)]
fn invalid_annotations_fail_the_add_without_changes(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    for (number, (annotations, more, code, text)) in refusals().into_iter().enumerate() {
        let pod = annotated(cluster, number, annotations);
        let conf = cluster.conf("node1", more);
        let before = cluster.state();
        let error = cluster.verb("ADD", &pod, &conf).run().error();
        assert!(error.msg.starts_with(text), "{annotations:?}: {error:?}");
        assert_eq!(error.code, code, "{annotations:?}: {error:?}");
        cluster.assert_unchanged(&before);
        // In upstream, unreadable annotations prevent the deletion of the pod (CNI-245).
        cluster.delete(&pod, &conf);
        cluster.remove_pod(&pod);
    }
}

/// As in upstream, no annotation has an effect without the policy type `k8s` (CNI-115).
#[on(kubernetes_v1)]
fn annotations_have_no_effect_without_kubernetes_policy(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let conf = cluster.conf("node1", json!({ "policy": { "type": "other" } }));
    let annotations = [
        ("ipAddrs", "nonsense"),
        ("ipAddrsAnyOf", "nonsense"),
        ("hwAddr", ""),
        ("ipv4pools", "nonsense"),
        ("floatingIPs", "[\"1.1.1.1\"]"),
    ];
    let pod = annotated(cluster, 1, &annotations);
    cluster.add(&pod, &conf);
    cluster.assert_only(&[&pod]);
    cluster.delete(&pod, &conf);
    assert_eq!(
        cluster
            .objects()
            .client()
            .get(&pod_path("pod1"))
            .unwrap()
            .code,
        200
    );
}
