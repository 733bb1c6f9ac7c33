//! The programs run with nothing around them but the image.

use std::path::Path;

use integration_tests::command::run;
use integration_tests::namespaces::isolated;
use serde_json::Value;

use super::content::unpacked;
use super::images;
use super::layout::Image;

/// Runs a program of an unpacked image with the image for its whole file system.
fn inside(root: &Path, user: &str, line: &str) -> anyhow::Result<String> {
    let root = root.display().to_string();
    let user = format!("--userspec={user}");
    let own = ["-i", "PATH=/opt/cni/bin:/usr/bin", "/usr/sbin/chroot", &user, &root];
    let words: Vec<&str> = line.split(' ').collect();
    let (variables, words) = words.split_at(words.iter().take_while(|word| word.contains('=')).count());
    let args: Vec<&str> = own[..2].iter().chain(variables).chain(&own[2..]).chain(words).copied().collect();
    run("env", &args)
}

#[test]
fn every_program_runs_by_itself() {
    let Some(directory) = images() else { return };
    let version = env!("CARGO_PKG_VERSION");
    let roots = ["cni", "kube-controllers"].map(|name| {
        let root = directory.path().join("root").join(name);
        unpacked(&Image::read(&directory.path().join(name)), &root);
        root
    });
    isolated(|_| {
        let (cni, controllers) = (&roots[0], &roots[1]);
        for plugin in ["loopback", "portmap", "bandwidth", "host-local", "tuning", "calico", "calico-ipam"] {
            let said = inside(cni, "0:0", &format!("CNI_COMMAND=VERSION /opt/cni/bin/{plugin}")).unwrap();
            let said: Value = serde_json::from_str(&said).unwrap();
            let versions = said["supportedVersions"].as_array().unwrap();
            // CRI-O asks each plugin of a chain; 1.1.0 is what components/cni-1.1 needs (INST-106).
            for wanted in ["0.3.1", "1.0.0", "1.1.0"] {
                assert!(versions.iter().any(|version| version == wanted), "{plugin}: {versions:?}");
            }
        }
        for line in ["/opt/cni/bin/calico -v", "/opt/cni/bin/calico-ipam -v", "/usr/bin/calico -v"] {
            assert!(inside(cni, "0:0", line).unwrap().contains(version), "{line}");
        }
        // What the manifests of deploy/ and upstream's call.
        for command in [
            "/opt/cni/bin/install",
            "/usr/bin/calico component cni install",
            "/usr/bin/calico refresh-token",
            "/usr/bin/calico uninstall",
            "/usr/bin/calico doctor",
        ] {
            assert!(inside(cni, "0:0", &format!("{command} --help")).unwrap().contains("Usage"), "{command}");
        }
        // As the user that the image names, under every name that upstream's manifests call (INST-3).
        for line in [
            "/usr/bin/kube-controllers --version",
            "/usr/bin/wrapper /usr/bin/kube-controllers --version",
            "/usr/bin/calico component kube-controllers --version",
            "/usr/bin/check-status -v",
        ] {
            assert!(inside(controllers, "999:999", line).unwrap().contains(version), "{line}");
        }
        for line in
            ["/usr/bin/check-status -r", "/usr/bin/calico component kube-controllers kube-controllers-health -l"]
        {
            inside(controllers, "999:999", line).unwrap_err();
        }
    });
}
