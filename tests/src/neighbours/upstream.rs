//! Upstream's calico-node beside our agent: its init container writes the configuration, and its
//! main container renews the token in the kubeconfig. Both write in place (INST-25).

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::manifests::parse;

/// The objects that the operator renders.
const OPERATORS_MANIFEST: &str = "tests/deploy/deploy_manifests/upstream-operator-1.42.yaml";

/// The configuration of upstream's manifest of release 3.29, on a node.
pub const UPSTREAM_CONF: &str = r#"{
  "name": "k8s-pod-network", "cniVersion": "0.3.1",
  "plugins": [
    { "type": "calico", "log_level": "info", "log_file_path": "/var/log/calico/cni/cni.log",
      "datastore_type": "kubernetes",
      "nodename": "my-node", "mtu": 0, "ipam": { "type": "calico-ipam" }, "policy": { "type": "k8s" },
      "kubernetes": { "kubeconfig": "/etc/cni/net.d/calico-kubeconfig" } },
    { "type": "portmap", "snat": true, "capabilities": { "portMappings": true } },
    { "type": "bandwidth", "capabilities": { "bandwidth": true } }
  ]
}"#;

/// Writes the configuration as `install-cni` does at each start of calico-node's pod.
pub fn upstream_installs(file: &Path) -> Result<()> {
    installs(file, UPSTREAM_CONF)
}

/// Does the same as [`upstream_installs`] with the configuration of the operator's ConfigMap.
pub fn operator_installs(file: &Path) -> Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(OPERATORS_MANIFEST);
    let objects = parse(&fs::read_to_string(manifest)?)?;
    let config = objects
        .get("ConfigMap calico-system/cni-config")
        .context("a ConfigMap")?;
    let template = config["data"]["config"]
        .as_str()
        .context("a configuration")?;
    installs(
        file,
        &template.replace(
            "__KUBECONFIG_FILEPATH__",
            "/etc/cni/net.d/calico-kubeconfig",
        ),
    )
}

fn installs(file: &Path, conf: &str) -> Result<()> {
    write_in_place(file, conf)?;
    Ok(fs::set_permissions(file, Permissions::from_mode(0o600))?)
}

/// Writes a new token into the kubeconfig as calico-node does.
pub fn upstream_renews(kubeconfig: &Path, token: &str) -> Result<()> {
    let present = fs::read_to_string(kubeconfig)?;
    let (_, rest) = present.split_once('\n').context("a first line")?;
    let is_token = |line: &&str| line.trim().starts_with("token:");
    let old = rest.lines().find(is_token).context("a token")?;
    let renewed = rest.replace(old, &format!("    token: \"{token}\""));
    write_in_place(
        kubeconfig,
        &format!("# Kubeconfig file for Calico CNI plugin. Installed by calico/node.\n{renewed}\n"),
    )
}

/// Writes a file in two parts, so that a reader may see half of it.
fn write_in_place(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let (begin, end) = text.as_bytes().split_at(text.len() / 2);
    file.write_all(begin)?;
    Ok(file.write_all(end)?)
}
