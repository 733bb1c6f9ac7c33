//! Upstream's own manifest with our images in it: nothing else is changed, the API server takes it, and upstream's manifest
//! applied again is the way back.
//!
//! The two manifests here have what upstream's generated ones are known to have (INST-64, INST-76..85, INST-2), for the parts
//! that are about CNI, IPAM and kube-controllers.

use std::fs;
use std::path::Path;

use anyhow::Result;
use integration_tests::command::run;
use integration_tests::kubernetes::{Kubernetes, with_kubernetes};
use integration_tests::manifests::{Objects, changes, deploy, kustomize, parse};
use serde_json::{Value, json};

use super::api_server::{manifest, stored};
use super::can_render;
use super::references::missing;

const NODE: &str = "DaemonSet.apps kube-system/calico-node";
const CONTROLLERS: &str = super::DEPLOYMENT;

fn upstream(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy_manifests").join(name);
    fs::read_to_string(file).unwrap()
}

/// An overlay, as a person uses it: with upstream's manifest put beside the kustomization of beside-upstream.
fn swapped(overlay: &str, upstream: &str) -> Objects {
    render_swapped(overlay, upstream, "").unwrap()
}

/// The same with one more line in the overlay; or why it cannot be rendered.
fn render_swapped(overlay: &str, upstream: &str, line: &str) -> Result<Objects> {
    let directory = tempfile::tempdir()?;
    let from = deploy("").display().to_string();
    let into = directory.path().join("deploy");
    run("cp", &["--recursive", from.trim_end_matches('/'), &into.display().to_string()])?;
    fs::write(into.join("overlays/beside-upstream/calico.yaml"), upstream)?;
    let kustomization = into.join("overlays").join(overlay).join("kustomization.yaml");
    let text = fs::read_to_string(&kustomization)? + line;
    fs::write(&kustomization, text)?;
    kustomize(&into.join("overlays").join(overlay))
}

fn sorted(mut changed: Vec<String>) -> Vec<String> {
    changed.sort();
    changed
}

/// Each of upstream's manifests, by the registry that its images come from.
fn upstreams() -> Vec<(String, String)> {
    let (separate, one) = (upstream("upstream-v3.32.yaml"), upstream("upstream-v3.33.yaml"));
    let mut manifests = Vec::new();
    for registry in ["quay.io/calico", "docker.io/calico", "calico", "harbor.example.com:8443/mirror/calico"] {
        for (name, text) in [("v3.32", &separate), ("v3.33", &one)] {
            manifests.push((format!("{name} of {registry}"), text.replace("quay.io/calico", registry)));
        }
    }
    // Canal's DaemonSet has another name, and with it or with etcd there is no upgrade-ipam (INST-78, INST-93).
    let mut canal = parse(&separate).unwrap();
    let mut daemon_set = canal.remove(NODE).unwrap();
    daemon_set["metadata"]["name"] = json!("canal");
    daemon_set["spec"]["template"]["spec"]["initContainers"].as_array_mut().unwrap().remove(0);
    let objects: Vec<String> = canal.values().chain([&daemon_set]).map(Value::to_string).collect();
    manifests.push(("canal".to_owned(), objects.join("\n---\n")));
    manifests
}

/// Whoever the images come from, and also where one image has all of upstream's programs, which is so from v3.33 on: calico-node
/// and every other container keep theirs.
#[test]
fn the_images_of_two_containers_are_swapped_and_nothing_else() {
    if !can_render() {
        return;
    }
    let tag = env!("CARGO_PKG_VERSION");
    for (name, text) in upstreams() {
        let before = parse(&text).unwrap();
        let after = swapped("beside-upstream", &text);
        let node = after.keys().find(|name| name.starts_with("DaemonSet")).unwrap();
        let first = after[node]["spec"]["template"]["spec"]["initContainers"].as_array().unwrap();
        let install = first.iter().position(|container| container["name"] == "install-cni").unwrap();
        let expected = [
            format!("{node}/spec/template/spec/initContainers/{install}/image"),
            format!("{CONTROLLERS}/spec/template/spec/containers/0/image"),
        ];
        assert_eq!(sorted(changes(&before, &after)), sorted(expected.into()), "{name}");
        assert_eq!(first[install]["image"], format!("registry.example.com/calico/cni:v{tag}"), "{name}");
        assert_eq!(
            after[CONTROLLERS]["spec"]["template"]["spec"]["containers"][0]["image"],
            format!("registry.example.com/calico/kube-controllers:v{tag}"),
            "{name}"
        );
    }
}

/// A manifest without the containers is not taken for one in which they are swapped.
#[test]
fn a_manifest_without_install_cni_is_refused() {
    if !can_render() {
        return;
    }
    let text = upstream("upstream-v3.32.yaml").replace("name: install-cni", "name: install");
    let error = render_swapped("beside-upstream", &text, "").unwrap_err().to_string();
    assert!(error.contains("install-cni"), "{error}");
}

