//! The files of the runtime's directory: [`Target`], the file to write, and [`Former`], a configuration that the new
//! one replaces under another name.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{is_calicos, is_ours_in, is_read};
use crate::layout::Place;
use crate::plugin_chain::{Chain, chain_of};
use crate::regular_file;
use crate::settings::Settings;
use crate::state::{Installed, State};

/// The file to write, and the state's record of the present one.
#[derive(Debug, Clone)]
pub struct Target {
    /// The directory.
    pub directory: PathBuf,
    /// The file name.
    pub name: String,
    /// The mode that the file has at least.
    pub mode: u32,
    /// The state's record of the file. It is empty on the first run, and if no state is kept.
    pub recorded: Installed,
}

impl Target {
    /// Returns the file that the settings name. An exception is a single plugin in a `.conf` file that istio-cni or
    /// linkerd-cni converted to a list: the list stays in a `.conflist` file, because runtimes read no list from
    /// `.conf`.
    pub fn new(directory: &Path, settings: &Settings, state: &State) -> Target {
        let target = |name: String| Target {
            directory: directory.to_owned(),
            mode: settings.conf_mode,
            recorded: state.get(Place::Net, &name).cloned().unwrap_or_default(),
            name,
        };
        let named = target(settings.conf_name.clone());
        if !named.name.ends_with(".conf") {
            return named;
        }
        let mut list = target(format!("{}list", named.name));
        if list.recorded == Installed::default() {
            list.recorded = named.recorded.clone();
        }
        match regular_file::contents(&list.path()) {
            Ok(text) if is_extended(&text, &list.recorded) => list,
            _ => named,
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Returns true if the text is a configuration, or if it is missing as expected. Otherwise another program may be
    /// writing the file at this moment.
    pub(super) fn is_whole(&self, there: Option<&[u8]>) -> bool {
        match there {
            Some(text) => chain_of(text).is_some(),
            None => self.recorded.digest.is_none(),
        }
    }
}

/// Returns true if the text is a list with Calico's plugin and foreign entries.
fn is_extended(text: &[u8], recorded: &Installed) -> bool {
    let Some(there) = chain_of(text) else { return false };
    is_calicos(text) && there.is_list && !there.foreign(&Chain::default(), &recorded.renderings).is_empty()
}

/// A configuration to remove once the new one is in place.
#[derive(Debug, Clone)]
pub struct Former {
    /// The file name, as recorded in the state.
    pub name: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The state's record of the file.
    pub recorded: Installed,
}

impl Former {
    /// Returns the configurations to remove: the file that `CNI_OLD_CONF_NAME` names if it is one of Calico's
    /// (INST-31), and files that earlier runs wrote under other names unless our part was changed since. The records of
    /// missing files are dropped.
    pub fn find(target: &Target, settings: &Settings, state: &mut State) -> Vec<Former> {
        let former = |name: &String, state: &State| Former {
            name: name.clone(),
            path: target.directory.join(name),
            recorded: state.get(Place::Net, name).cloned().unwrap_or_default(),
        };
        let mut all = Vec::new();
        let old = &settings.old_conf_name;
        if !is_read(old) && target.directory.join(old).is_file() {
            // Cilium renames the configurations of other networks in this way (`.cilium_bak`).
            tracing::warn!("keeping {old}, which CNI_OLD_CONF_NAME names: runtimes read no file of this name");
        } else if !old.is_empty() && *old != target.name {
            let former = former(old, state);
            match regular_file::contents(&former.path) {
                Ok(text) if is_calicos(&text) => all.push(former),
                Ok(_) => {
                    tracing::warn!(
                        "keeping {}, which CNI_OLD_CONF_NAME names: the file is not Calico's",
                        former.path.display()
                    )
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => warn_unreadable(&former.path, &error),
            }
        }
        for name in stale(state, &target.name) {
            let former = former(&name, state);
            match regular_file::contents(&former.path) {
                _ if all.iter().any(|known| known.name == name) => {}
                Ok(text) if is_ours_in(&text, &former.recorded) => all.push(former),
                Ok(_) => {
                    tracing::warn!("keeping {}: the file was changed after the installation", former.path.display())
                }
                Err(error) if error.kind() == ErrorKind::NotFound => state.forget(Place::Net, &name),
                Err(error) => warn_unreadable(&former.path, &error),
            }
        }
        all
    }

    /// Returns the present content of the file.
    pub fn text(&self) -> Option<Vec<u8>> {
        regular_file::contents(&self.path).ok()
    }
}

fn warn_unreadable(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "cannot read an old configuration; keeping the file");
}

/// Returns the configurations that are recorded under other names.
fn stale(state: &State, name: &str) -> Vec<String> {
    let recorded = state.files.get(&Place::Net).into_iter().flat_map(|files| files.keys());
    recorded.filter(|recorded| *recorded != name && is_read(recorded)).cloned().collect()
}
