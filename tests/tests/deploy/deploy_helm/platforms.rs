//! The value `platform`: the same as the kustomize component, and weaker than other values.

use std::fs;

use integration_tests::manifests::{compose, containers, deploy, platforms};
use serde_json::{Value, json};

use super::options::set;
use super::same::assert_equal;
use super::{DAEMON_SET, can_render};

#[test]
fn platform_value_renders_the_same_as_its_component() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for platform in platforms().unwrap() {
        let component = format!("components/platforms/{platform}");
        let kustomized =
            compose(directory.path(), &["overlays/kubernetes-v1"], &[&component]).unwrap();
        assert_equal(&kustomized, &["--set", &format!("platform={platform}")]);
    }
}

#[test]
fn schema_and_values_name_every_platform() {
    let read = |file: &str| fs::read_to_string(deploy("helm/calico-cni").join(file)).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let names = platforms().unwrap();
    let expected: Vec<&str> = [""]
        .into_iter()
        .chain(names.iter().map(String::as_str))
        .collect();
    assert_eq!(schema["properties"]["platform"]["enum"], json!(expected));
    let values = read("values.yaml");
    let (comment, _) = values.split_once("\nplatform: ").unwrap();
    for name in &names {
        assert!(
            comment.contains(name.as_str()),
            "values.yaml does not name {name}"
        );
    }
}

#[test]
fn directory_values_take_precedence_over_the_platform() {
    if !can_render() {
        return;
    }
    let objects = set(&[
        "platform=microk8s",
        "cni.confDir=/etc/cni/net.d",
        "cni.privileged=true",
    ]);
    let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
    let paths: Vec<&Value> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| &volume["hostPath"]["path"])
        .collect();
    assert_eq!(
        paths[..2],
        ["/var/snap/microk8s/current/opt/cni/bin", "/etc/cni/net.d"]
    );
    for container in containers(&objects[DAEMON_SET]) {
        let env = container["env"].as_array().unwrap();
        let named: Vec<_> = env
            .iter()
            .filter(|variable| variable["name"] == "CNI_NET_DIR")
            .collect();
        assert_eq!(
            named,
            [&json!({ "name": "CNI_NET_DIR", "value": "/etc/cni/net.d" })]
        );
        assert_eq!(container["securityContext"]["privileged"], true);
    }
}
