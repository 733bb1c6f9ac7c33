//! Upstream's own manifest with our images, or with our DaemonSet: no other field changes, the API
//! server accepts the result, and applying upstream's manifest again restores upstream. So does the
//! operator with its DaemonSet.
//!
//! The manifests `upstream-v3.*.yaml` in this folder contain the parts about CNI, IPAM and
//! kube-controllers of upstream's generated manifests, with their defects (INST-2).

use std::fs;
use std::path::Path;

use anyhow::Result;
use integration_tests::command::run;
use integration_tests::controllers::merge;
use integration_tests::kubernetes::{ApiServer, Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{Objects, changes, deploy, kustomize, parse, stored};
use serde_json::{Value, json};

use super::api_server::manifest;
use super::can_render;
use super::references::missing;

const NODE: &str = "DaemonSet.apps kube-system/calico-node";
const CONTROLLERS: &str = super::DEPLOYMENT;

fn upstream(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/deploy/deploy_manifests")
        .join(name);
    fs::read_to_string(file).unwrap()
}

/// Renders an overlay as an operator does: with upstream's manifest beside the kustomization of
/// beside-upstream.
fn swapped(overlay: &str, upstream: &str) -> Objects {
    render_swapped(overlay, upstream, "").unwrap()
}

pub(super) fn render_swapped(overlay: &str, upstream: &str, line: &str) -> Result<Objects> {
    let directory = tempfile::tempdir()?;
    let from = deploy("").display().to_string();
    let into = directory.path().join("deploy");
    run(
        "cp",
        &[
            "--recursive",
            from.trim_end_matches('/'),
            &into.display().to_string(),
        ],
    )?;
    fs::write(into.join("overlays/beside-upstream/calico.yaml"), upstream)?;
    let kustomization = into
        .join("overlays")
        .join(overlay)
        .join("kustomization.yaml");
    let text = fs::read_to_string(&kustomization)? + line;
    fs::write(&kustomization, text)?;
    kustomize(&into.join("overlays").join(overlay))
}

fn sorted(mut changed: Vec<String>) -> Vec<String> {
    changed.sort();
    changed
}

/// Returns the names and texts of upstream's manifests with several registries, and of a manifest
/// for Canal.
pub(super) fn upstreams() -> Vec<(String, String)> {
    let (separate, one) = (
        upstream("upstream-v3.32.yaml"),
        upstream("upstream-v3.33.yaml"),
    );
    let mut manifests = Vec::new();
    for registry in [
        "quay.io/calico",
        "docker.io/calico",
        "calico",
        "harbor.example.com:8443/mirror/calico",
    ] {
        for (name, text) in [("v3.32", &separate), ("v3.33", &one)] {
            manifests.push((
                format!("{name} of {registry}"),
                text.replace("quay.io/calico", registry),
            ));
        }
    }
    // Canal's manifests have no upgrade-ipam (INST-78).
    let mut canal = parse(&separate).unwrap();
    let mut daemon_set = canal.remove(NODE).unwrap();
    daemon_set["metadata"]["name"] = json!("canal");
    daemon_set["spec"]["template"]["spec"]["initContainers"]
        .as_array_mut()
        .unwrap()
        .remove(0);
    let objects: Vec<String> = canal
        .values()
        .chain([&daemon_set])
        .map(Value::to_string)
        .collect();
    manifests.push(("canal".to_owned(), objects.join("\n---\n")));
    manifests
}

/// From v3.33 on, upstream has a single image with all programs, which calico-node keeps.
#[test]
fn overlay_beside_upstream_replaces_only_two_images() {
    if !can_render() {
        return;
    }
    let tag = env!("CARGO_PKG_VERSION");
    for (name, text) in upstreams() {
        let before = parse(&text).unwrap();
        let after = swapped("beside-upstream", &text);
        let node = after
            .keys()
            .find(|name| name.starts_with("DaemonSet"))
            .unwrap();
        let first = after[node]["spec"]["template"]["spec"]["initContainers"]
            .as_array()
            .unwrap();
        let install = first
            .iter()
            .position(|container| container["name"] == "install-cni")
            .unwrap();
        let expected = [
            format!("{node}/spec/template/spec/initContainers/{install}/image"),
            format!("{CONTROLLERS}/spec/template/spec/containers/0/image"),
        ];
        assert_eq!(
            sorted(changes(&before, &after)),
            sorted(expected.into()),
            "{name}"
        );
        assert_eq!(
            first[install]["image"],
            format!("registry.example.com/calico/cni:v{tag}"),
            "{name}"
        );
        assert_eq!(
            after[CONTROLLERS]["spec"]["template"]["spec"]["containers"][0]["image"],
            format!("registry.example.com/calico/kube-controllers:v{tag}"),
            "{name}"
        );
    }
}

/// Without install-cni, upstream's plugins would not be replaced.
#[test]
fn manifest_without_install_cni_is_refused() {
    if !can_render() {
        return;
    }
    let text = upstream("upstream-v3.32.yaml").replace("name: install-cni", "name: install");
    let error = render_swapped("beside-upstream", &text, "")
        .unwrap_err()
        .to_string();
    assert!(error.contains("install-cni"), "{error}");
}

/// Upstream mounts the node's `/var/lib/calico` only into calico-node, so install-cni's state is
/// lost with its container.
#[test]
fn component_keep_state_mounts_the_state_directory() {
    if !can_render() {
        return;
    }
    for file in ["upstream-v3.32.yaml", "upstream-v3.33.yaml"] {
        let without = swapped("beside-upstream", &upstream(file));
        let with = render_swapped(
            "beside-upstream",
            &upstream(file),
            "components: [../../components/keep-state]\n",
        )
        .unwrap();
        let mounts = format!("{NODE}/spec/template/spec/initContainers/1/volumeMounts");
        assert_eq!(changes(&without, &with), [mounts], "{file}");
        let noted = |objects: &Objects| -> Vec<Value> {
            let install = &objects[NODE]["spec"]["template"]["spec"]["initContainers"][1];
            let mounts = install["volumeMounts"].as_array().unwrap().iter();
            mounts
                .filter(|mount| mount["mountPath"] == "/var/lib/calico")
                .cloned()
                .collect()
        };
        assert_eq!(noted(&without), Vec::<Value>::new(), "{file}");
        let name = json!({ "name": "var-lib-calico", "mountPath": "/var/lib/calico" });
        assert_eq!(noted(&with), [name], "{file}");
        let volumes = without[NODE]["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .unwrap();
        assert!(
            volumes
                .iter()
                .any(|volume| volume["name"] == "var-lib-calico"),
            "{file}"
        );
    }
}

#[test]
fn daemon_set_beside_calico_node_leaves_the_rest_of_upstream() {
    if !can_render() {
        return;
    }
    for file in ["upstream-v3.32.yaml", "upstream-v3.33.yaml"] {
        let text = upstream(file).replace("calico_backend: bird", "calico_backend: vxlan");
        let text = text.replace(
            "typha_service_name: none",
            "typha_service_name: calico-typha",
        );
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
        assert_eq!(
            sorted(changes(&before, &after)),
            sorted(expected.into()),
            "{file}"
        );
        let node = &after[NODE]["spec"]["template"]["spec"];
        assert_eq!(
            node["containers"][0]["env"],
            json!([{ "name": "CALICO_MANAGE_CNI", "value": "false" }])
        );
        let mut init = before[NODE]["spec"]["template"]["spec"]["initContainers"]
            .as_array()
            .unwrap()
            .clone();
        init.retain(|container| container["name"] != "install-cni");
        assert_eq!(node["initContainers"], Value::from(init), "{file}");
        assert_eq!(missing(&after), Vec::<String>::new(), "{file}");
    }
}

/// These manifests have settings and accounts that our DaemonSet lacks.
#[test]
fn daemon_set_beside_etcd_canal_or_policy_only_is_refused() {
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
        assert!(
            render_swapped("beside-calico-node", &text.replace(here, there), "").is_err(),
            "{what}"
        );
    }
}

#[test]
fn applying_upstreams_manifest_again_restores_upstream() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
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
                api.kubectl(&[&["apply", "--validate=strict", "-f", &file], options].concat())
                    .unwrap();
                let stored = stored(api, &file).unwrap();
                assert_eq!(stored.len(), objects.len(), "{overlay}: {file}");
                stored
            };
            let by_server = ["--server-side", "--force-conflicts"];
            let first = apply(&before, &[]);
            let ours = apply(&after, &by_server);
            let started = |objects: &Objects| -> Vec<(Value, Value)> {
                let first = objects[NODE]["spec"]["template"]["spec"]["initContainers"]
                    .as_array()
                    .unwrap()
                    .iter();
                first
                    .map(|container| (container["name"].clone(), container["image"].clone()))
                    .collect()
            };
            assert_eq!(started(&ours), started(&after), "{overlay}: {file}");
            assert_eq!(
                decided(apply(&before, &by_server)),
                decided(first),
                "{overlay}: {file}"
            );
            api.kubectl(&["delete", "-f", &manifest(&directory, &after)])
                .unwrap();
        }
    });
}

