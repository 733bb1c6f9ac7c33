//! The network configuration in the runtime's directory: the last file to be written, as it makes the node's network ready
//! (INST-7), and the only one that may take others away (INST-31).

mod selection;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use netconf::NetConf;
use serde_json::{Map, Value};

pub use self::selection::warn_if_not_chosen;
use crate::atomic_file::{self, AtomicFileError, Change};
use crate::digest;
use crate::layout::{Layout, Place};
use crate::node_conf;
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
    /// Calico's plugins would refuse it, and every pod's ADD and DEL with it.
    #[error(
        "{name} is not written, as Calico's plugin would refuse it: {reason}; correct the template, or the variable that is \
         filled in there"
    )]
    Refused {
        /// What it would be called.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// A configuration that runtimes can read. Not for logs: its text may hold a token (INST-35).
#[derive(Clone)]
pub struct Conflist {
    /// Its bytes.
    pub text: String,
    /// What it says.
    pub conf: Map<String, Value>,
    /// What `calico` or `calico-ipam` reads there, with the paths by which this process finds what it names; `None` without
    /// them.
    pub calicos: Option<NetConf>,
    /// SHA-256 of the text without the pod's token, where that is in it.
    pub origin: Option<String>,
}

impl Conflist {
    /// Fills in the template.
    ///
    /// # Errors
    /// There is no template, or it becomes no JSON object, or one that Calico's plugin cannot read.
    pub fn render(settings: &Settings, values: &Values, layout: &Layout) -> Result<Conflist, ConflistError> {
        let template = match &settings.template {
            Template::BuiltIn => template::BUILT_IN.to_owned(),
            Template::Text(text) => text.clone(),
            // The container's, not the node's.
            Template::File(file) => {
                let path = layout.path(file);
                fs::read_to_string(&path).map_err(|source| ConflistError::TemplateFile { path, source })?
            }
        };
        let text = values.fill(&template);
        let conf = template::parse(&text)?;
        let calicos = calicos(&conf, layout, Path::new(&settings.net_dir));
        let refused = |reason| ConflistError::Refused { name: settings.conf_name.clone(), reason };
        let without_token = values.clone().with_token(String::new()).fill(&template);
        let origin = (without_token != text).then(|| digest::of_bytes(without_token.as_bytes()));
        Ok(Conflist { text, conf, calicos: calicos.map_err(refused)?, origin })
    }

    /// The name of the network.
    #[must_use]
    pub fn network(&self) -> &str {
        self.conf.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Notes that it is going to be written, beside what it takes the place of.
    pub fn note(&self, directory: &Path, settings: &Settings, state: &mut State) {
        let name = &settings.conf_name;
        let there = digest::of_file(&directory.join(name)).ok();
        state.note_over(Place::Net, name, self.digest(), there.as_deref());
        state.note_origin(Place::Net, name, self.origin.clone());
    }

    /// Notes that it is there.
    pub fn note_written(&self, settings: &Settings, state: &mut State) {
        state.note(Place::Net, &settings.conf_name, Some(self.digest()), false);
        state.note_origin(Place::Net, &settings.conf_name, self.origin.clone());
    }

    /// Whether it is the one that is noted, whatever token the pod had then.
    #[must_use]
    pub fn is_noted(&self, settings: &Settings, state: &State) -> bool {
        let noted = state.get(Place::Net, &settings.conf_name);
        noted.is_some_and(|noted| noted.is(&self.digest()) || self.origin.is_some() && self.origin == noted.origin)
    }

    fn digest(&self) -> String {
        digest::of_bytes(self.text.as_bytes())
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

/// What Calico's plugins read in a configuration; `None` where none of them is in there: templates of any kind are put in place,
/// those of other plugins as well.
fn calicos(conf: &Map<String, Value>, layout: &Layout, net_dir: &Path) -> Result<Option<NetConf>, String> {
    let plugin = node_conf::plugin(Value::Object(conf.clone()), |path| layout.of_node(path, net_dir)).ok();
    plugin.map(node_conf::read).transpose()
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
