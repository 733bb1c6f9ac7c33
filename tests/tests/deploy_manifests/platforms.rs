//! The component and the page of each platform, and the resolver of pods on the host's network.

use std::fs;

use integration_tests::kubernetes::{Kubernetes, with_kubernetes};
use integration_tests::manifests::{Objects, changes, compose, containers, deploy, platforms};
use serde_json::Value;

use super::api_server::{dry_run, manifest};
use super::{DAEMON_SET, OVERLAYS, can_render, overlay};

fn on(platform: &str, base: &str) -> Objects {
    let directory = tempfile::tempdir().unwrap();
    compose(directory.path(), &[base], &[&format!("components/platforms/{platform}")]).unwrap()
}

fn path_of<'o>(objects: &'o Objects, volume: &str) -> &'o str {
    let volumes = objects[DAEMON_SET]["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let found = volumes.iter().find(|found| found["name"] == volume).unwrap();
    assert!(matches!(found["hostPath"]["type"].as_str(), Some("DirectoryOrCreate")), "{found}");
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
            let objects = on(&platform, base);
            let pod = format!("{DAEMON_SET}/spec/template/spec");
            let places = [
                "volumes",
                "containers/0/env",
                "initContainers/0/env",
                "containers/0/securityContext",
                "initContainers/0/securityContext",
            ];
            for change in changes(&before, &objects) {
                let is_expected = places.iter().any(|place| change.starts_with(&format!("{pod}/{place}")));
                assert!(is_expected, "{platform}, {base}: {change}");
            }
            for (variable, volume) in [("CNI_BIN_DIR", "cni-bin-dir"), ("CNI_NET_DIR", "cni-net-dir")] {
                let path = path_of(&objects, volume);
                for container in containers(&objects[DAEMON_SET]) {
                    let env = container["env"].as_array().unwrap();
                    let named = env.iter().find(|known| known["name"] == variable).unwrap();
                    assert_eq!(named["value"], path, "{platform}");
                }
            }
            for unchanged in ["var-lib-calico", "var-run-calico"] {
                assert_eq!(path_of(&objects, unchanged), path_of(&before, unchanged), "{platform}");
            }
        }
    }
}

#[test]
fn server_accepts_the_component_of_each_platform() {
    if !can_render() {
        return;
    }
    with_kubernetes(|host, Kubernetes { api, .. }| {
        let directory = host.dir("manifests");
        for platform in platforms().unwrap() {
            let objects = on(&platform, OVERLAYS[0]);
            let said = dry_run(&api, &manifest(&directory, &objects)).unwrap();
            assert_eq!(said.lines().count(), objects.len(), "{platform}: {said}");
        }
    });
}

#[test]
fn each_platform_has_a_page_with_its_directories_and_sources() {
    if !can_render() {
        return;
    }
    let read = |page: &str| fs::read_to_string(deploy("../docs/platforms").join(page)).unwrap();
    let index = read("README.md");
    for platform in platforms().unwrap() {
        let (objects, page) = (on(&platform, OVERLAYS[0]), read(&format!("{platform}.md")));
        let directories = ["cni-bin-dir", "cni-net-dir"].map(|volume| format!("`{}`", path_of(&objects, volume)));
        let selection = [format!("`--set platform={platform}`"), format!("`components/platforms/{platform}`")];
        for part in directories.iter().chain(&selection) {
            assert!(page.contains(part.as_str()), "{platform}: the page lacks {part}");
        }
        let (tried, sources) = page.split_once("## From the platform's documentation").expect(&platform);
        assert!(tried.contains("## Tried here"), "{platform}");
        assert!(sources.matches("https://").count() > 1, "{platform}");
        let row = format!("[{platform}]({platform}.md)");
        let row = index.lines().find(|line| line.contains(&row)).expect(&platform);
        assert!(directories.iter().all(|directory| row.contains(directory.as_str())), "{row}");
    }
}

/// The cluster's DNS server depends on the network that these pods set up.
#[test]
fn pods_on_the_hosts_network_use_the_nodes_resolver() {
    if !can_render() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let on_host = compose(directory.path(), &[OVERLAYS[0]], &["components/host-network-controllers"]).unwrap();
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
    assert_eq!(pods, 6, "the agent of each rendering, kube-controllers with etcd and with the component");
}