fn decided(objects: Objects) -> Vec<Value> {
    let decided = |mut object: Value| {
        object.as_object_mut().unwrap().remove("status");
        object["metadata"].take();
        object
    };
    objects.into_values().map(decided).collect()
}

/// URL path of the operator's DaemonSet.
const OPERATORS_NODE: &str = "/apis/apps/v1/namespaces/calico-system/daemonsets/calico-node";

/// Writes a DaemonSet as the operator does after each change of its specification: the rendered
/// object replaces the present one, and additional labels and annotations stay. Returns the stored
/// object.
fn operator_writes(api: &ApiServer, rendered: &Value) -> Value {
    let present = api.admin().get(OPERATORS_NODE).unwrap();
    if present.code == 404 {
        let (collection, _) = OPERATORS_NODE.rsplit_once('/').unwrap();
        return api.admin().create(collection, rendered).unwrap().success();
    }
    let mut written = present.success();
    for place in ["", "/spec/template"] {
        for texts in ["labels", "annotations"] {
            let place = format!("{place}/metadata/{texts}");
            let (Some(rendered), Some(kept)) =
                (rendered.pointer(&place), written.pointer_mut(&place))
            else {
                continue;
            };
            merge(kept, rendered);
        }
    }
    let metadata = written["spec"]["template"]["metadata"].take();
    written["spec"] = rendered["spec"].clone();
    written["spec"]["template"]["metadata"] = metadata;
    api.admin()
        .replace(OPERATORS_NODE, &written)
        .unwrap()
        .success()
}

