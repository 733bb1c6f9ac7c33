//! The commands of the documents never apply images of the placeholder registry.

use std::fs;
use std::path::{Path, PathBuf};

use integration_tests::manifests::{deploy, kustomize};

use super::can_render;

/// The placeholder registry in the manifests of the repository.
const NOBODYS: &str = "registry.example.com";

/// The command that replaces the placeholder by the reader's registry.
const REPLACED: &str = "sed \"s#registry.example.com/calico#$REGISTRY#\"";

/// Pages, and manifests with commands in their comments.
const DOCUMENTS: [&str; 19] = [
    "../README.md",
    "../docs/beside-upstream.md",
    "../docs/install.md",
    "../docs/recovery.md",
    "../docs/standalone.md",
    "../docs/troubleshooting.md",
    "../docs/troubleshooting/cluster.md",
    "../docs/troubleshooting/pods.md",
    "../docs/uninstall.md",
    "../docs/upgrade.md",
    "README.md",
    "../kube-controllers/README.md",
    "uninstall/uninstall.yaml",
    "adopt/adopt.yaml",
    "overlays/kubernetes-v1/kustomization.yaml",
    "overlays/kubernetes-v3/kustomization.yaml",
    "overlays/etcd/kustomization.yaml",
    "overlays/beside-upstream/kustomization.yaml",
    "overlays/beside-calico-node/kustomization.yaml",
];

/// Returns for each `kubectl apply` in a line the text before the command, `-f` or `-k`, and the
/// file or folder.
fn applied(line: &str) -> Vec<(&str, &str, &str)> {
    let mut found = Vec::new();
    for (at, _) in line.match_indices("kubectl apply") {
        let command = line[at..].split('`').next().unwrap_or_default();
        let words: Vec<&str> = command.split_whitespace().collect();
        let named = words
            .windows(2)
            .filter(|pair| matches!(pair[0], "-f" | "-k"));
        found.extend(named.map(|pair| (&line[..at], pair[0], pair[1])));
    }
    found
}

/// Returns the path of a file or folder named relative to the repository's root or to `deploy/`;
/// `None` if neither exists, and for `.`.
fn of_the_tree(named: &str) -> Option<PathBuf> {
    let places = [deploy("..").join(named), deploy(named)];
    places
        .into_iter()
        .find(|path| named != "." && path.exists())
}

/// Returns true if the applied objects name the placeholder registry.
fn is_nobodys(option: &str, path: &Path) -> bool {
    if option == "-k" {
        let objects = kustomize(path).unwrap();
        return objects
            .values()
            .any(|object| object.to_string().contains(NOBODYS));
    }
    let files = if path.is_dir() {
        let all = fs::read_dir(path).unwrap().map(|file| file.unwrap().path());
        all.filter(|path| path.is_file()).collect()
    } else {
        vec![path.to_owned()]
    };
    files
        .iter()
        .any(|file| fs::read_to_string(file).unwrap().contains(NOBODYS))
}

#[test]
fn no_documented_command_applies_images_of_the_placeholder_registry() {
    if !can_render() {
        return;
    }
    let mut commands = 0;
    for document in DOCUMENTS {
        let text = fs::read_to_string(deploy(document)).unwrap();
        for line in text.lines() {
            for (before, option, named) in applied(line) {
                commands += 1;
                if named == "-" {
                    assert!(before.contains(REPLACED), "{document}: {line}");
                } else if let Some(path) = of_the_tree(named) {
                    assert!(!is_nobodys(option, &path), "{document}: {line}");
                } else if let Some(written) = text
                    .lines()
                    .find(|line| line.contains(&format!(">{named}")))
                {
                    // A command of the document writes this file.
                    assert!(written.contains(REPLACED), "{document}: {written}");
                }
            }
        }
    }
    assert!(commands > 15, "{commands} commands are found");
}
