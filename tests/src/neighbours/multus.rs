//! Multus, which writes a configuration that sorts first and calls ours: its daemon ("thick") and
//! its entry point ("thin").

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

/// The file of a single plugin.
const CONF: &str = "00-multus.conf";

/// The network in Multus' own files.
const NETWORK: &str = "multus-cni-network";

/// Multus' daemon.
#[derive(Debug, Default)]
pub struct MultusDaemon {
    /// True if the network's configuration is the `readinessindicatorfile`.
    is_indicated: bool,
    /// True to set the version in the network's configuration (`forceCNIVersion`).
    forces_version: bool,
    /// Number of times that the daemon ended because the `readinessindicatorfile` was gone.
    pub exits: Arc<AtomicUsize>,
    primary: Option<String>,
}

impl MultusDaemon {
    /// Creates a daemon with the network's configuration as its `readinessindicatorfile`.
    pub fn with_indicator() -> MultusDaemon {
        MultusDaemon {
            is_indicated: true,
            ..MultusDaemon::default()
        }
    }

    /// Creates a daemon with `forceCNIVersion`.
    pub fn with_forced_version() -> MultusDaemon {
        MultusDaemon {
            forces_version: true,
            ..MultusDaemon::default()
        }
    }

    /// Removes the daemon's configuration, as the daemon does at its end.
    pub fn leaves(directory: &Path) -> Result<()> {
        Ok(fs::remove_file(directory.join(CONF))?)
    }

    /// Selects the network, and writes the first configuration.
    fn start(&mut self, directory: &Path) -> Result<usize> {
        self.primary = network(directory);
        let Some(primary) = &self.primary else {
            return Ok(0);
        };
        if self.forces_version {
            let file = directory.join(primary);
            let mut conf: Value = serde_json::from_slice(&fs::read(&file)?)?;
            conf["cniVersion"] = json!("0.3.1");
            fs::write(file, conf.to_string())?;
        }
        self.write(directory)
            .map(|()| 1 + usize::from(self.forces_version))
    }

    /// Writes the configuration, which is empty if that of the network is incomplete.
    fn write(&self, directory: &Path) -> Result<()> {
        let primary = self.primary.as_ref().context("a network was found")?;
        let text = fs::read(directory.join(primary)).unwrap_or_default();
        let conf = serde_json::from_slice::<Value>(&text);
        let own = conf
            .map(|conf| self.conf(primary, &conf).to_string())
            .unwrap_or_default();
        Ok(fs::write(directory.join(CONF), own)?)
    }

    fn conf(&self, primary: &str, network: &Value) -> Value {
        let path = format!("/host/etc/cni/net.d/{primary}");
        let mut own = json!({
            "capabilities": capabilities(network), "cniVersion": "0.3.1", "logLevel": "verbose",
            "logToStderr": true,
            "name": NETWORK, "clusterNetwork": path, "type": "multus-shim",
            "daemonSocketDir": "/run/multus/socket",
        });
        if self.is_indicated {
            own["readinessindicatorfile"] = json!(path);
        }
        own
    }
}

impl Program for MultusDaemon {
    fn act(&mut self, directory: &Path, events: &[InotifyEvent]) -> Result<usize> {
        let Some(primary) = self.primary.clone() else {
            return self.start(directory);
        };
        let of_primary = |event: &&InotifyEvent| {
            event
                .name
                .as_ref()
                .is_some_and(|name| name == primary.as_str())
        };
        let has = |mask: AddWatchFlags| {
            events
                .iter()
                .filter(of_primary)
                .any(|event| event.mask.intersects(mask))
        };
        if self.is_indicated {
            // The daemon ignores the other changes of its `readinessindicatorfile`.
            if !has(AddWatchFlags::IN_MOVED_FROM | AddWatchFlags::IN_DELETE) {
                return Ok(0);
            }
            self.exits.fetch_add(1, Ordering::SeqCst);
            MultusDaemon::leaves(directory)?;
            return self.start(directory).map(|writes| writes + 1);
        }
        if has(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MODIFY) {
            return self.write(directory).map(|()| 1);
        }
        Ok(0)
    }
}

/// Multus' entry point for nodes without its daemon, with `--cleanup-config-on-exit`. It copies the
/// network's configuration into its own.
#[derive(Debug)]
pub struct MultusEntrypoint {
    renames: bool,
    copied: Option<String>,
}

impl MultusEntrypoint {
    /// Creates an entry point. With `renames` it also renames the network's configuration
    /// (`--rename-conf-file`).
    pub fn new(renames: bool) -> MultusEntrypoint {
        MultusEntrypoint {
            renames,
            copied: None,
        }
    }
}

impl Program for MultusEntrypoint {
    fn act(&mut self, directory: &Path, _: &[InotifyEvent]) -> Result<usize> {
        let Some(primary) = network(directory) else {
            return Ok(0);
        };
        let Ok(text) = fs::read_to_string(directory.join(&primary)) else {
            return Ok(0);
        };
        if self.copied.as_ref() == Some(&text) {
            return Ok(0);
        }
        // The entry point ends if the text is incomplete, and its container starts again.
        self.copied = None;
        let Ok(conf) = serde_json::from_str::<Value>(&text) else {
            return Ok(0);
        };
        let version = &conf["cniVersion"];
        let mut plugin = json!({
            "type": "multus", "capabilities": capabilities(&conf),
            "cniConf": "/host/etc/cni/multus/net.d",
            "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig", "delegates": [conf],
        });
        // The entry point writes a list for this version only.
        let (name, own) = if version == "1.0.0" {
            (
                "00-multus.conflist",
                json!({ "cniVersion": version, "name": NETWORK, "plugins": [plugin] }),
            )
        } else {
            plugin["cniVersion"] = version.clone();
            plugin["name"] = json!(NETWORK);
            (CONF, plugin)
        };
        let draft = directory.join("00-multus.conf.new");
        fs::write(&draft, own.to_string())?;
        fs::rename(draft, directory.join(name))?;
        self.copied = Some(text);
        if self.renames {
            fs::rename(
                directory.join(&primary),
                directory.join(format!("{primary}.old")),
            )?;
        }
        Ok(1 + usize::from(self.renames))
    }

    /// Returns true. The entry point looks each second, this program each millisecond.
    fn polls(&self) -> bool {
        true
    }
}

/// Returns the name of the first configuration that is not Multus' own.
fn network(directory: &Path) -> Option<String> {
    names(directory, &EXTENSIONS)
        .into_iter()
        .find(|name| !name.starts_with(OWN))
}

fn capabilities(conf: &Value) -> Value {
    let plugins = conf["plugins"].as_array().into_iter().flatten();
    let all = plugins
        .filter_map(|plugin| plugin["capabilities"].as_object())
        .flatten();
    Value::Object(
        all.map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}
