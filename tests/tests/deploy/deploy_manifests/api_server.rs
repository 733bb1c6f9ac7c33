//! A real API server accepts every rendering in a dry run with strict validation, and stores a real
//! installation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use integration_tests::etcd::Etcd;
use integration_tests::kubernetes::{
    ApiServer, Kubernetes, is_oldest_installed, oldest_version, on_shared_kubernetes,
};
use integration_tests::manifests::{Objects, compose, deploy, parse, stored, write_list};
use integration_tests::namespaces::{Host, isolated};
use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::{COMPONENTS, OVERLAYS, can_render, is_for_prometheus, overlay};

/// Writes objects as a manifest for kubectl, without kinds that this server does not define.
pub(super) fn manifest(directory: &Path, objects: &Objects) -> String {
    let known = objects.iter().filter(|(name, _)| !is_for_prometheus(name));
    write_list(directory, known.map(|(_, object)| object)).unwrap()
}

pub(super) fn dry_run(api: &ApiServer, file: &str) -> anyhow::Result<String> {
    api.kubectl(&[
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        file,
    ])
}

/// The objects that the server has accepted in a dry run. Most objects are the same in many
/// renderings, so each is sent once.
#[derive(Default)]
pub(super) struct Accepted(BTreeSet<String>);

impl Accepted {
    /// Expects that the server accepts each object of a rendering, except those of kinds that it
    /// does not define.
    pub(super) fn assert(&mut self, api: &ApiServer, rendering: &str, objects: &Objects) {
        for (name, object) in objects.iter().filter(|(name, _)| !is_for_prometheus(name)) {
            if self.0.insert(object.to_string()) {
                api.admin()
                    .dry_run(object)
                    .unwrap_or_else(|error| panic!("{rendering}: {name}: {error:#}"));
            }
        }
    }
}

#[test]
fn server_dry_run_accepts_every_rendering() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, servers| {
        assert_every_rendering_is_accepted(host, &servers.api);
    });
}

fn assert_every_rendering_is_accepted(host: &Host, api: &ApiServer) {
    let directory = host.dir("manifests");
    let mut accepted = Accepted::default();
    for name in OVERLAYS {
        let objects = overlay(name);
        let said = dry_run(api, &manifest(&directory, &objects)).unwrap();
        assert_eq!(said.lines().count(), objects.len(), "{name}: {said}");
        for component in COMPONENTS {
            let objects = compose(&directory, &[name], &[component]).unwrap();
            accepted.assert(api, &format!("{name} with {component}"), &objects);
        }
    }
    let all = compose(&directory, &[OVERLAYS[0]], &COMPONENTS).unwrap();
    dry_run(api, &manifest(&directory, &all)).unwrap();
}

/// The server also evaluates the policies. The documents promise this version.
#[test]
fn oldest_supported_kubernetes_accepts_all_manifests() {
    if !can_render() || !is_oldest_installed() {
        return;
    }
    isolated(|host| {
        let _etcd = Etcd::start(host).unwrap();
        let api = &ApiServer::start_oldest(host).unwrap();
        let version = api.admin().get("/version").unwrap().success();
        assert_eq!(version["gitVersion"], oldest_version().unwrap());
        assert_every_rendering_is_accepted(host, api);
        let all = compose(&host.dir("manifests"), &[OVERLAYS[0]], &COMPONENTS).unwrap();
        let file = manifest(&host.dir("manifests"), &all);
        api.kubectl(&["apply", "--server-side", "--validate=strict", "-f", &file])
            .unwrap();
        api.define_for_migration().unwrap();
        for file in [
            "examples",
            "uninstall/uninstall.yaml",
            "adopt/rbac.yaml",
            "adopt/adopt.yaml",
        ] {
            dry_run(api, &deploy(file).display().to_string()).unwrap();
        }
        let (_, tokens) = api.restrict_nodes(&["node1"]).unwrap();
        for group in [ApiGroup::CrdV1, ApiGroup::V3] {
            api.await_node_restriction(group, &tokens["node1"]).unwrap();
        }
    });
}