/// A new generation of the specification replaces the pods on the nodes, so each revert runs
/// upstream's installer once.
#[test]
fn operator_that_reverts_its_daemon_set_restores_upstreams_installer() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        api.namespace("calico-system").unwrap();
        let objects = parse(&upstream("upstream-operator-1.42.yaml")).unwrap();
        let rendered = &objects["DaemonSet.apps calico-system/calico-node"];
        let first = operator_writes(api, rendered);
        let install =
            json!({ "name": "install-cni", "image": "registry.example.com/calico/cni:v1" });
        let env = json!([{ "name": "CALICO_MANAGE_CNI", "value": "false" }]);
        for (what, pod) in [
            ("our image", json!({ "initContainers": [install] })),
            (
                "no installer",
                json!({ "initContainers": [{ "name": "install-cni", "$patch": "delete" }] }),
            ),
            (
                "no renewal of the token",
                json!({ "containers": [{ "name": "calico-node", "env": env }] }),
            ),
        ] {
            let generation = |object: &Value| object["metadata"]["generation"].as_i64().unwrap();
            let present = generation(&api.admin().get(OPERATORS_NODE).unwrap().success());
            let patch = json!({ "spec": { "template": { "spec": pod } } }).to_string();
            api.kubectl(&[
                "-n",
                "calico-system",
                "patch",
                "daemonset",
                "calico-node",
                "--patch",
                &patch,
            ])
            .unwrap();
            let changed = api.admin().get(OPERATORS_NODE).unwrap().success();
            assert_ne!(changed["spec"], first["spec"], "{what}");
            let reverted = operator_writes(api, rendered);
            assert_eq!(reverted["spec"], first["spec"], "{what}");
            assert_eq!(
                (generation(&changed), generation(&reverted)),
                (present + 1, present + 2),
                "{what}"
            );
            let same = operator_writes(api, rendered);
            assert_eq!(
                generation(&same),
                generation(&reverted),
                "{what}: a further write starts no pod"
            );
        }
        let installer = &first["spec"]["template"]["spec"]["initContainers"][0];
        assert_eq!(installer["name"], "install-cni");
        assert_eq!(installer["image"], "harbor.example.com/mirror/cni:v3.32.1");
    });
}
