//! Tests of the leaks that the audit reports among the addresses of pods and virtual machines.

use serde_json::{Value, json};

use super::*;
use crate::api::WorkloadEndpoint;
use crate::ipam::InUseReason;
use crate::kubernetes::endpoint_of_pod;

fn pod(change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {}},
        "spec": {"nodeName": "node1"},
        "status": {"phase": "Running", "podIP": "10.0.0.0", "podIPs": [{"ip": "10.0.0.0"}]},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

const OF_POD: [(&str, &str); 3] = [("namespace", "ns"), ("pod", "p"), ("node", "node1")];

/// Returns the leaks found for an address that is allocated to the pod `ns/p`.
fn leaks(pod: Option<&Pod>) -> Vec<String> {
    let mut stored = StoredObjects {
        endpoints: Vec::new(),
        handles: BTreeMap::new(),
        ..StoredObjects::healthy()
    };
    stored.blocks = vec![
        Block::new(
            cidr("10.0.0.0/30"),
            &AffinityOwner::Host("node1".into()),
            NOW,
        )
        .unwrap(),
    ];
    stored.allocate("net.c1", &OF_POD);
    if let Some(pod) = pod {
        let shown = endpoint_of_pod(pod, "cali").unwrap().endpoint;
        let address = |text: &String| text.parse::<Cidr>().unwrap().network();
        let addresses = shown.spec.ip_networks.iter().map(address).collect();
        stored.endpoints = vec![AuditedEndpoint {
            name: "ns/p".into(),
            addresses,
            ..AuditedEndpoint::default()
        }];
        stored.pods = Pods::from([(
            ObjectKey::namespaced("ns", "p"),
            Lookup::Present(pod.clone()),
        )]);
    }
    let leaks = stored
        .findings()
        .into_iter()
        .filter(|finding| matches!(finding, Finding::AddressWithoutEndpoint(_)));
    leaks.map(|finding| finding.to_string()).collect()
}

#[test]
fn pod_being_deleted_with_emptied_annotations_retains_its_address_until_it_ended() {
    for emptied in ["cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"] {
        let going = |phase: &str| {
            pod(|pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T21:00:00Z");
                pod["metadata"]["annotations"] =
                    json!({emptied: "", "cni.projectcalico.org/podIPs": ""});
                pod["status"]["phase"] = json!(phase);
            })
        };
        assert_eq!(leaks(Some(&going("Running"))), NOTHING, "{emptied}");
        assert_eq!(leaks(Some(&going("Failed"))).len(), 1, "{emptied}");
    }
}

#[test]
fn pod_addresses_in_status_or_annotations_are_no_leak() {
    let annotated = |status: &str, annotated: &str| {
        pod(|pod| {
            pod["metadata"]["annotations"] = json!({"cni.projectcalico.org/podIPs": annotated});
            pod["status"] =
                json!({"phase": "Running", "podIP": status, "podIPs": [{"ip": status}]});
        })
    };
    assert_eq!(leaks(Some(&annotated("10.0.0.0", "10.0.0.3/32"))), NOTHING);
    assert_eq!(leaks(Some(&annotated("10.0.0.0", "garbage"))), NOTHING);
    assert_eq!(
        leaks(Some(&annotated("10.0.0.3", "10.0.0.0/32"))),
        NOTHING,
        "the status is older than the annotation"
    );
    assert_eq!(leaks(Some(&annotated("10.0.0.3", ""))).len(), 1);
    assert_eq!(leaks(None).len(), 1);
}

#[test]
fn address_of_a_pod_without_reported_addresses_is_reported_and_retained() {
    let silent = pod(|pod| pod["status"] = json!({"phase": "Pending"}));
    assert_eq!(leaks(Some(&silent)).len(), 1);
    let mut stored = StoredObjects::healthy();
    stored.allocate("net.c3", &OF_POD);
    let held = stored.blocks[0].allocation(ip("10.0.0.2")).unwrap();
    let in_use_reason = |lookup: Option<Lookup<Pod>>| {
        let pods: Pods = lookup
            .map(|lookup| (ObjectKey::namespaced("ns", "p"), lookup))
            .into_iter()
            .collect();
        pod_in_use_reason(&held, &pods)
    };
    assert_eq!(
        in_use_reason(Some(Lookup::Present(silent))),
        Some(InUseReason::PodWithoutAddress)
    );
    assert_eq!(
        in_use_reason(Some(Lookup::Unknown)),
        Some(InUseReason::NotLookedUp),
        "an unreadable pod counts as existing"
    );
    assert_eq!(
        in_use_reason(Some(Lookup::Present(pod(|_| {})))),
        None,
        "the pod has another address"
    );
    assert_eq!(in_use_reason(None), None);
}

