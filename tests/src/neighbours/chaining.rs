//! Running programs that chain their plugin into the configuration: istio-cni's agent and
//! linkerd-cni's installer.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;
use nix::sys::inotify::{AddWatchFlags, InotifyEvent};
use serde_json::Value;

use super::{EXTENSIONS, Neighbour, Program, has, names, plugin, replace};

/// The file that istio-cni with `istioOwnedCNIConfig` writes.
pub const ISTIO_OWNED: &str = "02-istio-cni.conflist";

/// istio-cni's agent. After each change it ensures that the first valid configuration, or its copy,
/// contains its entry.
#[derive(Debug, Default)]
pub struct IstioAgent {
    /// True to write a copy of the first configuration, with its entry added
    /// (`istioOwnedCNIConfig`). False to add the entry to the file itself.
    pub is_owner: bool,
}

impl Program for IstioAgent {
    fn act(&mut self, directory: &Path, _: &[InotifyEvent]) -> Result<usize> {
        let is_own = |name: &str| self.is_owner && name == ISTIO_OWNED;
        let mut texts = names(directory, &EXTENSIONS)
            .into_iter()
            .filter(|name| !is_own(name))
            .filter_map(|name| {
                let text = fs::read_to_string(directory.join(&name)).ok()?;
                serde_json::from_str::<Value>(&text)
                    .is_ok()
                    .then_some((name, text))
            });
        let Some((name, text)) = texts.next() else {
            return Ok(0);
        };
        if !self.is_owner {
            let is_right = plugin(&text, Neighbour::Istio.kind()) == Neighbour::Istio.entry();
            // Another program may be writing the file, and the agent tries again after the next
            // event.
            let writes = !is_right && Neighbour::Istio.chains_into(&directory.join(name)).is_ok();
            return Ok(usize::from(writes));
        }
        let (own, (text, _)) = (
            directory.join(ISTIO_OWNED),
            Neighbour::Istio.extended(&text)?,
        );
        if fs::read_to_string(&own).is_ok_and(|present| present == text) {
            return Ok(0);
        }
        replace(&own, &text, 0o600)?;
        Ok(1)
    }
}

/// linkerd-cni's installer. It adds its entry to each configuration that another program writes,
/// and remembers its texts.
#[derive(Debug, Default)]
pub struct LinkerdInstaller {
    written: BTreeMap<String, String>,
}

impl LinkerdInstaller {
    fn extend(&mut self, file: &Path, name: &str) -> Result<usize> {
        let Ok(text) = fs::read_to_string(file) else {
            return Ok(0);
        };
        if self.written.get(name) == Some(&text) {
            return Ok(0);
        }
        // jq fails for a file that another program is writing.
        let Ok((extended, _)) = Neighbour::Linkerd.extended(&text) else {
            return Ok(0);
        };
        self.written.insert(name.to_owned(), extended);
        Neighbour::Linkerd.chains_into(file)?;
        Ok(1)
    }
}

impl Program for LinkerdInstaller {
    fn act(&mut self, directory: &Path, events: &[InotifyEvent]) -> Result<usize> {
        let mut writes = 0;
        if events.is_empty() {
            // At the start the installer moves a copy of each file over the file, from another file
            // system, and then acts on the events that this causes.
            for name in names(directory, &EXTENSIONS) {
                let (file, text) = (
                    directory.join(&name),
                    fs::read_to_string(directory.join(&name))?,
                );
                fs::remove_file(&file)?;
                fs::write(&file, text)?;
                writes += 1;
            }
            return Ok(writes);
        }
        let arrivals =
            AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MODIFY;
        for event in events
            .iter()
            .filter(|event| event.mask.intersects(arrivals))
        {
            let name = event
                .name
                .as_ref()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            if has(&name, &EXTENSIONS) {
                writes += self.extend(&directory.join(&name), &name)?;
            }
        }
        Ok(writes)
    }
}
