//! The component and the page of each platform, and the resolver of pods on the host's network.

use std::fs;

use integration_tests::kubernetes::{Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{
    Objects, changes, compose, containers, deploy, platforms, settings_on_page,
};
use serde_json::{Value, json};

use super::api_server::Accepted;
use super::endpoint::with_api_server;
use super::{DAEMON_SET, DEPLOYMENT, OVERLAYS, can_render, overlay};

/// Returns a rendering of an overlay with the component of a platform.
pub(super) fn composed(platform: &str, base: &str) -> Objects {
    let directory = tempfile::tempdir().unwrap();
    compose(
        directory.path(),
        &[base],
        &[&format!("components/platforms/{platform}")],
    )
    .unwrap()
}

/// Returns the text of a page in docs/platforms.
pub(super) fn page(name: &str) -> String {
    fs::read_to_string(deploy("../docs/platforms").join(name)).unwrap()
}

/// Returns the line about a subject that all platforms have in common.
fn everywhere(subject: &str) -> String {
    let index = page("README.md");
    let (_, common) = index.split_once("## Everywhere").unwrap();
    let line = common
        .lines()
        .find(|line| line.starts_with(&format!("- **{subject}**")));
    line.expect(subject).to_owned()
}

/// Returns the rights of a container as the table of platforms names them.
fn rights(container: &Value) -> &'static str {
    let context = &container["securityContext"];
    if context["privileged"] == true {
        assert_eq!(context.get("capabilities"), None, "{context}");
        return "privileged";
    }
    assert_eq!(context["allowPrivilegeEscalation"], false, "{context}");
    let capabilities = &context["capabilities"];
    if *capabilities == json!({ "drop": ["ALL"] }) {
        return "none";
    }
    assert_eq!(
        *capabilities,
        json!({ "add": ["DAC_OVERRIDE"], "drop": ["ALL"] })
    );
    "`DAC_OVERRIDE`"
}

fn path_of<'o>(objects: &'o Objects, volume: &str) -> &'o str {
    let volumes = objects[DAEMON_SET]["spec"]["template"]["spec"]["volumes"]
        .as_array()
        .unwrap();
    let found = volumes
        .iter()
        .find(|found| found["name"] == volume)
        .unwrap();
    assert!(
        matches!(
            found["hostPath"]["type"].as_str(),
            Some("DirectoryOrCreate")
        ),
        "{found}"
    );
    found["hostPath"]["path"].as_str().unwrap()
}

#[test]
fn component_of_each_platform_changes_only_directories_and_rights() {
    if !can_render() {
        return;
    }
    for base in OVERLAYS {
        let before = overlay(base);
        for platform in platforms().unwrap() {
            let objects = composed(&platform, base);
            let pod = format!("{DAEMON_SET}/spec/template/spec");
            let places = [
                "volumes",
                "containers/0/env",
                "initContainers/0/env",
                "containers/0/securityContext",
                "initContainers/0/securityContext",
            ];
            for change in changes(&before, &objects) {
                let is_expected = places
                    .iter()
                    .any(|place| change.starts_with(&format!("{pod}/{place}")));
                assert!(is_expected, "{platform}, {base}: {change}");
            }
            for (variable, volume) in [
                ("CNI_BIN_DIR", "cni-bin-dir"),
                ("CNI_NET_DIR", "cni-net-dir"),
            ] {
                let path = path_of(&objects, volume);
                for container in containers(&objects[DAEMON_SET]) {
                    let env = container["env"].as_array().unwrap();
                    let named = env.iter().find(|known| known["name"] == variable).unwrap();
                    assert_eq!(named["value"], path, "{platform}");
                }
            }
            for unchanged in ["var-lib-calico", "var-run-calico", "cni-log-dir"] {
                assert_eq!(
                    path_of(&objects, unchanged),
                    path_of(&before, unchanged),
                    "{platform}"
                );
            }
        }
    }
}

/// Also with the component `api-server` of the platforms that have one.
#[test]
fn server_accepts_the_components_of_each_platform() {
    if !can_render() {
        return;
    }
    let rendered = platforms().unwrap().into_iter().map(|platform| {
        let objects = composed(&platform, OVERLAYS[0]);
        (platform, objects)
    });
    let rendered: Vec<_> = rendered.chain(with_api_server(OVERLAYS[0])).collect();
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        let mut accepted = Accepted::default();
        for (platform, objects) in &rendered {
            accepted.assert(api, platform, objects);
        }
    });
}

