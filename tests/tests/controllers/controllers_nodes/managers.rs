//! The field manager that the API server records for the fields that controllers write.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{ControlledCluster, becomes, on};

/// The name before the slash in the `User-Agent` of each request.
const MANAGER: &str = "calico";

/// An object that the store writes, and two that controllers write through kube's client.
const WRITTEN: [&str; 3] = [
    "/apis/projectcalico.org/v3/hostendpoints/node-1-auto-hep",
    "/api/v1/namespaces/default/services/web",
    "/apis/projectcalico.org/v3/ippools/pool",
];

/// Returns the managers of an object's fields.
fn managers(cluster: &ControlledCluster<'_>, path: &str) -> BTreeSet<String> {
    let object = cluster.servers.get(path);
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    entries
        .iter()
        .filter_map(|entry| Some(entry["manager"].as_str()?.to_owned()))
        .collect()
}

#[on(kubernetes_v3)]
fn objects_written_by_controllers_name_calico_as_field_manager(cluster: &ControlledCluster<'_>) {
    let apply = |object: Value| cluster.servers.apply(object);
    cluster.kubernetes_node(
        "node-1",
        json!({}),
        json!({"projectcalico.org/IPv4Address": "10.0.0.1/24"}),
    );
    apply(json!({
        "apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "pool"},
        "spec": {
            "cidr": "10.7.0.0/28", "blockSize": 30, "allowedUses": ["LoadBalancer"],
            "nodeSelector": "all()",
        },
    }));
    apply(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]},
    }));
    let before = WRITTEN.map(|path| managers(cluster, path));
    assert!(
        before.iter().all(|managers| !managers.contains(MANAGER)),
        "{before:?}"
    );
    let _running = cluster.start(|settings| {
        settings.host_endpoints.enabled = true;
        settings.host_endpoints.default_endpoint = true;
    });
    for (path, before) in WRITTEN.iter().zip(&before) {
        becomes(BTreeSet::from([MANAGER.to_owned()]), || {
            &managers(cluster, path) - before
        });
    }
}
