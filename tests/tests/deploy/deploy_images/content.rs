//! The content of each image.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use integration_tests::command::run;

use super::images;
use super::layout::Image;

/// Unpacks an image's files into a folder, as a runtime does.
pub(super) fn unpacked(image: &Image, into: &Path) {
    fs::create_dir_all(into).unwrap();
    for layer in image.layers() {
        let (layer, into) = (layer.display().to_string(), into.display().to_string());
        run(
            "tar",
            &[
                "--extract",
                "--gzip",
                "--numeric-owner",
                "--same-owner",
                "--file",
                &layer,
                "--directory",
                &into,
            ],
        )
        .unwrap();
    }
}

fn files(folder: &Path) -> BTreeSet<String> {
    let found = run(
        "find",
        &[
            folder.display().to_string().as_str(),
            "-type",
            "f",
            "-printf",
            "%P\n",
        ],
    )
    .unwrap();
    found.lines().map(str::to_owned).collect()
}

#[test]
fn images_contain_the_programs_under_all_names_and_no_shell() {
    let Some(directory) = images() else { return };
    let unpacked_images = tempfile::tempdir().unwrap();
    let root = unpacked_images.path();
    let plugins = [
        "bandwidth",
        "flannel",
        "host-local",
        "loopback",
        "portmap",
        "tuning",
    ];
    let ours = [
        "opt/cni/bin/calico",
        "opt/cni/bin/calico-ipam",
        "opt/cni/bin/install",
        "usr/bin/calico",
        "usr/bin/calico-ipam",
    ];
    let mut cni: BTreeSet<String> = plugins
        .iter()
        .map(|name| format!("opt/cni/bin/{name}"))
        .collect();
    cni.extend(ours.map(str::to_owned));
    let controllers = [
        "usr/bin/calico",
        "usr/bin/check-status",
        "usr/bin/kube-controllers",
        "usr/bin/wrapper",
    ];
    for (name, programs) in [
        ("cni", cni),
        ("kube-controllers", controllers.map(str::to_owned).into()),
    ] {
        let root = root.join(name);
        unpacked(&Image::read(&directory.join(name)), &root);
        let mut expected = programs.clone();
        expected.insert("licenses/LICENSE".to_owned());
        expected.insert("licenses/THIRD-PARTY".to_owned());
        expected.insert(format!("usr/share/sbom/{name}.cdx.json"));
        assert_eq!(
            files(&root),
            expected,
            "no shell, no package manager, nothing else"
        );
        for file in expected {
            let metadata = fs::metadata(root.join(&file)).unwrap();
            assert_eq!(
                (metadata.uid(), metadata.gid(), metadata.mtime()),
                (0, 0, 1_700_000_000),
                "{file}"
            );
            let mode = if programs.contains(&file) {
                0o755
            } else {
                0o644
            };
            assert_eq!(metadata.mode() & 0o7777, mode, "{file}");
        }
    }
    // The names of a program are hard links to one file.
    let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
    let one = |names: &[&str], image: &str| {
        let inodes: BTreeSet<u64> = names
            .iter()
            .map(|name| inode(root.join(image).join(name)))
            .collect();
        assert_eq!(inodes.len(), 1, "{names:?}");
    };
    one(&ours, "cni");
    one(&controllers, "kube-controllers");
    let status = fs::metadata(root.join("kube-controllers/status")).unwrap();
    assert_eq!((status.uid(), status.gid()), (999, 999));
}

/// Programs of the cni image run on hosts of any distribution.
#[test]
fn every_program_of_the_images_is_static() {
    let Some(directory) = images() else { return };
    let unpacked_images = tempfile::tempdir().unwrap();
    for name in ["cni", "kube-controllers"] {
        let root = unpacked_images.path().join(name);
        unpacked(&Image::read(&directory.join(name)), &root);
        let all = files(&root);
        let programs: Vec<_> = all.iter().filter(|file| file.contains("bin/")).collect();
        assert!(!programs.is_empty(), "{name}: {all:?}");
        for file in programs {
            let path = root.join(file).display().to_string();
            let headers = run("readelf", &["--wide", "--program-headers", &path]).unwrap();
            assert!(
                headers.contains("LOAD") && !headers.contains("INTERP"),
                "{file}: {headers}"
            );
            let needed = run("readelf", &["--wide", "--dynamic", &path]).unwrap();
            assert!(!needed.contains("NEEDED"), "{file}: {needed}");
        }
    }
}
