//! Finds the programs of Kubernetes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::built_programs;

/// The go.mod with the Kubernetes version that tests/install-go-tools.sh builds.
const GO_MOD: &str = include_str!("../../kubernetes/go.mod");

/// Returns the path of a program, in `KUBEBUILDER_ASSETS` or else in the folder of tests/install-go-tools.sh.
pub fn program(name: &str) -> Result<PathBuf> {
    if let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|assets| !assets.is_empty()) {
        let path = Path::new(&assets).join(name);
        ensure!(path.is_file(), "KUBEBUILDER_ASSETS has no {name}");
        return Ok(path);
    }
    let path = built_programs()?.join(format!("kubernetes-{}", version()?)).join(name);
    ensure!(path.is_file(), "{name} is not built (tests/install-go-tools.sh {name})");
    Ok(path)
}

fn version() -> Result<&'static str> {
    let requirement = GO_MOD.lines().find_map(|line| line.strip_prefix("\tk8s.io/kubernetes "));
    requirement.and_then(|line| line.split(' ').next()).context("go.mod does not require k8s.io/kubernetes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_replaced_kubernetes_module_has_the_same_release() {
        let release = version().unwrap().strip_prefix("v1.").unwrap();
        let replaced: Vec<&str> = GO_MOD.lines().filter(|line| line.contains(" => ")).collect();
        assert_eq!(replaced.len(), 33);
        for line in replaced {
            let (from, to) = line.trim().split_once(" => ").unwrap();
            assert_eq!(to, format!("{from} v0.{release}"));
        }
    }
}
