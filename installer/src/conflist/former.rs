//! [`Former`]: a configuration that the new one replaces under another name.

use std::io::ErrorKind;
use std::path::PathBuf;

use super::ownership::{is_calicos, is_ours_in};
use super::target::Target;
use crate::active_config::is_read;
use crate::layout::Place;
use crate::regular_file;
use crate::settings::Settings;
use crate::state::{Installed, State};

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
            tracing::warn!("{old} stays: runtimes read no file of this name; CNI_OLD_CONF_NAME names it");
        } else if !old.is_empty() && *old != target.name {
            let former = former(old, state);
            match regular_file::contents(&former.path) {
                Ok(text) if is_calicos(&text) => all.push(former),
                Ok(_) => {
                    tracing::warn!("{} is not Calico's and stays; CNI_OLD_CONF_NAME names it", former.path.display())
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %former.path.display(), %error, "an old configuration cannot be read");
                }
            }
        }
        for name in stale(state, &target.name) {
            let former = former(&name, state);
            match regular_file::contents(&former.path) {
                _ if all.iter().any(|known| known.name == name) => {}
                Ok(text) if is_ours_in(&text, &former.recorded) => all.push(former),
                Ok(_) => tracing::warn!("{} was changed since it was installed and stays", former.path.display()),
                Err(error) if error.kind() == ErrorKind::NotFound => state.forget(Place::Net, &name),
                Err(error) => {
                    tracing::warn!(path = %former.path.display(), %error, "an old configuration cannot be read");
                }
            }
        }
        all
    }

    /// Returns the present content of the file.
    pub fn text(&self) -> Option<Vec<u8>> {
        regular_file::contents(&self.path).ok()
    }
}

/// Returns the configurations that are recorded under other names.
fn stale(state: &State, name: &str) -> Vec<String> {
    let recorded = state.files.get(&Place::Net).into_iter().flat_map(|files| files.keys());
    recorded.filter(|recorded| *recorded != name && is_read(recorded)).cloned().collect()
}
