//! The network configuration in the runtime's directory: the last file to be written, as it makes the node's network ready
//! (INST-7), and the only one that may take others away (INST-31).

mod selection;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use self::selection::warn_if_not_chosen;
use crate::atomic_file::{self, AtomicFileError, Change};
use crate::digest;
use crate::layout::Place;
use crate::runtime_choice::is_read;
use crate::settings::{Settings, Template};
use crate::state::State;
use crate::template::{self, TemplateError, Values, kind, plugins};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConflistError {
    /// The file of the template cannot be read.
    #[error("CNI_NETWORK_CONFIG_FILE: cannot read {}: {source}", .path.display())]
    TemplateFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What the template became.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// A configuration that runtimes can read. Not for logs: its text may hold a token (INST-35).
#[derive(Clone, PartialEq)]
pub struct Conflist {
    /// Its bytes.
    pub text: String,
    /// What it says.
    pub conf: Map<String, Value>,
}

impl Conflist {
    /// Fills in the template. A template file is looked for with `read`, as its path is the container's.
    ///
    /// # Errors
    /// There is no template, or it becomes no JSON object.
    pub fn render(
        settings: &Settings,
        values: &Values,
        path_of: impl Fn(&Path) -> PathBuf,
    ) -> Result<Conflist, ConflistError> {
        let template = match &settings.template {
            Template::BuiltIn => template::BUILT_IN.to_owned(),
            Template::Text(text) => text.clone(),
            Template::File(file) => {
                let path = path_of(file);
                fs::read_to_string(&path).map_err(|source| ConflistError::TemplateFile { path, source })?
            }
        };
        let text = values.fill(&template);
        let conf = template::parse(&text)?;
        Ok(Conflist { text, conf })
    }

    /// The name of the network.
    #[must_use]
    pub fn network(&self) -> &str {
        self.conf.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Notes that it is going to be written.
    pub fn note(&self, directory: &Path, settings: &Settings, state: &mut State) {
        let name = &settings.conf_name;
        let there = digest::of_file(&directory.join(name)).ok();
        let replaces = there.is_some_and(|there| !state.is_ours(Place::Net, name, &there));
        state.note(Place::Net, name, Some(digest::of_bytes(self.text.as_bytes())), replaces);
    }

    /// Whether it is there already, as it should be.
    #[must_use]
    pub fn is_written(&self, directory: &Path, settings: &Settings) -> bool {
        atomic_file::is_so(&directory.join(&settings.conf_name), self.text.as_bytes(), settings.conf_mode)
    }

    /// Puts it in place.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, directory: &Path, settings: &Settings) -> Result<Change, AtomicFileError> {
        atomic_file::replace(&directory.join(&settings.conf_name), self.text.as_bytes(), settings.conf_mode)
    }
}

/// Removes configurations that this one takes the place of: the one that `CNI_OLD_CONF_NAME` names if it is one of Calico's,
/// and those that earlier runs wrote under another name, if nobody changed them since.
pub fn remove_old(directory: &Path, settings: &Settings, state: &mut State) {
    let old = &settings.old_conf_name;
    if !old.is_empty() && *old != settings.conf_name {
        let path = directory.join(old);
        match fs::read_to_string(&path) {
            Ok(text) if is_calicos(&text) => remove(&path, old, state),
            Ok(_) => tracing::warn!("{} is not Calico's and stays; CNI_OLD_CONF_NAME names it", path.display()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "an old configuration cannot be read"),
        }
    }
    for name in stale(state, settings) {
        let path = directory.join(&name);
        match digest::of_file(&path) {
            Ok(digest) if state.is_ours(Place::Net, &name, &digest) => remove(&path, &name, state),
            Ok(_) => tracing::warn!("{} was changed since it was installed and stays", path.display()),
            Err(_) => state.forget(Place::Net, &name),
        }
    }
}

/// Configurations that are noted under other names.
fn stale(state: &State, settings: &Settings) -> Vec<String> {
    let noted = state.files.get(&Place::Net).into_iter().flat_map(|files| files.keys());
    noted.filter(|name| **name != settings.conf_name && is_read(name)).cloned().collect()
}

fn remove(path: &Path, name: &str, state: &mut State) {
    match fs::remove_file(path) {
        Ok(()) => {
            tracing::info!("removed {}", path.display());
            state.forget(Place::Net, name);
        }
        Err(error) => tracing::warn!(path = %path.display(), %error, "an old configuration cannot be removed"),
    }
}

/// Whether Calico's plugin is in a configuration, or is delegated to from there (canal).
#[must_use]
pub fn is_calicos(text: &str) -> bool {
    let Ok(conf) = template::parse(text) else { return false };
    let is_calico = |plugin: &Map<String, Value>| kind(plugin) == "calico";
    plugins(&conf)
        .into_iter()
        .any(|plugin| is_calico(plugin) || plugin.get("delegate").and_then(Value::as_object).is_some_and(is_calico))
}

#[cfg(test)]
mod tests;
