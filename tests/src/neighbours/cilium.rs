//! Cilium with `cni.exclusive`, which is its default: after each change in the directory it writes
//! its configuration, and renames the others.

use std::fs;
use std::path::Path;

use anyhow::Result;
use nix::sys::inotify::InotifyEvent;
use serde_json::{Value, json};

use super::{EXTENSIONS_OF_RUNTIMES, Program, names, replace};

/// Cilium's configuration.
pub const CILIUM_CONF: &str = "05-cilium.conflist";

/// The network that Cilium chains its plugin to.
const NETWORK: &str = "k8s-pod-network";

/// Cilium's agent.
#[derive(Debug, Default)]
pub struct CiliumAgent {
    /// True to chain its plugin to Calico's network (`cni.chainingTarget`).
    pub chains: bool,
}

impl CiliumAgent {
    /// Returns `None` if the network to chain to has no configuration.
    fn conf(&self, directory: &Path) -> Option<Value> {
        let entry = json!({
            "type": "cilium-cni", "enable-debug": false,
            "log-file": "/var/run/cilium/cilium-cni.log",
        });
        if !self.chains {
            return Some(json!({ "cniVersion": "0.3.1", "name": "cilium", "plugins": [entry] }));
        }
        let files = names(directory, &["conflist", "conf", "json", "cilium_bak"]);
        let others = files.into_iter().filter(|name| name != CILIUM_CONF);
        let confs = others.filter_map(|name| fs::read(directory.join(name)).ok());
        let mut conf = confs
            .filter_map(|text| serde_json::from_slice::<Value>(&text).ok())
            .find(|conf| conf["name"] == NETWORK)?;
        let plugins = conf["plugins"].as_array_mut()?;
        plugins.retain(|plugin| plugin["type"] != "cilium-cni");
        plugins.push(entry);
        Some(conf)
    }
}

impl Program for CiliumAgent {
    fn act(&mut self, directory: &Path, _: &[InotifyEvent]) -> Result<usize> {
        let Some(conf) = self.conf(directory) else {
            return Ok(0);
        };
        let (own, text, mut writes) = (directory.join(CILIUM_CONF), conf.to_string(), 0);
        if !fs::read_to_string(&own).is_ok_and(|present| present == text) {
            replace(&own, &text, 0o644)?;
            writes += 1;
        }
        let others = names(directory, &EXTENSIONS_OF_RUNTIMES)
            .into_iter()
            .filter(|name| name != CILIUM_CONF);
        for name in others {
            let renamed = fs::rename(
                directory.join(&name),
                directory.join(format!("{name}.cilium_bak")),
            );
            writes += usize::from(renamed.is_ok());
        }
        Ok(writes)
    }
}
