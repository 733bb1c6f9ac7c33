//! The files of a release.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use integration_tests::command::{present, run};
use integration_tests::images::ANY_SIZE;
use integration_tests::installed::arch;
use integration_tests::manifests::helm;
use integration_tests::namespaces::isolated;
use integration_tests::skip::skipped;
use tempfile::TempDir;

use super::{FAST, REGISTRY, can_release, release, release_for_registry, shared_release};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the name of a file in the release: V stands for the version, A for this machine's
/// architecture.
fn named(name: &str) -> String {
    name.replace("-V", &format!("-{VERSION}"))
        .replace("-A", &format!("-{}", arch()))
}

pub(super) fn path(folder: &Path, name: &str) -> String {
    folder
        .join("release")
        .join(named(name))
        .display()
        .to_string()
}

/// Unpacks an archive of a release into a new folder.
pub(super) fn unpack(folder: &Path, name: &str) -> TempDir {
    let into = tempfile::tempdir().unwrap();
    let to = into.path().display().to_string();
    run(
        "tar",
        &[
            "--extract",
            "--gzip",
            "--file",
            &path(folder, name),
            "--directory",
            &to,
        ],
    )
    .unwrap();
    into
}

#[test]
fn two_releases_are_identical_and_checksums_cover_every_file() {
    if !can_release() {
        return;
    }
    // The test changes a file of the first release, which therefore belongs to the test alone.
    let (first, second) = (release(&[ANY_SIZE, FAST]).unwrap(), shared_release());
    let folders =
        [first.path(), second.as_path()].map(|one| one.join("release").display().to_string());
    run("diff", &["--recursive", &folders[0], &folders[1]]).unwrap();

    let found: BTreeSet<String> = fs::read_dir(&folders[0])
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let expected: BTreeSet<String> = [
        "LICENSE",
        "SHA256SUMS",
        "calico-cni-V.tgz",
        "calico-vV-linux-A.cdx.json",
        "calico-vV-linux-A.tar.gz",
        "crds-v1.yaml",
        "crds-v3.yaml",
        "deploy-vV.tar.gz",
        "digests.txt",
        "image-cni-vV-A.cdx.json",
        "image-cni-vV.THIRD-PARTY",
        "image-cni-vV.tar",
        "image-kube-controllers-vV-A.cdx.json",
        "image-kube-controllers-vV.THIRD-PARTY",
        "image-kube-controllers-vV.tar",
        "install-etcd.yaml",
        "install-kubernetes-v3.yaml",
        "install.yaml",
        "kube-controllers-vV-linux-A-names.tar.gz",
        "kube-controllers-vV-linux-A.cdx.json",
        "kube-controllers-vV-linux-A.tar.gz",
        "provenance.intoto.json",
        "uninstall.yaml",
        "workloads.yaml",
    ]
    .map(|name| named(&name.replace("-vV", &format!("-v{VERSION}"))))
    .into();
    assert_eq!(found, expected);

    let check = format!(
        "cd '{}' && sha256sum --check --strict SHA256SUMS",
        folders[0]
    );
    let checked = run("sh", &["-c", &check]).unwrap();
    assert_eq!(
        checked.lines().count(),
        expected.len() - 1,
        "each file but the sums: {checked}"
    );
    fs::write(
        first.path().join("release/install.yaml"),
        "apiVersion: v1\n",
    )
    .unwrap();
    let error = run("sh", &["-c", &check]).unwrap_err().to_string();
    assert!(
        error.contains("1 computed checksum did NOT match"),
        "{error}"
    );
}

