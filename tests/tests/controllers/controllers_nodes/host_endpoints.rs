//! Automatic host endpoints in each datastore, with the cases of upstream's auto_hep_fv_test.

use kube_controllers::settings::Settings;
use libcalico::api::{HostEndpointSpec, HostEndpointTemplate};
use serde_json::{Value, json};

use crate::controllers_nodes::controlled_cluster::{ControlledCluster, becomes, on, stays};

fn enable(settings: &mut Settings) {
    settings.host_endpoints.enabled = true;
    settings.host_endpoints.default_endpoint = true;
}

fn ours(labels: Value) -> Value {
    let mut labels = labels;
    labels["projectcalico.org/created-by"] = json!("calico-kube-controllers");
    json!({ "labels": labels })
}

/// Returns the labels, the interface and the addresses of an endpoint. The label that names the
/// creator is left out.
fn shown(
    cluster: &ControlledCluster<'_>,
    name: &str,
) -> Option<(Vec<String>, String, Vec<String>)> {
    let endpoint = cluster.get::<HostEndpointSpec>(name)?.value;
    let labels = endpoint
        .metadata
        .labels
        .iter()
        .filter(|(key, _)| !key.ends_with("created-by"));
    let labels = labels
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    Some((
        labels,
        endpoint.spec.interface_name,
        endpoint.spec.expected_ips,
    ))
}

fn line(
    labels: &[&str],
    interface: &str,
    ips: &[&str],
) -> Option<(Vec<String>, String, Vec<String>)> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Some((texts(labels), interface.into(), texts(ips)))
}

#[on(etcd, kubernetes_v1, kubernetes_v3)]
fn host_endpoints_follow_nodes_and_foreign_ones_stay(cluster: &ControlledCluster<'_>) {
    cluster.calico_node("node-1", json!({"rack": "r1"}), "10.0.0.1/24");
    cluster.put::<HostEndpointSpec>(
        "own",
        json!({}),
        json!({"node": "node-9", "interfaceName": "eth0"}),
    );
    cluster.put::<HostEndpointSpec>(
        "dangling",
        ours(json!({})),
        json!({"node": "node-9", "interfaceName": "eth0"}),
    );
    let running = cluster.start(enable);
    becomes(line(&["rack=r1"], "*", &["10.0.0.1"]), || {
        shown(cluster, "node-1-auto-hep")
    });
    becomes(vec!["node-1-auto-hep".to_owned(), "own".into()], || {
        cluster.names::<HostEndpointSpec>()
    });

    cluster.calico_node("node-1", json!({"rack": "r2"}), "10.0.0.2/24");
    cluster.calico_node("node-2", json!({}), "10.0.0.3/24");
    becomes(line(&["rack=r2"], "*", &["10.0.0.2"]), || {
        shown(cluster, "node-1-auto-hep")
    });
    becomes(line(&[], "*", &["10.0.0.3"]), || {
        shown(cluster, "node-2-auto-hep")
    });

    let spec = json!({"node": "node-1", "interfaceName": "eth7", "expectedIPs": ["1.2.3.4"]});
    cluster.put::<HostEndpointSpec>("node-1-auto-hep", ours(json!({"more": "x"})), spec);
    becomes(line(&["rack=r2"], "*", &["10.0.0.2"]), || {
        shown(cluster, "node-1-auto-hep")
    });
    cluster.delete::<HostEndpointSpec>("node-1-auto-hep");
    becomes(line(&["rack=r2"], "*", &["10.0.0.2"]), || {
        shown(cluster, "node-1-auto-hep")
    });
    let revision = || {
        cluster
            .get::<HostEndpointSpec>("node-1-auto-hep")
            .map(|entry| entry.revision)
    };
    stays(revision(), revision);

    drop(running);
    cluster.delete_calico_node("node-2");
    cluster.calico_node("node-3", json!({}), "10.0.0.4/24");
    cluster.delete::<HostEndpointSpec>("node-1-auto-hep");
    let running = cluster.start(enable);
    let expected = ["node-1-auto-hep", "node-3-auto-hep", "own"]
        .map(str::to_owned)
        .to_vec();
    becomes(expected, || cluster.names::<HostEndpointSpec>());

    running.set(|settings| settings.host_endpoints.enabled = false);
    becomes(vec!["own".to_owned()], || {
        cluster.names::<HostEndpointSpec>()
    });
}

#[on(etcd, kubernetes_v3)]
fn host_endpoints_follow_their_templates(cluster: &ControlledCluster<'_>) {
    cluster.calico_node("node-1", json!({"rack": "r1"}), "10.0.0.1/24");
    let template = |name: &str, value: &str| HostEndpointTemplate {
        generate_name: name.into(),
        interface_cidrs: vec!["10.0.0.0/8".into()],
        node_selector: "rack == 'r1'".into(),
        annotations: [("note".to_owned(), value.to_owned())].into(),
        ..HostEndpointTemplate::default()
    };
    let running = cluster.start(|settings| {
        enable(settings);
        settings.host_endpoints.templates = vec![template("t", "1")];
    });
    let note = |name: &str| {
        Some(
            cluster
                .get::<HostEndpointSpec>(name)?
                .value
                .metadata
                .annotations
                .get("note")?
                .clone(),
        )
    };
    becomes(Some("1".into()), || note("node-1-t-auto-hep"));
    becomes(line(&["rack=r1"], "*", &["10.0.0.1"]), || {
        shown(cluster, "node-1-auto-hep")
    });
    running.set(|settings| settings.host_endpoints.templates = vec![template("t", "2")]);
    becomes(Some("2".into()), || note("node-1-t-auto-hep"));
    running.set(|settings| {
        settings.host_endpoints.default_endpoint = false;
        settings.host_endpoints.templates = vec![template("u", "2")];
    });
    becomes(vec!["node-1-u-auto-hep".to_owned()], || {
        cluster.names::<HostEndpointSpec>()
    });
    cluster.calico_node("node-1", json!({"rack": "r2"}), "10.0.0.1/24");
    becomes(Vec::<String>::new(), || cluster.names::<HostEndpointSpec>());
}
