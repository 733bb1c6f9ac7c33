//! The signature, the provenance and the digests of a release.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use integration_tests::command::run;
use integration_tests::images::{ANY_SIZE, in_tree};
use integration_tests::installed::{arch, built};
use integration_tests::manifests::helm;
use integration_tests::skip::skipped;
use serde_json::{Value, json};

use super::files::{VERSION, path, unpack};
use super::{FAST, can_release, release, release_for_registry, shared_release};

/// Creates a key without a password: NAME.key and NAME.pub.
fn create_key(folder: &Path, name: &str) -> String {
    let file = |kind: &str| folder.join(format!("{name}.{kind}")).display().to_string();
    let minisign = built("minisign").unwrap().display().to_string();
    run(
        &minisign,
        &["-G", "-W", "-p", &file("pub"), "-s", &file("key")],
    )
    .unwrap();
    file("key")
}

/// Runs the command with which docs/verify-a-release.md verifies a release.
fn verify(made: &Path) -> Result<String> {
    let page = fs::read_to_string(in_tree("docs/verify-a-release.md"))?;
    let command = page
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("minisign -Vm SHA256SUMS"));
    let command = command.context("docs/verify-a-release.md has no command")?;
    let tools = built("minisign")?;
    let tools = tools.parent().context("the program is in a folder")?;
    let folder = made.join("release");
    run(
        "sh",
        &[
            "-ec",
            &format!(
                "cd '{}'; PATH='{}':$PATH; {command}",
                folder.display(),
                tools.display()
            ),
        ],
    )
}

#[test]
fn signed_release_passes_the_documented_verification_only_unchanged() {
    if !can_release() {
        return;
    }
    if let Err(missing) = built("minisign") {
        return skipped(&missing.to_string());
    }
    let keys = tempfile::tempdir().unwrap();
    let (own, _) = (
        create_key(keys.path(), "calico-cni"),
        create_key(keys.path(), "other"),
    );
    let made = release(&[ANY_SIZE, FAST, &format!("SIGNING_KEY={own}")]).unwrap();
    let trust = |name: &str| {
        fs::copy(
            keys.path().join(format!("{name}.pub")),
            made.path().join("calico-cni.pub"),
        )
        .unwrap();
    };
    trust("calico-cni");
    let said = verify(made.path()).unwrap();
    assert!(said.contains(&format!("calico-cni v{VERSION}")), "{said}");

    trust("other");
    assert!(verify(made.path()).is_err(), "another key signed it");
    trust("calico-cni");
    let manifest = made.path().join("release/install.yaml");
    fs::write(
        &manifest,
        fs::read_to_string(&manifest).unwrap() + "# changed\n",
    )
    .unwrap();
    let error = verify(made.path()).unwrap_err().to_string();
    assert!(error.contains("did NOT match"), "{error}");
    let again = format!(
        "cd '{}/release' && sha256sum $(cut -c67- SHA256SUMS) >sums && mv sums SHA256SUMS",
        made.path().display()
    );
    run("sh", &["-ec", &again]).unwrap();
    assert!(
        verify(made.path()).is_err(),
        "the checksums are not those that were signed"
    );
}