#[test]
fn programs_run_from_their_release_tarballs() {
    if !can_release() {
        return;
    }
    let made = shared_release();
    for (program, alias, version) in [
        ("calico", "calico-ipam", "-v"),
        ("kube-controllers", "check-status", "--version"),
    ] {
        let name = named(&format!("{program}-v{VERSION}-linux-A"));
        let unpacked = unpack(&made, &format!("{name}.tar.gz"));
        let root = unpacked.path().join(&name);
        let own = root.join(program);
        assert_eq!(
            fs::metadata(&own).unwrap().ino(),
            fs::metadata(root.join(alias)).unwrap().ino(),
            "{program}"
        );
        assert_eq!(
            fs::metadata(&own).unwrap().mode() & 0o7777,
            0o755,
            "{program}"
        );
        assert!(
            run(&own.display().to_string(), &[version])
                .unwrap()
                .contains(VERSION),
            "{program}"
        );
        assert!(
            fs::read_to_string(root.join("LICENSE"))
                .unwrap()
                .contains("Apache License"),
            "{program}"
        );
        let notices = fs::read_to_string(root.join("THIRD-PARTY")).unwrap();
        // A license chosen from several, a component with its own license text, a component that no
        // package list contains, and no component of ours.
        for wanted in [
            "\n  serde_json 1",
            "ring 0",
            "\nThe Rust standard library",
            "Rich Felker",
        ] {
            assert!(notices.contains(wanted), "{program}: {wanted}");
        }
        assert!(!notices.contains("libcalico"), "{program}");
        let bill = fs::read_to_string(path(&made, &format!("{name}.cdx.json"))).unwrap();
        assert!(
            bill.contains("\"type\": \"application\"") && bill.contains("pkg:cargo/serde_json@"),
            "{program}"
        );
        assert!(
            !bill.contains("pkg:golang/"),
            "{program} has nothing of the CNI project's plugins"
        );
    }
}

#[test]
fn debug_file_beside_the_program_has_the_function_names() {
    if !can_release() {
        return;
    }
    let made = shared_release();
    let name = named(&format!("kube-controllers-v{VERSION}-linux-A"));
    let folders = ["", "-names"].map(|part| unpack(&made, &format!("{name}{part}.tar.gz")));
    let program = folders[0].path().join(&name).join("kube-controllers");
    let names = folders[1].path().join("kube-controllers.debug");
    let [program, names] = [program, names].map(|path| path.display().to_string());
    let build_id = |file: &str| {
        let notes = run("readelf", &["--wide", "--notes", file]).unwrap();
        notes
            .lines()
            .find_map(|line| line.split("Build ID: ").nth(1))
            .map(str::to_owned)
    };
    assert!(build_id(&program).is_some());
    assert_eq!(build_id(&program), build_id(&names));
    let link = run("readelf", &["--string-dump=.gnu_debuglink", &program]).unwrap();
    assert!(link.contains("kube-controllers.debug"), "{link}");
    assert!(
        run("nm", &["--demangle", &names])
            .unwrap()
            .contains("kube_controllers::run::main")
    );
    let sections = run("readelf", &["--wide", "--sections", &program]).unwrap();
    assert!(
        !sections.contains(".symtab") && !sections.contains(".debug_"),
        "{sections}"
    );
}

#[test]
fn podman_loads_the_image_archives() {
    if !can_release() {
        return;
    }
    if !present("podman") {
        skipped("there is no podman");
        return;
    }
    let made = release_for_registry();
    let storage = tempfile::tempdir().unwrap();
    let storage = storage.path().display().to_string();
    let podman = |words: &[&str]| {
        let options = [
            "--root",
            &storage,
            "--runroot",
            &storage,
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
        ];
        run("podman", &[&options, words].concat()).unwrap()
    };
    // podman records blobs in /var/lib/containers/cache, whatever its storage.
    isolated(|_| {
        for (name, user) in [("cni", "0"), ("kube-controllers", "999")] {
            let archive = path(&made, &format!("image-{name}-v{VERSION}.tar"));
            let loaded = podman(&["load", "--quiet", "--input", &archive]);
            let image = loaded.trim().rsplit(' ').next().unwrap();
            assert_eq!(
                podman(&["image", "inspect", "--format", "{{.Config.User}}", image]).trim(),
                user,
                "{loaded}"
            );
        }
    });
}

fn applied(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
}

