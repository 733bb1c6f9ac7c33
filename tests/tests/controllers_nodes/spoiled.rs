//! Unreadable objects and conflicting writers: the work for other objects is done.

use std::thread;
use std::time::{Duration, Instant};

use kube_controllers::settings::Settings;
use libcalico::api::{HostEndpointSpec, IpPoolSpec, NodeSpec, Object, ObjectKey, Spec, TierSpec};
use libcalico::store::{Kind, Store, Write, WriteOp};
use serde_json::{Value, json};

use crate::scene::{Scene, becomes, stays};

/// The round of the conflicting writer in which the test changes the last Kubernetes object.
const LAST_CHANGE: u32 = 20;

impl Scene {
    fn spoil<S: Spec>(&self, name: &str) {
        let path = Object::<S>::path(&ObjectKey::global(name));
        let op = WriteOp::Create(b"{".to_vec());
        let write = Write {
            kind: Object::<S>::KIND,
            path,
            key: name.into(),
            op,
        };
        self.wait_on(self.store.write_one(write)).unwrap();
    }

    fn labels_of<S: Spec>(&self, name: &str) -> Option<Value> {
        Some(json!(self.get::<S>(name)?.value.metadata.labels))
    }
}

fn with_host_endpoints(settings: &mut Settings) {
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
fn unreadable_objects_do_not_block_work_for_readable_ones(scene: &Scene) {
    for name in ["k-1", "k-2"] {
        scene.kubernetes_node(name, json!({"a": "1"}), json!({}));
        scene.put::<NodeSpec>(name, json!({}), of_kubernetes(name));
    }
    scene.spoil::<NodeSpec>("bad");
    scene.spoil::<HostEndpointSpec>("k-1-auto-hep");
    scene.spoil::<IpPoolSpec>("bad");
    let pool = json!({
        "cidr": "10.7.0.4/30", "blockSize": 30, "allowedUses": ["LoadBalancer"],
        "nodeSelector": "all()",
    });
    scene.put::<IpPoolSpec>("good", json!({}), pool);
    let service = json!({
        "metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    });
    let services = "/api/v1/namespaces/default/services";
    scene
        .admin
        .create(services, &service)
        .unwrap()
        .success()
        .unwrap();
    let _running = scene.start(with_host_endpoints);
    let shown = || {
        let web = scene
            .admin
            .get(&format!("{services}/web"))
            .unwrap()
            .success()
            .unwrap();
        web["status"]["loadBalancer"]["ingress"]
            .as_array()
            .map_or(0, Vec::len)
    };
    becomes(1, shown);
    for name in ["k-1", "k-2"] {
        becomes(Some(json!({"a": "1"})), || {
            scene.labels_of::<NodeSpec>(name)
        });
    }
    becomes(true, || {
        scene.get::<HostEndpointSpec>("k-2-auto-hep").is_some()
    });
    scene.delete_kubernetes_node("k-2");
    becomes(true, || scene.get::<NodeSpec>("k-2").is_none());
    becomes(true, || {
        scene.get::<HostEndpointSpec>("k-2-auto-hep").is_none()
    });
    // The unreadable pool may be the pool of the address.
    scene.delete::<IpPoolSpec>("good");
    stays(1, shown);
}

#[on(etcd)]
fn node_controllers_converge_against_a_conflicting_writer(scene: &Scene) {
    for name in ["k-1", "k-2"] {
        scene.kubernetes_node(name, json!({"a": "1"}), json!({}));
        scene.put::<NodeSpec>(name, json!({}), of_kubernetes(name));
    }
    let _running = scene.start(with_host_endpoints);
    becomes(true, || {
        scene.get::<HostEndpointSpec>("k-2-auto-hep").is_some()
    });
    let end = Instant::now() + Duration::from_secs(3);
    // On a busy machine, the round of the last change comes later.
    for round in (0..).take_while(|round| *round <= LAST_CHANGE || Instant::now() < end) {
        for name in ["k-1", "k-2"] {
            // Writes as calico-node does, and sometimes conflicts with the controllers.
            let Some(mut node) = scene.get::<NodeSpec>(name) else {
                continue;
            };
            node.value
                .metadata
                .annotations
                .insert("round".into(), format!("{round}"));
            let _ = scene.wait_on(libcalico::store::Store::update(
                &scene.store,
                &node.key,
                &node.value,
                &node.revision,
            ));
        }
        match round {
            10 => scene.kubernetes_node("k-1", json!({"a": "2"}), json!({})),
            LAST_CHANGE => scene.delete_kubernetes_node("k-2"),
            _ => {}
        }
        thread::sleep(Duration::from_millis(10));
    }
    becomes(Some(json!({"a": "2"})), || {
        scene.labels_of::<NodeSpec>("k-1")
    });
    becomes(true, || scene.get::<NodeSpec>("k-2").is_none());
    becomes(vec!["k-1-auto-hep".to_owned()], || {
        scene.names::<HostEndpointSpec>()
    });
    assert!(
        scene
            .get::<NodeSpec>("k-1")
            .unwrap()
            .value
            .metadata
            .annotations
            .contains_key("round")
    );
}

#[on(kubernetes_v3)]
fn pool_and_tier_controllers_converge_against_a_conflicting_writer(scene: &Scene) {
    let running = scene.start(|_| ());
    scene.put::<IpPoolSpec>(
        "pool",
        json!({}),
        json!({"cidr": "10.0.0.0/24", "blockSize": 30}),
    );
    scene.put::<TierSpec>("tier", json!({}), json!({"order": 10}));
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
            scene
                .admin
                .patch(&path(plural, name), &patch)
                .unwrap()
                .success()
                .unwrap();
        }
    }
    let kept = |plural: &str, name: &str| {
        let object = scene
            .admin
            .get(&path(plural, name))
            .unwrap()
            .success()
            .unwrap();
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
    scene.delete::<IpPoolSpec>("pool");
    scene.delete::<TierSpec>("tier");
    let _running = scene.start(|_| ());
    becomes(true, || {
        scene.get::<IpPoolSpec>("pool").is_none() && scene.get::<TierSpec>("tier").is_none()
    });
}
