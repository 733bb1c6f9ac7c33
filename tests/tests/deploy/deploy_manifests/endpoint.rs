//! The component `api-server` of platforms that have an address of the API server on each node.

use std::collections::BTreeMap;
use std::fs;

use integration_tests::manifests::{
    Objects, api_server_on_page, changes, compose, deploy, kustomize, platforms,
};
use serde_json::{Value, json};

use super::platforms::{composed, page};
use super::{DEPLOYMENT, OVERLAYS, can_render};

/// The ConfigMap from which every container reads the address of the API server, if it exists.
const ENDPOINT: &str = "ConfigMap kube-system/kubernetes-services-endpoint";

/// Returns the component that sets a platform's address of the API server on each node.
fn api_server(platform: &str) -> String {
    format!("components/platforms/{platform}/api-server")
}

/// Returns the platforms with an address of the API server on each node, and a rendering with it.
pub(super) fn with_api_server(base: &str) -> Vec<(String, Objects)> {
    let directory = tempfile::tempdir().unwrap();
    let named = platforms()
        .unwrap()
        .into_iter()
        .filter(|platform| deploy(&api_server(platform)).exists());
    let rendered = named.map(|platform| {
        let components = [
            format!("components/platforms/{platform}"),
            api_server(&platform),
        ];
        let objects = compose(
            directory.path(),
            &[base],
            &components.each_ref().map(String::as_str),
        )
        .unwrap();
        (platform, objects)
    });
    rendered.collect()
}

#[test]
fn component_api_server_changes_only_the_address_and_the_network_of_kube_controllers() {
    if !can_render() {
        return;
    }
    let pod = format!("{DEPLOYMENT}/spec/template/spec");
    for base in OVERLAYS {
        for (platform, objects) in with_api_server(base) {
            let mut changed = changes(&composed(&platform, base), &objects);
            changed.sort();
            // With etcd, kube-controllers is on the host's network anyway.
            let network = [format!("{pod}/dnsPolicy"), format!("{pod}/hostNetwork")];
            let network = network.into_iter().filter(|_| base != "overlays/etcd");
            let expected: Vec<String> = [ENDPOINT.to_owned()].into_iter().chain(network).collect();
            assert_eq!(changed, expected, "{platform}, {base}");
            assert_eq!(
                objects[DEPLOYMENT]["spec"]["template"]["spec"]["hostNetwork"], true,
                "{platform}, {base}"
            );
        }
    }
}

/// Every container reads the ConfigMap from its own namespace, and works without it.
#[test]
fn component_api_server_follows_the_namespace_of_its_kustomization() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    compose(
        directory.path(),
        &[OVERLAYS[0]],
        &["components/platforms/k3s", &api_server("k3s")],
    )
    .unwrap();
    let file = directory.path().join("kustomization.yaml");
    let mut kustomization: Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    kustomization["namespace"] = json!("other");
    fs::write(&file, kustomization.to_string()).unwrap();
    let objects = kustomize(directory.path()).unwrap();
    for object in [
        "ConfigMap other/kubernetes-services-endpoint",
        "DaemonSet.apps other/calico-cni",
    ] {
        assert!(
            objects.contains_key(object),
            "{object}: {:?}",
            objects.keys()
        );
    }
    assert!(!objects.contains_key(ENDPOINT));
}

#[test]
fn table_of_platforms_names_the_address_of_each_component_api_server() {
    if !can_render() {
        return;
    }
    let rendered: BTreeMap<String, Objects> = with_api_server(OVERLAYS[0]).into_iter().collect();
    let expected = ["k0s", "k3s", "kubespray", "microk8s", "rke2", "talos"];
    assert!(
        rendered.keys().map(String::as_str).eq(expected),
        "{:?}",
        rendered.keys()
    );
    let index = page("README.md");
    let value =
        "`--set kubernetesServiceEndpoint.ofPlatform=true,kubeControllers.hostNetwork=true`";
    for command in [value.to_owned(), format!("`{}`", api_server("NAME"))] {
        assert!(index.contains(&command), "{command}");
    }
    for platform in platforms().unwrap() {
        let address = rendered.get(&platform).map(|objects| {
            let data = &objects[ENDPOINT]["data"];
            ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"]
                .map(|key| data[key].as_str().unwrap().to_owned())
        });
        assert_eq!(
            api_server_on_page(&platform).unwrap(),
            address,
            "{platform}"
        );
    }
}