/// Returns the files of this repository to which a page links, relative to the page.
fn links(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .map(str::to_owned)
        .collect()
}

/// The page about the files says that the archive lacks `helm/`, so links to the chart's values are
/// allowed. Maintainers, who read CONTRIBUTING.md, have the source.
#[test]
fn links_of_the_deploy_page_and_of_its_pages_are_in_the_archive() {
    if !can_release() {
        return;
    }
    let unpacked = unpack(&shared_release(), &format!("deploy-v{VERSION}.tar.gz"));
    let deploy = unpacked.path().join("deploy");
    let first = deploy.join("README.md");
    let listed = links(&first);
    let docs = listed.iter().filter(|link| link.starts_with("../docs/"));
    let pages: Vec<_> = docs.map(|link| deploy.join(link)).collect();
    assert!(pages.len() > 7, "{listed:?}");
    let mut gone = BTreeSet::new();
    for page in pages.iter().chain([&first]) {
        let folder = page.parent().unwrap();
        gone.extend(
            links(page)
                .into_iter()
                .filter(|link| !folder.join(link).exists()),
        );
    }
    let expected = [
        "../CONTRIBUTING.md",
        "../deploy/helm/calico-cni/README.md",
        "helm/calico-cni/README.md",
    ];
    assert_eq!(gone, expected.map(str::to_owned).into());
    let files = fs::read_to_string(deploy.join("../docs/verify-a-release.md")).unwrap();
    let row = files
        .lines()
        .find(|line| line.starts_with("| `deploy-V.tar.gz` |"))
        .unwrap();
    assert!(row.contains("without `helm/`"), "{row}");
}

#[test]
fn release_registry_is_in_every_manifest_and_the_chart() {
    if !can_release() {
        return;
    }
    let made = release_for_registry();
    for name in [
        "install.yaml",
        "install-kubernetes-v3.yaml",
        "install-etcd.yaml",
        "workloads.yaml",
        "uninstall.yaml",
    ] {
        let text = fs::read_to_string(path(&made, name)).unwrap();
        assert!(
            text.contains(&format!("image: {REGISTRY}/cni:v{VERSION}@sha256:")),
            "{name}"
        );
        assert!(
            applied(&text).all(|line| !line.contains("registry.example.com")),
            "{name}"
        );
    }
    let unpacked = unpack(&made, &format!("deploy-v{VERSION}.tar.gz"));
    let deploy = unpacked.path().join("deploy");
    for name in [
        "install.yaml",
        "overlays/beside-upstream/images.yaml",
        "components/upgrade-ipam/patch.yaml",
    ] {
        let text = fs::read_to_string(deploy.join(name)).unwrap();
        assert!(
            applied(&text).any(|line| line.contains(&format!("{REGISTRY}/cni"))),
            "{name}"
        );
        assert!(
            applied(&text).all(|line| !line.contains("registry.example.com/calico")),
            "{name}"
        );
    }
    // The commands in the documents keep the placeholder, which they replace.
    for name in [
        "../docs/install.md",
        "uninstall/uninstall.yaml",
        "overlays/beside-upstream/kustomization.yaml",
    ] {
        let text = fs::read_to_string(deploy.join(name)).unwrap();
        assert!(
            text.contains("s#registry.example.com/calico#$REGISTRY#")
                && !text.contains("s#127.0.0.1"),
            "{name}"
        );
    }
    let helm = match helm() {
        Ok(helm) => helm.display().to_string(),
        Err(missing) => return skipped(&missing.to_string()),
    };
    let chart = path(&made, &format!("calico-cni-{VERSION}.tgz"));
    let rendered = run(
        &helm,
        &[
            "template",
            "calico-cni",
            &chart,
            "--namespace",
            "kube-system",
        ],
    )
    .unwrap();
    for image in ["cni", "kube-controllers"] {
        assert!(
            rendered.contains(&format!("image: {REGISTRY}/{image}@sha256:")),
            "{image}"
        );
    }
    assert!(!rendered.contains("registry.example.com"));
}
