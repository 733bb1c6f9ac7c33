//! Unreadable objects and conflicting writers: the work for other objects is done.

use std::thread;
use std::time::{Duration, Instant};

use kube_controllers::settings::Settings;
use libcalico::api::{HostEndpointSpec, IpPoolSpec, NodeSpec, Object, ObjectKey, Spec, TierSpec};
use libcalico::store::{Kind, Store, Write, WriteOp};
use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{ControlledCluster, becomes, on, stays};

/// The round of the conflicting writer in which the test changes the last Kubernetes object.
const LAST_CHANGE: u32 = 20;

impl ControlledCluster<'_> {
    fn create_unreadable<S: Spec>(&self, name: &str) {
        let path = Object::<S>::path(&ObjectKey::global(name));
        let op = WriteOp::Create(b"{".to_vec());
        let write = Write {
            kind: Object::<S>::KIND,
            path,
            key: name.into(),
            op,
        };
        self.objects
            .wait_on(self.objects.store.write_one(write))
            .unwrap();
    }

    fn labels_of<S: Spec>(&self, name: &str) -> Option<Value> {
        Some(json!(self.get::<S>(name)?.value.metadata.labels))
    }
}

fn enable_host_endpoints(settings: &mut Settings) {
    settings.host_endpoints.enabled = true;
    settings.host_endpoints.default_endpoint = true;
}

fn of_kubernetes(name: &str) -> Value {
    json!({
        "orchRefs": [{"nodeName": name, "orchestrator": "k8s"}],
        "bgp": {"ipv4Address": "10.0.0.1/24"},
    })
}

#[on(etcd)]
fn unreadable_objects_do_not_block_work_for_readable_ones(cluster: &ControlledCluster<'_>) {
    for name in ["k-1", "k-2"] {
        cluster.kubernetes_node(name, json!({"a": "1"}), json!({}));
        cluster.put::<NodeSpec>(name, json!({}), of_kubernetes(name));
    }
    cluster.create_unreadable::<NodeSpec>("bad");
    cluster.create_unreadable::<HostEndpointSpec>("k-1-auto-hep");
    cluster.create_unreadable::<IpPoolSpec>("bad");
    let pool = json!({
        "cidr": "10.7.0.4/30", "blockSize": 30, "allowedUses": ["LoadBalancer"],
        "nodeSelector": "all()",
    });
    cluster.put::<IpPoolSpec>("good", json!({}), pool);
    let service = json!({
        "metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    });
    let services = "/api/v1/namespaces/default/services";
    cluster.servers.create(services, &service);
    let _running = cluster.start(enable_host_endpoints);
    let shown = || {
        let web = cluster.servers.read(&format!("{services}/web"));
        web["status"]["loadBalancer"]["ingress"]
            .as_array()
            .map_or(0, Vec::len)
    };
    becomes(1, shown);
    for name in ["k-1", "k-2"] {
        becomes(Some(json!({"a": "1"})), || {
            cluster.labels_of::<NodeSpec>(name)
        });
    }
    becomes(true, || {
        cluster.get::<HostEndpointSpec>("k-2-auto-hep").is_some()
    });
    cluster.delete_kubernetes_node("k-2");
    becomes(true, || cluster.get::<NodeSpec>("k-2").is_none());
    becomes(true, || {
        cluster.get::<HostEndpointSpec>("k-2-auto-hep").is_none()
    });
    // The unreadable pool may be the pool of the address.
    cluster.delete::<IpPoolSpec>("good");
    stays(1, shown);
}

#[on(etcd)]
fn node_controllers_converge_against_a_conflicting_writer(cluster: &ControlledCluster<'_>) {
    for name in ["k-1", "k-2"] {
        cluster.kubernetes_node(name, json!({"a": "1"}), json!({}));
        cluster.put::<NodeSpec>(name, json!({}), of_kubernetes(name));
    }
    let _running = cluster.start(enable_host_endpoints);
    becomes(true, || {
        cluster.get::<HostEndpointSpec>("k-2-auto-hep").is_some()
    });
    let end = Instant::now() + Duration::from_secs(3);
    // On a busy machine, the round of the last change comes later.
    for round in (0..).take_while(|round| *round <= LAST_CHANGE || Instant::now() < end) {
        for name in ["k-1", "k-2"] {
            // Writes as calico-node does, and sometimes conflicts with the controllers.
            let Some(mut node) = cluster.get::<NodeSpec>(name) else {
                continue;
            };
            node.value
                .metadata
                .annotations
                .insert("round".into(), format!("{round}"));
            let update = cluster
                .objects
                .store
                .update(&node.key, &node.value, &node.revision);
            let _ = cluster.objects.wait_on(update);
        }
        match round {
            10 => cluster.kubernetes_node("k-1", json!({"a": "2"}), json!({})),
            LAST_CHANGE => cluster.delete_kubernetes_node("k-2"),
            _ => {}
        }
        thread::sleep(Duration::from_millis(10));
    }
    becomes(Some(json!({"a": "2"})), || {
        cluster.labels_of::<NodeSpec>("k-1")
    });
    becomes(true, || cluster.get::<NodeSpec>("k-2").is_none());
    becomes(vec!["k-1-auto-hep".to_owned()], || {
        cluster.names::<HostEndpointSpec>()
    });
    assert!(
        cluster
            .get::<NodeSpec>("k-1")
            .unwrap()
            .value
            .metadata
            .annotations
            .contains_key("round")
    );
}

#[on(kubernetes_v3)]
fn pool_and_tier_controllers_converge_against_a_conflicting_writer(
    cluster: &ControlledCluster<'_>,
) {
    let running = cluster.start(|_| ());
    cluster.put::<IpPoolSpec>(
        "pool",
        json!({}),
        json!({"cidr": "10.0.0.0/24", "blockSize": 30}),
    );
    cluster.put::<TierSpec>("tier", json!({}), json!({"order": 10}));
    let path = |plural: &str, name: &str| format!("/apis/projectcalico.org/v3/{plural}/{name}");
    let begin = Instant::now();
    for round in (0..).take_while(|_| begin.elapsed() < Duration::from_secs(2)) {
        for (plural, name) in [("ippools", "pool"), ("tiers", "tier")] {
            let finalizers = if round == 0 {
                json!({})
            } else {
                json!({"finalizers": null})
            };
            let mut patch = json!({"metadata": finalizers});
            patch["metadata"]["labels"] = json!({"round": round.to_string()});
            cluster.servers.merge(&path(plural, name), &patch);
        }
    }
    let kept = |plural: &str, name: &str| {
        let object = cluster.servers.read(&path(plural, name));
        (
            object["metadata"]["finalizers"]
                .as_array()
                .map_or(0, Vec::len),
            object["metadata"]["labels"]["round"].is_string(),
        )
    };
    becomes((1, true), || kept("ippools", "pool"));
    becomes((1, true), || kept("tiers", "tier"));
    drop(running);
    cluster.delete::<IpPoolSpec>("pool");
    cluster.delete::<TierSpec>("tier");
    let _running = cluster.start(|_| ());
    becomes(true, || {
        cluster.get::<IpPoolSpec>("pool").is_none() && cluster.get::<TierSpec>("tier").is_none()
    });
}