/// Covers the patches in the comment of the manifest.
#[test]
fn uninstall_manifest_is_accepted_and_its_patches_apply() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        let file = deploy("uninstall/uninstall.yaml");
        let text = fs::read_to_string(&file).unwrap();
        let file = file.display().to_string();
        assert_eq!(
            dry_run(api, &file).unwrap().lines().count(),
            parse(&text).unwrap().len()
        );
        api.kubectl(&["apply", "-f", &file]).unwrap();
        let name = ["-n", "kube-system", "daemonset", "calico-uninstall"];
        let container = || {
            let stored = api
                .kubectl(&["get", name[0], name[1], name[2], name[3], "-o", "json"])
                .unwrap();
            let stored: Value = serde_json::from_str(&stored).unwrap();
            stored["spec"]["template"]["spec"]["initContainers"][0].clone()
        };
        assert_eq!(
            container()["args"],
            json!(["uninstall"]),
            "by itself it does nothing"
        );
        let head: String = text
            .lines()
            .map_while(|line| line.strip_prefix('#'))
            .collect();
        let [_, acts, _, tears_down, _] = head.split('\'').collect::<Vec<_>>().try_into().unwrap();
        let patched = |patch: &str| {
            api.kubectl(&[
                "patch",
                name[0],
                name[1],
                name[2],
                name[3],
                "--type=json",
                "--patch",
                patch,
            ])
            .unwrap();
            container()
        };
        assert_eq!(patched(acts)["args"], json!(["uninstall", "--yes"]));
        let container = patched(tears_down);
        assert_eq!(
            container["args"],
            json!([
                "uninstall",
                "--yes",
                "--tear-down-pods",
                "--release-addresses"
            ])
        );
        assert_eq!(
            container["securityContext"]["capabilities"],
            json!({ "add": ["NET_ADMIN"], "drop": ["ALL"] })
        );
        api.kubectl(&["delete", "-f", &file]).unwrap();
    });
}

#[test]
fn adopt_manifests_are_accepted() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        for name in ["adopt/rbac.yaml", "adopt/adopt.yaml"] {
            let file = deploy(name);
            let objects = parse(&fs::read_to_string(&file).unwrap()).unwrap();
            assert_eq!(
                dry_run(api, &file.display().to_string())
                    .unwrap()
                    .lines()
                    .count(),
                objects.len(),
                "{name}"
            );
        }
    });
}

/// Applies the manifest for an uninstallation and then a patch. Returns the stored pod template.
fn patched_uninstallation(api: &ApiServer, patch: &str) -> Value {
    api.kubectl(&[
        "apply",
        "-f",
        &deploy("uninstall/uninstall.yaml").display().to_string(),
    ])
    .unwrap();
    let file = deploy("uninstall").join(patch).display().to_string();
    let text = fs::read_to_string(&file).unwrap();
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix("#   kubectl "))
        .unwrap();
    let named = format!("deploy/uninstall/{patch}");
    let words: Vec<&str> = command
        .split_whitespace()
        .map(|word| if word == named { file.as_str() } else { word })
        .collect();
    api.kubectl(&words).unwrap();
    let stored = api
        .kubectl(&[
            "get",
            "-n",
            "kube-system",
            "daemonset",
            "calico-uninstall",
            "-o",
            "json",
        ])
        .unwrap();
    let mut stored: Value = serde_json::from_str(&stored).unwrap();
    stored["spec"]["template"]["spec"].take()
}

#[test]
fn uninstall_manifest_can_be_patched_to_privileged() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        let pod = patched_uninstallation(api, "privileged.yaml");
        let context = &pod["initContainers"][0]["securityContext"];
        assert_eq!(
            (&context["privileged"], context.get("capabilities")),
            (&Value::Bool(true), None),
            "{context}"
        );
        assert_eq!(context["runAsUser"], 0);
        assert_eq!(
            pod["containers"][0]["securityContext"].get("privileged"),
            None,
            "what waits needs no rights"
        );
    });
}

#[test]
fn uninstall_manifest_can_be_patched_for_owners_and_selinux() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        let pod = patched_uninstallation(api, "dac-override.yaml");
        let context = &pod["initContainers"][0]["securityContext"];
        assert_eq!(
            context["capabilities"],
            json!({ "add": ["DAC_OVERRIDE"], "drop": ["ALL"] })
        );
        let pod = patched_uninstallation(api, "selinux.yaml");
        let context = &pod["initContainers"][0]["securityContext"];
        assert_eq!(context["seLinuxOptions"], json!({ "type": "spc_t" }));
        assert_eq!(context.get("privileged"), None, "{context}");
    });
}

