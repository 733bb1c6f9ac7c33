//! Bills of materials: the components of each program and image, with licenses and hashes, for each
//! architecture.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use integration_tests::PROGRAM_CRATES;
use integration_tests::command::run;
use integration_tests::images::{can_be_made, in_tree};
use serde_json::{Value, json};

use super::content::unpacked;
use super::layout::Image;
use super::{arch, images};

fn is_hashed(component: &Value) -> bool {
    let hash = &component["hashes"][0];
    hash["alg"] == "SHA-256"
        && hash["content"]
            .as_str()
            .is_some_and(|digits| digits.len() == 64)
}

fn read_bill(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn bills_of_materials_list_the_components_with_licenses() {
    let Some(directory) = images() else { return };
    let unpacked_images = tempfile::tempdir().unwrap();
    for (name, expected) in [
        (
            "cni",
            vec![
                "cni-plugin",
                "ipam-plugin",
                "tokio",
                "github.com/containernetworking/plugins",
                "stdlib",
                "sqlite",
                "musl",
                "rust-std",
            ],
        ),
        (
            "kube-controllers",
            vec![
                "kube-controllers",
                "allocation",
                "kube",
                "prometheus",
                "musl",
                "rust-std",
            ],
        ),
    ] {
        let root = unpacked_images.path().join(name);
        unpacked(&Image::read(&directory.join(name)), &root);
        let inside =
            fs::read_to_string(root.join(format!("usr/share/sbom/{name}.cdx.json"))).unwrap();
        let beside = directory.join(format!("{name}-{}.cdx.json", arch()));
        assert_eq!(fs::read_to_string(beside).unwrap(), inside);
        let bill: Value = serde_json::from_str(&inside).unwrap();
        assert_eq!(
            (&bill["bomFormat"], &bill["specVersion"]),
            (&"CycloneDX".into(), &"1.6".into())
        );
        let components = bill["components"].as_array().unwrap();
        for wanted in expected {
            assert!(
                components
                    .iter()
                    .any(|component| component["name"] == wanted),
                "{name}: {wanted}"
            );
        }
        let urls: BTreeSet<&str> = components
            .iter()
            .map(|component| component["purl"].as_str().unwrap())
            .collect();
        assert_eq!(urls.len(), components.len(), "each once");
        for component in components
            .iter()
            .filter(|one| one["purl"].as_str().unwrap().starts_with("pkg:cargo/"))
        {
            assert!(
                component["licenses"][0]["expression"].is_string(),
                "{component}"
            );
        }
        let unhashed = components
            .iter()
            .filter(|component| !is_hashed(component))
            .map(|one| one["name"].as_str().unwrap());
        let unhashed: Vec<&str> = unhashed
            .filter(|name| !PROGRAM_CRATES.contains(name) && *name != "stdlib")
            .collect();
        assert_eq!(
            unhashed, [""; 0],
            "{name}: only our crates, and Go's own library, have no package with a hash"
        );
        // Dependencies of tests and builds are not part of the bill.
        for not_in_it in ["/proptest@", "/prost-build@", "/syn@"] {
            assert!(
                !urls.iter().any(|url| url.contains(not_in_it)),
                "{name}: {not_in_it}"
            );
        }
        assert!(!inside.contains(&in_tree("")));
    }
}

#[test]
fn bill_of_a_program_has_the_hash_of_its_file() {
    let Some(directory) = images() else { return };
    for program in ["calico", "kube-controllers"] {
        let file = directory.join("programs").join(arch()).join(program);
        let bill = read_bill(&file.with_file_name(format!("{program}.cdx.json")));
        let sum = run("sha256sum", &[file]).unwrap();
        let expected = json!([{ "alg": "SHA-256", "content": sum.split(' ').next().unwrap() }]);
        assert_eq!(
            bill["metadata"]["component"]["hashes"], expected,
            "{program}"
        );
    }
}

/// The graph of one architecture has a crate more.
#[test]
fn bill_of_an_architecture_has_the_crates_of_its_own_graph() {
    if !can_be_made().unwrap() {
        return;
    }
    let place = |tool: &str| {
        run(&in_tree("tests/install-go-tools.sh"), &["--place", tool])
            .unwrap()
            .trim()
            .to_owned()
    };
    let plugins = place(&format!("cni-plugins-{}", arch()));
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    let crates = ["both", "only-arm"].map(|name| {
        write(&format!("{name}/LICENSE"), "A license.");
        json!({ "name": name, "version": "1.0.0", "authors": [], "repository": "",
                "source": "registry",
            "manifest_path": directory.path().join(name).join("Cargo.toml") })
    });
    write("metadata.json", &json!({ "packages": crates }).to_string());
    write(
        "Cargo.lock",
        &format!(
            "[[package]]\nname = \"both\"\nversion = \"1.0.0\"\nchecksum = \"{}\"\n",
            "ab".repeat(32)
        ),
    );
    write("licenses/LICENSE", "A license.");
    for (arch, graph) in [
        ("amd64", "both v1.0.0;MIT\n"),
        ("arm64", "both v1.0.0;MIT\nonly-arm v1.0.0;MIT\n"),
    ] {
        write(
            &format!("linked/{arch}"),
            &format!("musl 1.2.5 MIT {}\n", "cd".repeat(32)),
        );
        for (package, program) in [
            ("cni-plugin", "calico"),
            ("kube-controllers-program", "kube-controllers"),
        ] {
            write(&format!("crates/{arch}/{package}"), graph);
            write(&format!("{arch}/{program}"), "A program.");
        }
    }
    let folder = directory.path().display().to_string();
    let script = format!(
        "for arch in amd64 arm64; do find '{plugins}' -maxdepth 1 -type f -exec cp -t '{folder}'/$arch {{}} +; done
         cp -r '{plugins}/licenses' '{folder}/modules'"
    );
    run("sh", &["-ec", &script]).unwrap();
    let out = directory.path().join("out");
    let images = Path::new(&place("images"))
        .join("images")
        .display()
        .to_string();
    let to = out.display().to_string();
    run(
        &images,
        &[
            "-programs",
            &folder,
            "-arch",
            "amd64,arm64",
            "-version",
            "v1",
            "-epoch",
            "1",
            "-out",
            &to,
        ],
    )
    .unwrap();
    for image in ["cni", "kube-controllers"] {
        let names = |arch: &str| -> Vec<String> {
            let bill = read_bill(&out.join(format!("{image}-{arch}.cdx.json")));
            let components = bill["components"].as_array().unwrap().clone();
            let of_crates = components
                .iter()
                .filter(|one| one["purl"].as_str().unwrap().starts_with("pkg:cargo/"));
            of_crates
                .map(|one| one["name"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(
            (names("amd64"), names("arm64")),
            (
                vec!["both".to_owned()],
                vec!["both".into(), "only-arm".into()]
            )
        );
        let both = &read_bill(&out.join(format!("{image}-arm64.cdx.json")))["components"][0];
        assert_eq!(
            (&both["name"], &both["hashes"][0]["content"]),
            (&json!("both"), &json!("ab".repeat(32)))
        );
    }
    let digests = fs::read_to_string(out.join("digests.txt")).unwrap();
    let names: Vec<&str> = digests
        .lines()
        .map(|line| line.split_once(' ').unwrap().1)
        .collect();
    let name = |image: &str, arch: &str| format!("registry.example.com/calico/{image}:v1{arch}");
    let expected = ["cni", "kube-controllers"]
        .map(|image| ["", " linux/amd64", " linux/arm64"].map(|arch| name(image, arch)));
    assert_eq!(names, expected.concat());
}
