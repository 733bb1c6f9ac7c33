//! Upstream's own manifest with our images in it: nothing else is changed, the API server takes it, and upstream's manifest
//! applied again is the way back.
//!
//! The two manifests here have what upstream's generated ones are known to have (INST-64, INST-76..85, INST-2), for the parts
//! that are about CNI, IPAM and kube-controllers.

use std::fs;
use std::path::Path;

use integration_tests::kubernetes::{Kubernetes, with_kubernetes};
use integration_tests::manifests::{Objects, changes, deploy, kustomize, parse};
use serde_json::{Value, json};

use super::api_server::{manifest, stored};
use super::can_render;

const NODE: &str = "DaemonSet.apps kube-system/calico-node";
const CONTROLLERS: &str = super::DEPLOYMENT;

fn upstream(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy_manifests").join(name);
    fs::read_to_string(file).unwrap()
}

/// The overlay, as a person uses it: with upstream's manifest put beside its kustomization.
fn swapped(overlay: &str, upstream: &str) -> Objects {
    swapped_with(overlay, upstream, None)
}

/// The same with a component, as the overlay's last line.
fn swapped_with(overlay: &str, upstream: &str, component: Option<&str>) -> Objects {
    let directory = tempfile::tempdir().unwrap();
    copy(&deploy("overlays").join(overlay), directory.path());
    fs::write(directory.path().join("calico.yaml"), upstream).unwrap();
    if let Some(component) = component {
        copy(&deploy("components").join(component), &directory.path().join("component"));
        let kustomization = directory.path().join("kustomization.yaml");
        let text = fs::read_to_string(&kustomization).unwrap() + "components: [component]\n";
        fs::write(kustomization, text).unwrap();
    }
    kustomize(directory.path()).unwrap()
}

fn copy(from: &Path, into: &Path) {
    fs::create_dir_all(into).unwrap();
    for file in fs::read_dir(from).unwrap().map(|file| file.unwrap()) {
        fs::copy(file.path(), into.join(file.file_name())).unwrap();
    }
}

fn sorted(mut changed: Vec<String>) -> Vec<String> {
    changed.sort();
    changed
}

#[test]
fn up_to_v3_32_images_are_swapped_and_nothing_else() {
    if !can_render() {
        return;
    }
    let newest = upstream("upstream-v3.32.yaml");
    for registry in ["quay.io/calico", "docker.io/calico", "calico"] {
        let text = newest.replace("quay.io/calico", registry);
        let before = parse(&text).unwrap();
        let after = swapped("beside-upstream", &text);
        let pod = format!("{NODE}/spec/template/spec/initContainers");
        let expected = [
            format!("{NODE}/spec/template/spec/initContainers/0/image"),
            format!("{pod}/1/image"),
            format!("{CONTROLLERS}/spec/template/spec/containers/0/image"),
        ];
        assert_eq!(sorted(changes(&before, &after)), sorted(expected.into()), "{registry}");
        let first = &after[NODE]["spec"]["template"]["spec"]["initContainers"];
        let names: Vec<&str> = first.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["upgrade-ipam", "install-cni", "ebpf-bootstrap"]);
        let tag = env!("CARGO_PKG_VERSION");
        assert_eq!(first[1]["image"], format!("registry.example.com/calico/cni:v{tag}"));
        assert_eq!(
            after[CONTROLLERS]["spec"]["template"]["spec"]["containers"][0]["image"],
            format!("registry.example.com/calico/kube-controllers:v{tag}")
        );
    }
}

/// From v3.33 on one image has all of upstream's programs: calico-node keeps it.
#[test]
fn from_v3_33_two_containers_have_another_image() {
    if !can_render() {
        return;
    }
    let text = upstream("upstream-v3.33.yaml");
    let after = swapped("beside-upstream-v3.33", &text);
    let install = format!("{NODE}/spec/template/spec/initContainers/1");
    let expected = [
        format!("{install}/image"),
        format!("{install}/command"),
        format!("{CONTROLLERS}/spec/template/spec/containers/0/image"),
    ];
    assert_eq!(sorted(changes(&parse(&text).unwrap(), &after)), sorted(expected.into()));
    let containers = &after[NODE]["spec"]["template"]["spec"];
    assert_eq!(containers["initContainers"][1]["args"], serde_json::json!(["component", "cni", "install"]));
    assert_eq!(containers["containers"][0]["image"], "quay.io/calico/calico:v3.33.0");
}

/// Upstream mounts the node's `/var/lib/calico` into calico-node alone (INST-77, INST-79): what install-cni notes there ends
/// with its container, unless one more directory is asked for.
#[test]
fn what_is_put_on_a_node_is_noted_there_if_that_is_asked_for() {
    if !can_render() {
        return;
    }
    for (overlay, file) in
        [("beside-upstream", "upstream-v3.32.yaml"), ("beside-upstream-v3.33", "upstream-v3.33.yaml")]
    {
        let without = swapped(overlay, &upstream(file));
        let with = swapped_with(overlay, &upstream(file), Some("keep-state"));
        let mounts = format!("{NODE}/spec/template/spec/initContainers/1/volumeMounts");
        assert_eq!(changes(&without, &with), [mounts], "{overlay}");
        let noted = |objects: &Objects| -> Vec<Value> {
            let install = &objects[NODE]["spec"]["template"]["spec"]["initContainers"][1];
            let mounts = install["volumeMounts"].as_array().unwrap().iter();
            mounts.filter(|mount| mount["mountPath"] == "/var/lib/calico").cloned().collect()
        };
        assert_eq!(noted(&without), Vec::<Value>::new(), "{overlay}");
        let name = json!({ "name": "var-lib-calico", "mountPath": "/var/lib/calico" });
        assert_eq!(noted(&with), [name], "{overlay}");
        // The volume is there already.
        let volumes = without[NODE]["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["name"] == "var-lib-calico"), "{overlay}");
    }
}

/// There and back again: upstream's, ours in it, upstream's. The server keeps the same before and after.
#[test]
fn the_way_back_is_upstreams_manifest() {
    if !can_render() {
        return;
    }
    with_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("upstream");
        for (overlay, file) in
            [("beside-upstream", "upstream-v3.32.yaml"), ("beside-upstream-v3.33", "upstream-v3.33.yaml")]
        {
            let before = parse(&upstream(file)).unwrap();
            let after = swapped(overlay, &upstream(file));
            let apply = |objects: &Objects| {
                let file = manifest(&directory, objects);
                api.kubectl(&["apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", &file])
                    .unwrap();
                decided(stored(&api, &file))
            };
            let first = apply(&before);
            let ours = apply(&after);
            assert_ne!(first, ours, "{overlay}");
            assert_eq!(apply(&before), first, "{overlay}");
        }
    });
}

/// What of each object a person decides.
fn decided(objects: Objects) -> Vec<Value> {
    let decided = |mut object: Value| {
        object.as_object_mut().unwrap().remove("status");
        object["metadata"].take();
        object
    };
    objects.into_values().map(decided).collect()
}
