//! The programs run with only the files of their image.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use integration_tests::command::run;
use integration_tests::images::in_tree;
use integration_tests::manifests::{containers, parse};
use integration_tests::namespaces::isolated;
use serde_json::Value;

use super::content::unpacked;
use super::images;
use super::layout::Image;

/// Runs a command line with the unpacked image as the root file system.
fn inside(root: &Path, user: &str, line: &str) -> anyhow::Result<String> {
    let root = root.display().to_string();
    let user = format!("--userspec={user}");
    let own = [
        "-i",
        "PATH=/opt/cni/bin:/usr/bin",
        "/usr/sbin/chroot",
        &user,
        &root,
    ];
    let words: Vec<&str> = line.split(' ').collect();
    let (variables, words) =
        words.split_at(words.iter().take_while(|word| word.contains('=')).count());
    let args: Vec<&str> = own[..2]
        .iter()
        .chain(variables)
        .chain(&own[2..])
        .chain(words)
        .copied()
        .collect();
    run("env", &args)
}

#[test]
fn every_program_runs_with_only_the_files_of_its_image() {
    let Some(directory) = images() else { return };
    let unpacked_images = tempfile::tempdir().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let roots = ["cni", "kube-controllers"].map(|name| {
        let root = unpacked_images.path().join(name);
        unpacked(&Image::read(&directory.join(name)), &root);
        root
    });
    isolated(|_| {
        let (cni, controllers) = (&roots[0], &roots[1]);
        for plugin in [
            "loopback",
            "portmap",
            "bandwidth",
            "flannel",
            "host-local",
            "tuning",
            "calico",
            "calico-ipam",
        ] {
            let said = inside(
                cni,
                "0:0",
                &format!("CNI_COMMAND=VERSION /opt/cni/bin/{plugin}"),
            )
            .unwrap();
            let said: Value = serde_json::from_str(&said).unwrap();
            let versions = said["supportedVersions"].as_array().unwrap();
            // components/cni-1.1 needs 1.1.0.
            for wanted in ["0.3.1", "1.0.0", "1.1.0"] {
                assert!(
                    versions.iter().any(|version| version == wanted),
                    "{plugin}: {versions:?}"
                );
            }
        }
        for line in [
            "/opt/cni/bin/calico -v",
            "/opt/cni/bin/calico-ipam -v",
            "/usr/bin/calico -v",
        ] {
            assert!(
                inside(cni, "0:0", line).unwrap().contains(version),
                "{line}"
            );
        }
        for command in [
            "/opt/cni/bin/install",
            "/usr/bin/calico component cni install",
            "/usr/bin/calico refresh-token",
            "/usr/bin/calico uninstall",
            "/usr/bin/calico doctor",
        ] {
            assert!(
                inside(cni, "0:0", &format!("{command} --help"))
                    .unwrap()
                    .contains("Usage"),
                "{command}"
            );
        }
        for line in [
            "/usr/bin/kube-controllers --version",
            "/usr/bin/wrapper /usr/bin/kube-controllers --version",
            "/usr/bin/calico component kube-controllers --version",
            "/usr/bin/check-status -v",
        ] {
            assert!(
                inside(controllers, "999:999", line)
                    .unwrap()
                    .contains(version),
                "{line}"
            );
        }
        for line in [
            "/usr/bin/check-status -r",
            "/usr/bin/calico component kube-controllers kube-controllers-health -l",
        ] {
            inside(controllers, "999:999", line).unwrap_err();
        }
    });
}

/// Returns the command line that a runtime starts: `command` replaces the image's entry point and
/// arguments.
fn started(container: &Value, config: &Value) -> String {
    let own = &config["config"];
    let words = |list: &Value| -> Vec<String> {
        list.as_array()
            .into_iter()
            .flatten()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let (mut program, mut arguments) = (words(&container["command"]), words(&container["args"]));
    if program.is_empty() {
        program = words(&own["Entrypoint"]);
        if arguments.is_empty() {
            arguments = words(&own["Cmd"]);
        }
    }
    [program, arguments].concat().join(" ")
}

/// Returns the user and group of a container: the manifest's if set, else the image's user and the
/// group root.
fn user(container: &Value, config: &Value) -> String {
    let said = &container["securityContext"];
    let id = |field: &str, own: &str| {
        said[field]
            .as_u64()
            .map_or(own.to_owned(), |id| id.to_string())
    };
    let user = id("runAsUser", config["config"]["User"].as_str().unwrap());
    assert!(said["runAsNonRoot"] != true || user != "0", "{container}");
    format!("{user}:{}", id("runAsGroup", "0"))
}

/// Returns the image that replaces a container's, and the beginning of its help; `None` for a
/// container that keeps its image.
fn replaced(container: &Value) -> Option<(&'static str, &'static str)> {
    match container["name"].as_str().unwrap() {
        "install-cni" => Some(("cni", "Usage: calico install")),
        "cni-agent" => Some(("cni", "Usage: calico refresh-token")),
        "uninstall" => Some(("cni", "Usage: calico uninstall")),
        // This program prints its help to stderr, as upstream's does.
        "upgrade-ipam" => Some(("cni", "")),
        "calico-kube-controllers" => Some(("kube-controllers", "Usage: kube-controllers")),
        _ => None,
    }
}

/// Only the images are replaced, as `kubectl set image` does.
#[test]
fn manifests_with_replaced_images_start_the_intended_programs() {
    let Some(directory) = images() else { return };
    let unpacked_images = tempfile::tempdir().unwrap();
    let root = |name: &str| unpacked_images.path().join(name);
    let configs = ["cni", "kube-controllers"].map(|name| {
        let image = Image::read(&directory.join(name));
        unpacked(&image, &root(name));
        (name, image.config)
    });
    let configs = BTreeMap::from(configs);
    isolated(|_| {
        for (file, expected) in [
            ("tests/tests/deploy/deploy_manifests/upstream-v3.32.yaml", 3),
            ("tests/tests/deploy/deploy_manifests/upstream-v3.33.yaml", 3),
            (
                "tests/tests/deploy/deploy_manifests/upstream-operator-1.42.yaml",
                2,
            ),
            ("deploy/install.yaml", 3),
            ("deploy/uninstall/uninstall.yaml", 1),
        ] {
            let objects = parse(&fs::read_to_string(in_tree(file)).unwrap()).unwrap();
            let ours = objects
                .values()
                .flat_map(containers)
                .filter_map(|one| Some((one, replaced(one)?)));
            let mut seen = 0;
            for (container, (name, usage)) in ours {
                seen += 1;
                let (config, root) = (&configs[name], root(name));
                for probe in ["livenessProbe", "readinessProbe"] {
                    if let Some(program) = container[probe]["exec"]["command"][0].as_str() {
                        assert!(
                            root.join(program.trim_start_matches('/')).is_file(),
                            "{file}: {program}"
                        );
                    }
                }
                let line = started(container, config);
                let said = inside(&root, &user(container, config), &format!("{line} --help"));
                assert!(
                    said.as_ref().is_ok_and(|said| said.contains(usage)),
                    "{file}: {line}: {said:?}"
                );
            }
            assert_eq!(seen, expected, "{file}");
        }
    });
}
