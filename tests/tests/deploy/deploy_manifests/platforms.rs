//! The component and the page of each platform, and the resolver of pods on the host's network.

use std::collections::BTreeMap;
use std::fs;

use integration_tests::kubernetes::{Kubernetes, on_shared_kubernetes};
use integration_tests::manifests::{Objects, changes, compose, containers, deploy, platforms};
use serde_json::{Value, json};

use super::api_server::Accepted;
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

/// Returns value and source of each row in the table of settings of a page.
fn settings(page: &str) -> BTreeMap<&str, [&str; 2]> {
    let (_, table) = page
        .split_once("| setting | value | source |\n|---|---|---|\n")
        .expect("a table of settings");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| {
        row.trim_matches('|')
            .split(" | ")
            .map(str::trim)
            .collect::<Vec<&str>>()
    });
    cells
        .map(|cells| (cells[0], [cells[1], cells[2]]))
        .collect()
}

/// Returns the rights of a container as the page of its platform and the table of all platforms
/// name them.
fn rights(container: &Value) -> [&'static str; 2] {
    let context = &container["securityContext"];
    if context["privileged"] == true {
        assert_eq!(context.get("capabilities"), None, "{context}");
        return ["privileged", "privileged"];
    }
    assert_eq!(context["allowPrivilegeEscalation"], false, "{context}");
    let capabilities = &context["capabilities"];
    if *capabilities == json!({ "drop": ["ALL"] }) {
        return ["root without any capability", "none"];
    }
    assert_eq!(
        *capabilities,
        json!({ "add": ["DAC_OVERRIDE"], "drop": ["ALL"] })
    );
    ["root with the capability `DAC_OVERRIDE`", "`DAC_OVERRIDE`"]
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

#[test]
fn server_accepts_the_component_of_each_platform() {
    if !can_render() {
        return;
    }
    let rendered = platforms().unwrap().into_iter().map(|platform| {
        let objects = composed(&platform, OVERLAYS[0]);
        (platform, objects)
    });
    assert_accepted(&rendered.collect::<Vec<_>>());
}

/// Asserts that an API server accepts each object of the renderings, which have the names of
/// platforms.
pub(super) fn assert_accepted(rendered: &[(String, Objects)]) {
    on_shared_kubernetes(|_, Kubernetes { api, .. }| {
        let mut accepted = Accepted::default();
        for (platform, objects) in rendered {
            accepted.assert(api, platform, objects);
        }
    });
}

#[test]
fn each_platform_has_a_page_with_its_directories_and_sources() {
    if !can_render() {
        return;
    }
    let index = page("README.md");
    for platform in platforms().unwrap() {
        let (objects, page) = (
            composed(&platform, OVERLAYS[0]),
            page(&format!("{platform}.md")),
        );
        let directories =
            ["cni-bin-dir", "cni-net-dir"].map(|volume| format!("`{}`", path_of(&objects, volume)));
        for part in [
            format!("`--set platform={platform}`"),
            format!("`components/platforms/{platform}`"),
        ] {
            assert!(page.contains(&part), "{platform}: the page lacks {part}");
        }
        let (tried, sources) = page
            .split_once("## From the platform's documentation")
            .expect(&platform);
        assert!(tried.contains("## Tried here"), "{platform}");
        assert!(sources.matches("https://").count() > 1, "{platform}");
        let row = format!("[{platform}]({platform}.md)");
        let row = index
            .lines()
            .find(|line| line.contains(&row))
            .expect(&platform);
        assert!(
            directories
                .iter()
                .all(|directory| row.contains(directory.as_str())),
            "{row}"
        );
        let settings = settings(&page);
        let documented =
            ["programs", "configuration"].map(|setting| settings[setting][0].to_owned());
        assert_eq!(documented, directories, "{platform}");
    }
}

/// Settings that all platforms have in common have their source in the section `Everywhere`.
#[test]
fn page_of_each_platform_has_a_source_for_each_setting() {
    let index = page("README.md");
    let (_, everywhere) = index.split_once("## Everywhere").unwrap();
    for setting in ["DNS", "Rights"] {
        let line = everywhere
            .lines()
            .find(|line| line.starts_with(&format!("- **{setting}**")))
            .expect(setting);
        assert!(line.contains("[Source](https://"), "{line}");
    }
    for platform in platforms().unwrap() {
        let page = page(&format!("{platform}.md"));
        let settings = settings(&page);
        assert_eq!(settings.len(), 5, "{platform}: {settings:?}");
        for (setting, [value, source]) in settings {
            let is_common =
                value.starts_with("the node's resolver") || value == "root without any capability";
            let is_everywhere = is_common && source == "[everywhere](README.md#everywhere)";
            assert!(
                is_everywhere || source.starts_with("[Source](https://"),
                "{platform}, {setting}: {source}"
            );
        }
        // A link to a commit still shows what the page says after the file changes.
        for branch in ["HEAD", "main", "master"] {
            assert!(
                !page.contains(&format!("/blob/{branch}/")),
                "{platform}: a source at {branch}"
            );
        }
    }
}

#[test]
fn page_of_each_platform_names_the_rendered_resolver_api_server_and_rights() {
    if !can_render() {
        return;
    }
    let index = page("README.md");
    let mut more_rights = Vec::new();
    for platform in platforms().unwrap() {
        let (objects, page) = (
            composed(&platform, OVERLAYS[0]),
            page(&format!("{platform}.md")),
        );
        let settings = settings(&page);
        let pod = &objects[DAEMON_SET]["spec"]["template"]["spec"];
        let resolver = pod["dnsPolicy"].as_str().unwrap();
        assert_eq!(
            settings["DNS"][0],
            format!("the node's resolver (`dnsPolicy: {resolver}`)"),
            "{platform}"
        );
        let row = index
            .lines()
            .find(|line| line.contains(&format!("]({platform}.md)")))
            .expect(&platform);
        for container in containers(&objects[DAEMON_SET]) {
            let [on_page, in_table] = rights(container);
            assert!(
                settings["rights of the containers on nodes"][0].starts_with(on_page),
                "{platform}: {on_page}"
            );
            assert!(row.ends_with(&format!("| {in_table} |")), "{row}");
            more_rights.extend((in_table != "none").then(|| format!("{platform} {in_table}")));
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