/// The ADDs of a pod fail after its sandbox has ended, and another pod has its address. Its status
/// stays as it is, because only kubelet writes it. Shows SEC-17.
#[test]
fn address_in_the_status_of_a_pod_that_another_pod_owns_is_reported_until_the_pod_ends() {
    let found = |first: &Pod| {
        let mut stored = StoredObjects {
            endpoints: Vec::new(),
            handles: BTreeMap::new(),
            ..StoredObjects::healthy()
        };
        stored.blocks = vec![
            Block::new(
                cidr("10.0.0.0/30"),
                &AffinityOwner::Host("node1".into()),
                NOW,
            )
            .unwrap(),
        ];
        stored.allocate(
            "net.c2",
            &[("namespace", "ns"), ("pod", "q"), ("node", "node1")],
        );
        let second = pod(|pod| {
            pod["metadata"]["name"] = json!("q");
            pod["metadata"]["annotations"] = json!({"cni.projectcalico.org/containerID": "c2"});
        });
        for pod in [first, &second] {
            let WorkloadEndpoint { spec, .. } = endpoint_of_pod(pod, "cali").unwrap().endpoint;
            let addresses = spec
                .ip_networks
                .iter()
                .map(|text| text.parse::<Cidr>().unwrap().network())
                .collect();
            let container_id = (!spec.container_id.is_empty()).then_some(spec.container_id);
            let name = format!("ns/{}", spec.pod);
            stored.endpoints.push(AuditedEndpoint {
                name,
                addresses,
                container_id,
                ..AuditedEndpoint::default()
            });
            stored.pods.insert(
                ObjectKey::namespaced("ns", spec.pod),
                Lookup::Present(pod.clone()),
            );
        }
        stored.texts()
    };
    // As a DEL leaves them, with an annotation that makes each next ADD fail.
    let annotations = |more: [&str; 2]| {
        let detached = ["podIP", "podIPs", "containerID"]
            .map(|key| (format!("cni.projectcalico.org/{key}"), ""));
        json!(BTreeMap::from_iter(detached.into_iter().chain([(
            format!("cni.projectcalico.org/{}", more[0]),
            more[1]
        )])))
    };
    for wrong in [
        ["ipAddrs", "x"],
        ["allowedSourcePrefixes", "x"],
        ["floatingIPs", "x"],
        ["containerID", "c3"],
    ] {
        let waiting = pod(|pod| pod["metadata"]["annotations"] = annotations(wrong));
        let expected = ["double allocation: 10.0.0.0 is held by endpoint ns/p and endpoint ns/q"];
        assert_eq!(found(&waiting), expected, "{wrong:?}");
        let ended = |change: fn(&mut Value)| {
            pod(|pod| {
                pod["metadata"]["annotations"] = annotations(wrong);
                change(pod);
            })
        };
        for change in [
            (|pod| pod["status"]["phase"] = json!("Succeeded")) as fn(&mut Value),
            |pod| pod["status"]["phase"] = json!("Failed"),
            |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T21:00:00Z"),
        ] {
            assert_eq!(found(&ended(change)), NOTHING, "{wrong:?}");
        }
    }
}

#[test]
fn address_of_a_stopped_vm_is_no_leak() {
    let mut stored = StoredObjects {
        endpoints: Vec::new(),
        handles: BTreeMap::new(),
        ..StoredObjects::healthy()
    };
    stored.blocks = vec![
        Block::new(
            cidr("10.0.0.0/30"),
            &AffinityOwner::Host("node1".into()),
            NOW,
        )
        .unwrap(),
    ];
    stored.allocate(
        "net.vmi.ns.vm",
        &[
            ("namespace", "ns"),
            ("pod", "virt-launcher-vm-x"),
            ("vmi-name", "vm"),
        ],
    );
    stored.allocate("net.vmi.ns.cleared", &[]);
    assert_eq!(stored.texts(), NOTHING);
}

/// Kubelet reports one interface of a pod.
#[test]
fn second_interface_of_a_running_container_is_no_leak() {
    let mut stored = StoredObjects {
        endpoints: Vec::new(),
        handles: BTreeMap::new(),
        ..StoredObjects::healthy()
    };
    stored.blocks = vec![
        Block::new(
            cidr("10.0.0.0/29"),
            &AffinityOwner::Host("node1".into()),
            NOW,
        )
        .unwrap(),
    ];
    stored.affinities = vec![affinity("node1", "10.0.0.0/29", AffinityState::Confirmed)];
    let [running, before] = ["a", "b"].map(|digit| digit.repeat(64));
    for handle in [
        format!("net.{running}"),
        format!("macvlan.{running}"),
        format!("macvlan.{before}"),
    ] {
        stored.allocate(&handle, &OF_POD);
    }
    stored.endpoints = vec![endpoint(&running, "10.0.0.0")];
    stored.pods = Pods::from([(
        ObjectKey::namespaced("ns", "p"),
        Lookup::Present(pod(|_| {})),
    )]);
    let leaks = stored.texts();
    assert!(
        leaks.len() == 1 && leaks[0].contains("10.0.0.2"),
        "{leaks:?}"
    );
}
