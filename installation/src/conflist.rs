//! The network configuration in the runtime's directory: recognizes configurations of Calico's and
//! the entries that this installer wrote into them, and lists configurations in the order of
//! container runtimes.
//!
//! The installer writes its configuration after the other files, because runtimes report the node's
//! network as ready as soon as the configuration exists (INST-7). Then it removes earlier
//! configurations of other names. Read `configuration`, then `write`.

mod configuration;
mod files;
mod included;
mod selection;
mod write;

use std::path::Path;
use std::{fs, io};

use libcalico::failure::Failure;
use serde_json::{Map, Value};

pub use self::configuration::{ChainProgram, Conflist};
pub use self::files::CILIUM_BACKUP;
pub use self::files::{FormerConfig, Target};
pub use self::included::CILIUM_REMEDY;
pub use self::included::{CILIUM, COPYING, MULTUS, delegate_names};
pub use self::selection::{Selection, warn_if_not_selected};
pub use self::write::Written;
pub use self::write::is_backup;
use crate::digest;
use crate::plugin_chain::{Chain, Entry, read_chain};
use crate::state::InstalledFile;
use crate::template::{self, kind, plugins};

#[cfg(test)]
mod tests;

/// Parses a configuration that other programs may have written. Not all values fit into a
/// [`Value`].
///
/// # Errors
/// Returns an error if the text is not a JSON object.
pub fn parse(text: &str) -> Result<Map<String, Value>, Failure> {
    template::parse(text).or_else(|error| {
        read_chain(text.as_bytes())
            .map(|chain| chain.to_list())
            .ok_or(error)
    })
}

/// Returns true if the text is the installed configuration, with or without entries of other
/// programs.
#[must_use]
pub fn is_installed_in(text: &[u8], recorded: &InstalledFile) -> bool {
    let is_complete = |present: &Chain| {
        recorded
            .renderings
            .iter()
            .any(|rendering| rendering.is_complete_in(present))
    };
    recorded.has_digest(&digest::of_bytes(text))
        || read_chain(text).is_some_and(|present| is_complete(&present))
}

/// Returns true if the text is the installed one and contains no entry of another program. The
/// rendered text may contain the same entry that another program added before.
fn has_only_our_entries(text: &[u8], recorded: &InstalledFile) -> bool {
    recorded.has_digest(&digest::of_bytes(text))
        && recorded
            .renderings
            .iter()
            .all(|known| known.foreign.is_empty())
}

/// Returns the entries that other programs added to the installed configuration.
#[must_use]
pub fn foreign_entries(text: &[u8], recorded: &InstalledFile) -> Vec<Entry> {
    if has_only_our_entries(text, recorded) {
        return Vec::new();
    }
    read_chain(text)
        .map(|present| present.foreign(&Chain::default(), &recorded.renderings))
        .unwrap_or_default()
}

/// Returns true if a configuration contains Calico's plugin, or a plugin that delegates to it, as
/// Canal's does. Returns false for a text that is not a JSON object.
#[must_use]
pub fn has_calico(text: impl AsRef<[u8]>) -> bool {
    let Some(chain) = read_chain(text.as_ref()) else {
        return false;
    };
    let is_calico = |plugin: &Map<String, Value>| kind(plugin) == "calico";
    let calls_calico = |plugin: &Map<_, _>| {
        plugin
            .get("delegate")
            .and_then(Value::as_object)
            .is_some_and(is_calico)
    };
    plugins(&chain.to_list())
        .into_iter()
        .any(|plugin| is_calico(plugin) || calls_calico(plugin))
}

/// Returns the names of the files in `directory` that a runtime reads, in its order. The runtime
/// uses the first one (INST-160).
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn candidates(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_read_by_runtimes(&name) && !entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns true if a runtime reads a file of this name, which depends on the last extension only. A
/// leading dot does not hide a file (INST-159).
pub fn is_read_by_runtimes(name: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, extension)| matches!(extension, "conf" | "conflist" | "json"))
}