#[test]
fn provenance_names_each_file_with_its_checksum_and_the_commit() {
    if !can_release() {
        return;
    }
    let made = release_for_registry();
    let text = fs::read_to_string(path(&made, "provenance.intoto.json")).unwrap();
    let statement: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(statement["_type"], "https://in-toto.io/Statement/v1");
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let subjects: BTreeMap<&str, &str> = statement["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|subject| {
            (
                subject["name"].as_str().unwrap(),
                subject["digest"]["sha256"].as_str().unwrap(),
            )
        })
        .collect();
    let sums = fs::read_to_string(path(&made, "SHA256SUMS")).unwrap();
    let mut files: BTreeMap<&str, &str> = sums
        .lines()
        .map(|line| line.split_once("  ").unwrap())
        .map(|(sum, file)| (file, sum))
        .collect();
    assert!(files.remove("provenance.intoto.json").is_some());
    assert_eq!(subjects, files);

    let build = &statement["predicate"]["buildDefinition"];
    let commit = run("git", &["-C", &in_tree(""), "rev-parse", "HEAD"]).unwrap();
    let source = json!({
        "name": "source", "uri": "git+https://example.com/calico",
        "digest": { "gitCommit": commit.trim() },
    });
    assert_eq!(build["resolvedDependencies"][0], source);
    assert_eq!(build["externalParameters"]["trial"], true);
    assert!(
        build["internalParameters"]["rustc"]
            .as_str()
            .unwrap()
            .starts_with("rustc ")
    );
    assert_eq!(
        statement["predicate"]["runDetails"]["builder"]["id"],
        "https://example.com/ci"
    );
}

fn archived(made: &Path, image: &str) -> String {
    let archive = path(made, &format!("image-{image}-v{VERSION}.tar"));
    let index = run(
        "tar",
        &["--extract", "--to-stdout", "--file", &archive, "index.json"],
    )
    .unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    index["manifests"][0]["digest"].as_str().unwrap().to_owned()
}

#[test]
fn manifests_and_chart_name_images_by_the_digests_of_the_archives() {
    if !can_release() {
        return;
    }
    let made = shared_release();
    let digests = fs::read_to_string(path(&made, "digests.txt")).unwrap();
    assert_eq!(
        digests.lines().count(),
        4,
        "two images, and one architecture of each: {digests}"
    );
    let pinned = ["cni", "kube-controllers"].map(|image| {
        let (name, digest) = (
            format!("registry.example.com/calico/{image}:v{VERSION}"),
            archived(&made, image),
        );
        assert!(
            digests
                .lines()
                .any(|line| line == format!("{digest} {name}")),
            "{digests}"
        );
        assert!(
            digests
                .lines()
                .any(|line| line.ends_with(&format!(" {name} linux/{}", arch()))),
            "{digests}"
        );
        format!("image: {name}@{digest}")
    });
    for manifest in [
        "install.yaml",
        "install-kubernetes-v3.yaml",
        "install-etcd.yaml",
        "uninstall.yaml",
    ] {
        let text = fs::read_to_string(path(&made, manifest)).unwrap();
        let images = text
            .lines()
            .map(|line| line.trim_start().trim_start_matches("- "));
        let images: Vec<&str> = images
            .filter(|line| line.starts_with("image: registry.example.com"))
            .collect();
        assert!(
            !images.is_empty()
                && images
                    .iter()
                    .all(|image| pinned.iter().any(|it| it == image)),
            "{images:?}"
        );
    }
    // A node knows an imported image by its tag only, so these manifests name no digest.
    let unpacked = unpack(&made, &format!("deploy-v{VERSION}.tar.gz"));
    assert!(
        !fs::read_to_string(unpacked.path().join("deploy/install.yaml"))
            .unwrap()
            .contains("@sha256:")
    );

    let helm = match helm() {
        Ok(helm) => helm.display().to_string(),
        Err(missing) => return skipped(&missing.to_string()),
    };
    let chart = path(&made, &format!("calico-cni-{VERSION}.tgz"));
    let render =
        |more: &[&str]| run(&helm, &[&["template", "calico-cni", &chart], more].concat()).unwrap();
    let rendered = render(&[]);
    for pinned in &pinned {
        let by_digest = pinned.replace(&format!(":v{VERSION}@"), "@");
        assert!(rendered.contains(&by_digest), "{by_digest}");
    }
    // The digest belongs to another version than the user's tag.
    let tagged = render(&["--set", "image.tag=v9"]);
    assert!(
        tagged.contains("image: registry.example.com/calico/cni:v9\n")
            && !tagged.contains("@sha256:")
    );
}
