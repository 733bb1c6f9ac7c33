//! Multus, which writes a configuration that sorts first and calls ours: its daemon ("thick") and its entry point
//! ("thin").

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use nix::sys::inotify::{AddWatchFlags, InotifyEvent};
use serde_json::{Value, json};

use super::{EXTENSIONS, Program, names};

/// Prefix of the names of Multus' own files.
const OWN: &str = "00-multus";

/// Multus' daemon, with the network's configuration as its `readinessindicatorfile`.
#[derive(Debug, Default)]
pub struct MultusDaemon {
    /// True to set the version in the network's configuration (`forceCNIVersion`).
    forces_version: bool,
    /// Number of times that the daemon ended because the `readinessindicatorfile` was gone.
    pub exits: Arc<AtomicUsize>,
    primary: Option<String>,
}

impl MultusDaemon {
    /// Creates a daemon with `forceCNIVersion`.
    pub fn with_forced_version() -> MultusDaemon {
        MultusDaemon { forces_version: true, ..MultusDaemon::default() }
    }

    /// Selects the network, and writes the first configuration.
    fn start(&mut self, directory: &Path) -> Result<usize> {
        self.primary = network(directory);
        let Some(primary) = &self.primary else { return Ok(0) };
        if self.forces_version {
            let file = directory.join(primary);
            let mut conf: Value = serde_json::from_slice(&fs::read(&file)?)?;
            conf["cniVersion"] = json!("0.3.1");
            fs::write(file, conf.to_string())?;
        }
        self.write(directory).map(|()| 1 + usize::from(self.forces_version))
    }

    fn write(&self, directory: &Path) -> Result<()> {
        let primary = self.primary.as_ref().context("a network was found")?;
        let conf: Value = serde_json::from_slice(&fs::read(directory.join(primary))?)?;
        let path = format!("/host/etc/cni/net.d/{primary}");
        let own = json!({
            "capabilities": capabilities(&conf), "cniVersion": "0.3.1", "logLevel": "verbose", "logToStderr": true,
            "name": "multus-cni-network", "clusterNetwork": path, "readinessindicatorfile": path,
            "type": "multus-shim", "daemonSocketDir": "/run/multus/socket",
        });
        Ok(fs::write(directory.join("00-multus.conf"), own.to_string())?)
    }
}

impl Program for MultusDaemon {
    fn act(&mut self, directory: &Path, events: &[InotifyEvent]) -> Result<usize> {
        let Some(primary) = self.primary.clone() else { return self.start(directory) };
        let of_primary = |event: &&InotifyEvent| event.name.as_ref().is_some_and(|name| name == primary.as_str());
        let has = |mask: AddWatchFlags| events.iter().filter(of_primary).any(|event| event.mask.intersects(mask));
        if has(AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_DELETE) {
            self.exits.fetch_add(1, Ordering::SeqCst);
            fs::remove_file(directory.join("00-multus.conf"))?;
            return self.start(directory).map(|writes| writes + 1);
        }
        if has(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MODIFY) {
            return self.write(directory).map(|()| 1);
        }
        Ok(0)
    }
}

/// Multus' entry point for nodes without its daemon. It copies the network's configuration into its own.
#[derive(Debug)]
pub struct MultusEntrypoint {
    renames: bool,
    copied: Option<String>,
}

impl MultusEntrypoint {
    /// Creates an entry point. With `renames` it also renames the network's configuration (`--rename-conf-file`).
    pub fn new(renames: bool) -> MultusEntrypoint {
        MultusEntrypoint { renames, copied: None }
    }
}

impl Program for MultusEntrypoint {
    fn act(&mut self, directory: &Path, _: &[InotifyEvent]) -> Result<usize> {
        let Some(primary) = network(directory) else { return Ok(0) };
        let Ok(text) = fs::read_to_string(directory.join(&primary)) else { return Ok(0) };
        if self.copied.as_ref() == Some(&text) {
            return Ok(0);
        }
        let conf: Value = serde_json::from_str(&text)?;
        let own = json!({ "cniVersion": conf["cniVersion"], "name": "multus-cni-network", "plugins": [{
            "type": "multus", "capabilities": capabilities(&conf), "cniConf": "/host/etc/cni/multus/net.d",
            "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig", "delegates": [conf],
        }] });
        let draft = directory.join("00-multus.conf.new");
        fs::write(&draft, own.to_string())?;
        fs::rename(draft, directory.join("00-multus.conflist"))?;
        self.copied = Some(text);
        if self.renames {
            fs::rename(directory.join(&primary), directory.join(format!("{primary}.old")))?;
        }
        Ok(1 + usize::from(self.renames))
    }
}

/// Returns the name of the first configuration that is not Multus' own.
fn network(directory: &Path) -> Option<String> {
    names(directory, &EXTENSIONS).into_iter().find(|name| !name.starts_with(OWN))
}

fn capabilities(conf: &Value) -> Value {
    let plugins = conf["plugins"].as_array().into_iter().flatten();
    let all = plugins.filter_map(|plugin| plugin["capabilities"].as_object()).flatten();
    Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect())
}
