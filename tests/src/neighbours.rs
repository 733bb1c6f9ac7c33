//! Programs that chain their plugins into another network's configuration, as istio-cni (1.2x, `chained: true`) and
//! linkerd-cni do.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// A program that adds its plugin to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// istio-cni: sorts keys as Go does, and renames a new file over the configuration.
    Istio,
    /// linkerd-cni: writes with `jq` and moves the file from another file system, which deletes the configuration and
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
                "type": "istio-cni", "name": "istio-cni", "plugin_log_level": "info", "ipam": {}, "dns": {},
                "ambient_enabled": true, "enable_ambient_detection_retry": false, "native_nftables": false,
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
                "linkerd": { "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": 2102,
                             "inbound-ports-to-ignore": ["4191", "4190"], "simulate": false, "ipv6": true },
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

    /// Adds the program's entry as the last one, or replaces an existing entry. Converts a single plugin into a list,
    /// and its `.conf` file into a `.conflist`.
    pub fn chains_into(self, file: &Path) -> Result<()> {
        let mut conf: Value = serde_json::from_slice(&fs::read(file)?).context("no JSON")?;
        let is_list = conf.get("type").is_none();
        if !is_list {
            conf.as_object_mut().context("no object")?.remove("cniVersion");
            conf = json!({ "name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [conf] });
        }
        let plugins = conf["plugins"].as_array_mut().context("no list")?;
        plugins.retain(|plugin| plugin["type"] != self.kind());
        plugins.push(self.entry());
        let text = format!("{}\n", serde_json::to_string_pretty(&conf)?);
        let target = if is_list { file.to_owned() } else { file.with_extension("conflist") };
        match self {
            Neighbour::Istio => {
                let draft = file.with_extension("tmp.istio");
                fs::write(&draft, text)?;
                fs::set_permissions(&draft, Permissions::from_mode(0o644))?;
                fs::rename(&draft, file)?;
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
}

/// Returns the types of the plugins in a configuration, in order.
pub fn kinds(text: &str) -> Vec<String> {
    let conf: Value = serde_json::from_str(text).unwrap_or_default();
    let kind = |plugin: &Value| plugin["type"].as_str().unwrap_or_default().to_owned();
    conf["plugins"].as_array().into_iter().flatten().map(kind).collect()
}

/// Returns the first plugin of a type in a configuration; null if there is none.
pub fn plugin(text: &str, kind: &str) -> Value {
    let conf: Value = serde_json::from_str(text).unwrap_or_default();
    conf["plugins"].as_array().into_iter().flatten().find(|plugin| plugin["type"] == kind).cloned().unwrap_or_default()
}