/// Upstream mounts the node's `/var/lib/calico` into calico-node alone (INST-77, INST-79): what install-cni notes there ends
/// with its container, unless one more directory is asked for.
#[test]
fn what_is_put_on_a_node_is_noted_there_if_that_is_asked_for() {
    if !can_render() {
        return;
    }
    for file in ["upstream-v3.32.yaml", "upstream-v3.33.yaml"] {
        let without = swapped("beside-upstream", &upstream(file));
        let with =
            render_swapped("beside-upstream", &upstream(file), "components: [../../components/keep-state]\n").unwrap();
        let mounts = format!("{NODE}/spec/template/spec/initContainers/1/volumeMounts");
        assert_eq!(changes(&without, &with), [mounts], "{file}");
        let noted = |objects: &Objects| -> Vec<Value> {
            let install = &objects[NODE]["spec"]["template"]["spec"]["initContainers"][1];
            let mounts = install["volumeMounts"].as_array().unwrap().iter();
            mounts.filter(|mount| mount["mountPath"] == "/var/lib/calico").cloned().collect()
        };
        assert_eq!(noted(&without), Vec::<Value>::new(), "{file}");
        let name = json!({ "name": "var-lib-calico", "mountPath": "/var/lib/calico" });
        assert_eq!(noted(&with), [name], "{file}");
        // The volume is there already.
        let volumes = without[NODE]["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["name"] == "var-lib-calico"), "{file}");
    }
}

/// Our DaemonSet in the place of the init container: one writes the files, one renews the token, and what upstream's manifest has is
/// as it was, its calico-config too.
#[test]
fn our_daemon_set_beside_calico_node_leaves_upstreams_objects() {
    if !can_render() {
        return;
    }
    for file in ["upstream-v3.32.yaml", "upstream-v3.33.yaml"] {
        let text = upstream(file).replace("calico_backend: bird", "calico_backend: vxlan");
        let text = text.replace("typha_service_name: none", "typha_service_name: calico-typha");
        let before = parse(&text).unwrap();
        let after = swapped("beside-calico-node", &text);
        let rbac = "rbac.authorization.k8s.io";
        let pod = format!("{NODE}/spec/template/spec");
        let expected = [
            super::DAEMON_SET.to_owned(),
            "ServiceAccount kube-system/calico-cni".to_owned(),
            format!("ClusterRole.{rbac} calico-cni"),
            format!("ClusterRoleBinding.{rbac} calico-cni"),
            format!("Role.{rbac} kube-system/calico-cni"),
            format!("RoleBinding.{rbac} kube-system/calico-cni"),
            format!("{CONTROLLERS}/spec/template/spec/containers/0/image"),
            format!("{pod}/containers/0/env"),
            format!("{pod}/initContainers"),
        ];
        assert_eq!(sorted(changes(&before, &after)), sorted(expected.into()), "{file}");
        let node = &after[NODE]["spec"]["template"]["spec"];
        assert_eq!(node["containers"][0]["env"], json!([{ "name": "CALICO_MANAGE_CNI", "value": "false" }]));
        let mut init = before[NODE]["spec"]["template"]["spec"]["initContainers"].as_array().unwrap().clone();
        init.retain(|container| container["name"] != "install-cni");
        assert_eq!(node["initContainers"], Value::from(init), "{file}");
        assert_eq!(missing(&after), Vec::<String>::new(), "{file}");
    }
}

/// What upstream has in other manifests than calico.yaml: our DaemonSet has neither its settings nor its accounts.
#[test]
fn our_daemon_set_is_not_rendered_beside_etcd_canal_and_policy_alone() {
    if !can_render() {
        return;
    }
    for (what, here, there) in [
        ("etcd", "DATASTORE_TYPE", "ETCD_ENDPOINTS"),
        ("canal", "name: calico-node\n", "name: canal\n"),
        ("policy alone", "veth_mtu:", "other:"),
    ] {
        let text = upstream("upstream-v3.32.yaml");
        assert!(text.contains(here), "{what}");
        assert!(render_swapped("beside-calico-node", &text.replace(here, there), "").is_err(), "{what}");
    }
}

/// There and back again: upstream's, applied as its own documents say, ours in it, upstream's. The server keeps what each says, and
/// the same before and after.
#[test]
fn the_way_back_is_upstreams_manifest() {
    if !can_render() {
        return;
    }
    with_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("upstream");
        for (overlay, file) in [
            ("beside-upstream", "upstream-v3.32.yaml"),
            ("beside-upstream", "upstream-v3.33.yaml"),
            ("beside-calico-node", "upstream-v3.33.yaml"),
        ] {
            let before = parse(&upstream(file)).unwrap();
            let after = swapped(overlay, &upstream(file));
            let apply = |objects: &Objects, options: &[&str]| {
                let file = manifest(&directory, objects);
                api.kubectl(&[&["apply", "--validate=strict", "-f", &file], options].concat()).unwrap();
                stored(&api, &file)
            };
            let by_server = ["--server-side", "--force-conflicts"];
            let first = apply(&before, &[]);
            let ours = apply(&after, &by_server);
            let started = |objects: &Objects| -> Vec<(Value, Value)> {
                let first = objects[NODE]["spec"]["template"]["spec"]["initContainers"].as_array().unwrap().iter();
                first.map(|container| (container["name"].clone(), container["image"].clone())).collect()
            };
            assert_eq!(started(&ours), started(&after), "{overlay}: {file}");
            assert_eq!(decided(apply(&before, &by_server)), decided(first), "{overlay}: {file}");
            api.kubectl(&["delete", "-f", &manifest(&directory, &after)]).unwrap();
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
