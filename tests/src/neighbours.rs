//! Programs that read and write the same configuration directory as ours, such as a [`Neighbour`],
//! which chains its plugin into another network's configuration. A [`Running`] program acts on
//! changes in the directory. docs/neighbors.md has the sources.

mod chaining;
mod cilium;
mod multus;
mod own_writes;
mod pod_starts;
mod running;
mod upstream;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use chaining::{ISTIO_OWNED, IstioAgent, LinkerdInstaller};
pub use cilium::{CILIUM_CONF, CiliumAgent};
pub use multus::{MultusDaemon, MultusEntrypoint};
pub use own_writes::OwnWrites;
pub use pod_starts::PodStarts;
pub use running::{Program, Running, settle};
pub use upstream::{UPSTREAM_CONF, operator_installs, upstream_installs, upstream_renews};

/// A program that adds its plugin to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// istio-cni: sorts keys as Go does, and renames a new file over the configuration.
    Istio,
    /// linkerd-cni: moves the file from another file system, which deletes the configuration and
    /// creates it again.
    Linkerd,
}

impl Neighbour {
    /// Both programs.
    pub const ALL: [Neighbour; 2] = [Neighbour::Istio, Neighbour::Linkerd];

    /// Returns the entry that the program adds.
    pub fn entry(self) -> Value {
        match self {
            Neighbour::Istio => json!({
                "type": "istio-cni", "name": "istio-cni", "plugin_log_level": "info", "ipam": {},
                "dns": {},
                "ambient_enabled": true, "enable_ambient_detection_retry": false,
                "native_nftables": false,
                "enablement_selectors": [
                    { "podSelector": { "matchLabels": { "istio.io/dataplane-mode": "ambient" } } },
                ],
                "exclude_namespaces": ["kube-system"], "cni_agent_run_dir": "/var/run/istio-cni",
                "pod_namespace": "istio-system",
            }),
            Neighbour::Linkerd => json!({
                "name": "linkerd-cni", "type": "linkerd-cni", "log_level": "info",
                "policy": { "type": "k8s",
                            "k8s_api_root": "https://__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__",
                            "k8s_auth_token": "__SERVICEACCOUNT_TOKEN__" },
                "kubernetes": { "kubeconfig": "/etc/cni/net.d/ZZZ-linkerd-cni-kubeconfig" },
                "linkerd": { "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140,
                    "proxy-uid": 2102,
                             "inbound-ports-to-ignore": ["4191", "4190"], "simulate": false,
                             "ipv6": true },
            }),
        }
    }

    /// Returns the type of the program's plugin.
    pub fn kind(self) -> &'static str {
        match self {
            Neighbour::Istio => "istio-cni",
            Neighbour::Linkerd => "linkerd-cni",
        }
    }

    /// Returns a configuration with the program's entry as the last one, and true if the
    /// configuration was a list.
    pub fn extended(self, present: &str) -> Result<(String, bool)> {
        let mut conf: Value = serde_json::from_str(present).context("no JSON")?;
        let is_list = conf.get("type").is_none();
        if !is_list {
            conf.as_object_mut()
                .context("no object")?
                .remove("cniVersion");
            conf = json!({ "name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [conf] });
        }
        let plugins = conf["plugins"].as_array_mut().context("no list")?;
        plugins.retain(|plugin| plugin["type"] != self.kind());
        plugins.push(self.entry());
        Ok((
            format!("{}\n", serde_json::to_string_pretty(&conf)?),
            is_list,
        ))
    }

    /// Adds the program's entry as the last one. Converts a single plugin into a list, and its
    /// `.conf` file into a `.conflist`.
    pub fn chains_into(self, file: &Path) -> Result<()> {
        let (text, is_list) = self.extended(&fs::read_to_string(file)?)?;
        let target = if is_list {
            file.to_owned()
        } else {
            file.with_extension("conflist")
        };
        match self {
            Neighbour::Istio => {
                replace(file, &text, 0o644)?;
                if !is_list {
                    fs::rename(file, target)?;
                }
            }
            Neighbour::Linkerd => {
                fs::remove_file(file)?;
                fs::write(&target, text)?;
                fs::set_permissions(&target, Permissions::from_mode(0o644))?;
            }
        }
        Ok(())
    }

    /// Removes the program's entry, as the program does when its DaemonSet is deleted.
    pub fn leaves(self, file: &Path) -> Result<()> {
        let mut conf: Value = serde_json::from_slice(&fs::read(file)?)?;
        conf["plugins"]
            .as_array_mut()
            .context("no list")?
            .retain(|plugin| plugin["type"] != self.kind());
        let text = serde_json::to_string_pretty(&conf)?;
        match self {
            Neighbour::Istio => replace(file, &text, 0o644),
            Neighbour::Linkerd => Ok(fs::write(file, text)?),
        }
    }
}

/// Replaces a file by a rename of a new one beside it.
fn replace(file: &Path, text: &str, mode: u32) -> Result<()> {
    let draft = file.with_added_extension("neighbor");
    fs::write(&draft, text)?;
    fs::set_permissions(&draft, Permissions::from_mode(mode))?;
    Ok(fs::rename(&draft, file)?)
}

/// Extensions of the configurations that istio-cni, linkerd-cni and Multus read.
const EXTENSIONS: [&str; 2] = ["conf", "conflist"];

/// Extensions of the configurations that runtimes read.
const EXTENSIONS_OF_RUNTIMES: [&str; 3] = ["conf", "conflist", "json"];

fn names(directory: &Path, extensions: &[&str]) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| has(name, extensions))
        .collect();
    names.sort();
    names
}

fn has(name: &str, extensions: &[&str]) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, extension)| extensions.contains(&extension))
}

/// Returns the types of the plugins in a configuration, in order.
pub fn kinds(text: &str) -> Vec<String> {
    plugins(text)
        .iter()
        .map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Returns the first plugin of a type in a configuration, or null.
pub fn plugin(text: &str, kind: &str) -> Value {
    plugins(text)
        .into_iter()
        .find(|plugin| plugin["type"] == kind)
        .unwrap_or_default()
}

/// Returns the plugins in a configuration, which is a list or a single plugin.
fn plugins(text: &str) -> Vec<Value> {
    let conf: Value = serde_json::from_str(text).unwrap_or_default();
    match conf["plugins"].as_array() {
        Some(plugins) => plugins.clone(),
        None => Some(conf)
            .filter(|conf| conf["type"].is_string())
            .into_iter()
            .collect(),
    }
}