#[test]
fn each_platform_has_a_page_with_its_directories_and_sources() {
    if !can_render() {
        return;
    }
    for platform in platforms().unwrap() {
        let (objects, page) = (
            composed(&platform, OVERLAYS[0]),
            page(&format!("{platform}.md")),
        );
        for part in [
            format!("`--set platform={platform}`"),
            format!("`components/platforms/{platform}`"),
            "[Source](https://".to_owned(),
        ] {
            assert!(page.contains(&part), "{platform}: the page lacks {part}");
        }
        let [programs, configuration, ..] = settings_on_page(&platform).unwrap();
        for (cell, volume) in [(programs, "cni-bin-dir"), (configuration, "cni-net-dir")] {
            let directory = format!("[`{}`](https://", path_of(&objects, volume));
            assert!(cell.starts_with(&directory), "{platform}: {cell}");
        }
    }
}

/// Settings that all platforms have in common have their source in the section `Everywhere`.
#[test]
fn table_of_platforms_has_a_source_for_each_setting() {
    for setting in ["DNS", "Rights"] {
        let line = everywhere(setting);
        assert!(line.contains("[Source](https://"), "{line}");
    }
    let mut pages = vec![page("README.md")];
    for platform in platforms().unwrap() {
        for cell in settings_on_page(&platform).unwrap() {
            let has_source = cell.starts_with('[') && cell.contains("](https://");
            assert!(has_source || cell == "none", "{platform}: {cell}");
        }
        pages.push(page(&format!("{platform}.md")));
    }
    // A link to a commit still shows what the page says after the file changes.
    for branch in ["HEAD", "main", "master"] {
        let branch = format!("/blob/{branch}/");
        let found = pages.iter().find(|page| page.contains(&branch));
        assert!(found.is_none(), "a source at {branch}: {found:?}");
    }
}

#[test]
fn pages_of_platforms_name_the_rendered_resolver_api_server_and_rights() {
    if !can_render() {
        return;
    }
    let dns = everywhere("DNS");
    let mut more_rights = Vec::new();
    for platform in platforms().unwrap() {
        let objects = composed(&platform, OVERLAYS[0]);
        let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
        let resolver = pod["dnsPolicy"].as_str().unwrap();
        assert!(
            dns.contains(&format!("`dnsPolicy: {resolver}`, the node's resolver")),
            "{platform}: {dns}"
        );
        let [.., in_table] = settings_on_page(&platform).unwrap();
        for container in containers(&objects[DAEMON_SET]) {
            let right = rights(container);
            assert!(
                in_table == right || in_table.starts_with(&format!("[{right}](")),
                "{platform}: {in_table}"
            );
            more_rights.extend((right != "none").then(|| format!("{platform} {right}")));
        }
        // The component api-server is not in use: the address comes from Kubernetes, or from the
        // optional ConfigMap.
        for workload in [DAEMON_SET, DEPLOYMENT] {
            for container in containers(&objects[workload]) {
                let from: Vec<&Value> = container["envFrom"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .collect();
                let optional = json!({
                    "configMapRef": { "name": "kubernetes-services-endpoint", "optional": true }
                });
                assert!(
                    from.contains(&&optional),
                    "{platform}, {workload}: {from:?}"
                );
                let env = container["env"].as_array().into_iter().flatten();
                let names: Vec<&str> = env
                    .filter_map(|variable| variable["name"].as_str())
                    .collect();
                assert!(
                    !names
                        .iter()
                        .any(|name| name.starts_with("KUBERNETES_SERVICE_")),
                    "{platform}: {names:?}"
                );
            }
        }
    }
    more_rights.dedup();
    assert_eq!(
        more_rights,
        ["kubespray `DAC_OVERRIDE`", "openshift privileged"]
    );
}

/// The cluster's DNS server depends on the network that these pods set up.
#[test]
fn pods_on_the_hosts_network_use_the_nodes_resolver() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let on_host = compose(
        directory.path(),
        &[OVERLAYS[0]],
        &["components/host-network-controllers"],
    )
    .unwrap();
    let mut pods = 0;
    for objects in OVERLAYS.map(overlay).into_iter().chain([on_host]) {
        let pod = |object: &Value| object["spec"]["template"]["spec"].clone();
        for (name, pod) in objects.iter().map(|(name, object)| (name, pod(object))) {
            if pod["hostNetwork"] == true {
                assert_eq!(pod["dnsPolicy"], "Default", "{name}");
                pods += 1;
            }
        }
    }
    assert_eq!(
        pods, 6,
        "the agent of each rendering, kube-controllers with etcd and with the component"
    );
}