#[test]
fn server_dry_run_refuses_invalid_fields() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("manifests");
        for (place, wrong, said) in [
            (
                "/spec/template/spec/initConteiners",
                serde_json::json!([]),
                "unknown field",
            ),
            (
                "/spec/template/spec/hostNetwork",
                serde_json::json!("yes"),
                "hostNetwork",
            ),
            (
                "/spec/updateStrategy/type",
                serde_json::json!("Sometimes"),
                "Unsupported value",
            ),
        ] {
            let mut daemon_set = overlay(OVERLAYS[0])[super::DAEMON_SET].clone();
            let (parent, field) = place.rsplit_once('/').unwrap();
            daemon_set.pointer_mut(parent).unwrap()[field] = wrong;
            let objects = Objects::from([(super::DAEMON_SET.to_owned(), daemon_set)]);
            let error = dry_run(api, &manifest(&directory, &objects))
                .unwrap_err()
                .to_string();
            assert!(error.contains(said), "{place}: {error}");
        }
    });
}

/// The chart refuses a surge while it renders. With kustomize the server does, because the
/// manifests have a `maxUnavailable`.
#[test]
fn server_refuses_a_surge_that_is_patched_into_the_daemon_set() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("manifests");
        for surge in [json!(1), json!("10%")] {
            for name in OVERLAYS {
                let mut daemon_set = overlay(name)[super::DAEMON_SET].clone();
                daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] = surge.clone();
                let objects = Objects::from([(super::DAEMON_SET.to_owned(), daemon_set)]);
                let error = dry_run(api, &manifest(&directory, &objects))
                    .unwrap_err()
                    .to_string();
                assert!(
                    error.contains("maxSurge") && error.contains("when maxUnavailable is non-zero"),
                    "{error}"
                );
            }
        }
    });
}

#[test]
fn installation_is_stored_completely_and_a_second_apply_changes_nothing() {
    if !can_render() {
        return;
    }
    on_shared_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("manifests");
        let install = deploy("install.yaml").display().to_string();
        let apply = || {
            api.kubectl(&[
                "apply",
                "--server-side",
                "--validate=strict",
                "-f",
                &install,
            ])
            .unwrap()
        };
        assert!(
            apply()
                .lines()
                .all(|line| line.ends_with("serverside-applied"))
        );
        let first = stored(api, &install).unwrap();
        for (name, sent) in &overlay(OVERLAYS[0]) {
            let kept = first
                .get(name)
                .unwrap_or_else(|| panic!("{name} is not there"));
            assert!(holds(kept, sent), "{name} lost something: {kept}");
        }
        apply();
        let versions = |objects: &Objects| -> Vec<Value> {
            objects
                .values()
                .map(|object| object["metadata"]["generation"].clone())
                .collect()
        };
        assert_eq!(versions(&stored(api, &install).unwrap()), versions(&first));

        for group in ["crd.projectcalico.org/v1", "projectcalico.org/v3"] {
            api.define(group).unwrap();
            for kind in ["IPPool", "KubeControllersConfiguration"] {
                api.await_schema(group, kind).unwrap();
            }
        }
        for example in fs::read_dir(deploy("examples")).unwrap() {
            let text = fs::read_to_string(example.unwrap().path()).unwrap();
            dry_run(api, &manifest(&directory, &parse(&text).unwrap())).unwrap();
            if text.contains("crd.projectcalico.org/v1") {
                let text = text.replace("crd.projectcalico.org/v1", "projectcalico.org/v3");
                dry_run(api, &manifest(&directory, &parse(&text).unwrap())).unwrap();
            }
        }
    });
}

/// Returns true if `kept` contains everything in `sent`.
fn holds(kept: &Value, sent: &Value) -> bool {
    match (kept, sent) {
        (Value::Object(kept), Value::Object(sent)) => {
            // The server does not store `preserveUnknownFields: false`, which is the default.
            let default =
                |key: &str, value: &Value| key == "preserveUnknownFields" && *value == false;
            sent.iter().all(|(key, value)| {
                default(key, value) || kept.get(key).is_some_and(|kept| holds(kept, value))
            })
        }
        (Value::Array(kept), Value::Array(sent)) => {
            kept.len() == sent.len() && kept.iter().zip(sent).all(|(kept, sent)| holds(kept, sent))
        }
        _ => kept == sent,
    }
}
