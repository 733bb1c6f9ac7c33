//! The network configuration in the runtime's directory: the last file to be written, as it makes the node's network
//! ready (INST-7), and the only one that may take others away (INST-31).

mod chain;
mod copies;
mod document;
mod former;
mod placing;
mod selection;

use std::fs;
use std::path::{Path, PathBuf};

use netconf::NetConf;
use serde_json::{Map, Value};

use self::chain::Rendered;
pub use self::chain::{Chain, Entry, PlaceFor, Rendering, kind as kind_of};
pub(crate) use self::copies::is_copy;
pub use self::document::{Unreadable, Verbatim};
pub use self::former::Former;
pub use self::placing::{Target, Written};
pub use self::selection::warn_if_not_chosen;
use crate::digest;
use crate::layout::{Layout, Place};
use crate::settings::{Settings, Template};
use crate::state::{Installed, State};
use crate::template::{self, TOKEN, TemplateError, Values, kind, plugins};
use crate::{node_conf, regular_file};

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
    /// What `calico` or `calico-ipam` reads there, with the paths by which this process finds what it names; `None`
    /// without them.
    pub calicos: Option<NetConf>,
    /// SHA-256 of the text without the pod's token, where that is in it.
    pub origin: Option<String>,
    /// Its plugins.
    rendered: Rendered,
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
        let chain = Chain::of(&conf);
        if chain.calicos() > 1 {
            return Err(refused("the plugin calico is in it twice".to_owned()));
        }
        let pattern = match origin {
            Some(_) => Chain::of(&template::parse(&values.clone().with_token(TOKEN.to_owned()).fill(&template))?),
            None => chain.clone(),
        };
        let calicos = calicos.map_err(refused)?;
        Ok(Conflist { text, conf, calicos, origin, rendered: Rendered { chain, pattern } })
    }

    /// The name of the network.
    #[must_use]
    pub fn network(&self) -> &str {
        self.conf.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// Notes that it is going to be written, beside what it takes the place of.
    pub fn note(&self, target: &Target, state: &mut State) {
        let name = &target.name;
        let there = regular_file::contents(&target.path()).ok();
        let now = self.merged(there.as_deref(), target, &[]).rendering;
        let noted = state.get(Place::Net, name).cloned().unwrap_or_default();
        // Ours with entries of others is not replaced: these stay.
        let replaced = there.as_ref().filter(|there| noted.is(&digest::of_bytes(there)) || !is_ours_in(there, &noted));
        let replaced = replaced.map(|there| digest::of_bytes(there));
        let there = there.and_then(|there| chain_of(&there)).unwrap_or_default();
        let in_place = Rendering::in_place(&noted.renderings, &there).cloned();
        state.note_over(Place::Net, name, self.digest(), replaced.as_deref());
        state.note_origin(Place::Net, name, self.origin.clone());
        let in_place = in_place.filter(|in_place| *in_place != now);
        state.note_renderings(Place::Net, name, in_place.into_iter().chain([now]).collect());
    }

    /// Notes that it is there, as it was written.
    pub fn note_written(&self, target: &Target, written: &Written, state: &mut State) {
        state.note(Place::Net, &target.name, Some(self.digest()), false);
        state.note_origin(Place::Net, &target.name, self.origin.clone());
        state.note_renderings(Place::Net, &target.name, vec![written.rendering.clone()]);
    }

    /// Whether it is the one that is noted, whatever token the pod had then.
    #[must_use]
    pub fn is_noted(&self, target: &Target, state: &State) -> bool {
        let noted = state.get(Place::Net, &target.name);
        noted.is_some_and(|noted| noted.is(&self.digest()) || self.origin.is_some() && self.origin == noted.origin)
    }

    fn digest(&self) -> String {
        digest::of_bytes(self.text.as_bytes())
    }
}

/// What Calico's plugins read in a configuration; `None` where none of them is in there: templates of any kind are put
/// in place, those of other plugins as well.
fn calicos(conf: &Map<String, Value>, layout: &Layout, net_dir: &Path) -> Result<Option<NetConf>, String> {
    let plugin = node_conf::plugin(Value::Object(conf.clone()), |path| layout.of_node(path, net_dir)).ok();
    plugin.map(node_conf::read).transpose()
}

/// The plugins of a text; `None` where it is no configuration.
#[must_use]
pub fn chain_of(text: &[u8]) -> Option<Chain> {
    Chain::read(text).ok()
}

/// Reads the configuration in a file that others may have written, as a list where no value holds an entry of theirs.
///
/// # Errors
/// The text is no JSON object.
pub fn parse(text: &str) -> Result<Map<String, Value>, TemplateError> {
    template::parse(text).or_else(|error| chain_of(text.as_bytes()).map(|chain| chain.to_list()).ok_or(error))
}

/// Whether a text is the configuration that was installed, or that one with entries of others.
#[must_use]
pub fn is_ours_in(text: &[u8], noted: &Installed) -> bool {
    let whole = |there: &Chain| noted.renderings.iter().any(|rendering| rendering.is_whole_in(there));
    noted.is(&digest::of_bytes(text)) || chain_of(text).is_some_and(|there| whole(&there))
}

/// Returns true for a text that was installed as it is. One with an entry of another's may be the same to the byte.
fn is_wholly_ours(text: &[u8], noted: &Installed) -> bool {
    noted.is(&digest::of_bytes(text)) && noted.renderings.iter().all(|rendering| rendering.foreign.is_empty())
}

/// The entries that others chained into the configuration that was installed.
#[must_use]
pub fn foreign_in(text: &[u8], noted: &Installed) -> Vec<Entry> {
    if is_wholly_ours(text, noted) {
        return Vec::new();
    }
    chain_of(text).map(|there| there.foreign(&Chain::default(), &noted.renderings)).unwrap_or_default()
}

/// Whether Calico's plugin is in a configuration, or is delegated to from there (canal).
#[must_use]
pub fn is_calicos(text: impl AsRef<[u8]>) -> bool {
    let Some(chain) = chain_of(text.as_ref()) else { return false };
    let is_calico = |plugin: &Map<String, Value>| kind(plugin) == "calico";
    plugins(&chain.to_list())
        .into_iter()
        .any(|plugin| is_calico(plugin) || plugin.get("delegate").and_then(Value::as_object).is_some_and(is_calico))
}

#[cfg(test)]
mod tests;
