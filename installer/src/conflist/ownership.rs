//! Recognizes configurations of Calico's, and what this installer wrote into them.

use serde_json::{Map, Value};

use crate::digest;
use crate::plugin_chain::{Chain, Entry, chain_of};
use crate::state::Installed;
use crate::template::{self, TemplateError, kind, plugins};

/// Parses a configuration that other programs may have written. If a value does not fit into a [`Value`], the result is
/// the configuration as a list, with the text of that value as a string.
///
/// # Errors
/// Returns an error if the text is not a JSON object.
pub fn parse(text: &str) -> Result<Map<String, Value>, TemplateError> {
    template::parse(text).or_else(|error| chain_of(text.as_bytes()).map(|chain| chain.to_list()).ok_or(error))
}

/// Returns true if the text is the installed configuration, with or without foreign entries.
#[must_use]
pub fn is_ours_in(text: &[u8], recorded: &Installed) -> bool {
    let whole = |there: &Chain| recorded.renderings.iter().any(|rendering| rendering.is_whole_in(there));
    recorded.is(&digest::of_bytes(text)) || chain_of(text).is_some_and(|there| whole(&there))
}

/// Returns true if the text is the installed one and contains no foreign entry. The digest alone does not show this:
/// the text that the installer renders may contain the same entry as another program.
pub(super) fn is_wholly_ours(text: &[u8], recorded: &Installed) -> bool {
    recorded.is(&digest::of_bytes(text)) && recorded.renderings.iter().all(|rendering| rendering.foreign.is_empty())
}

/// Returns the entries that other programs added to the installed configuration.
#[must_use]
pub fn foreign_in(text: &[u8], recorded: &Installed) -> Vec<Entry> {
    if is_wholly_ours(text, recorded) {
        return Vec::new();
    }
    chain_of(text).map(|there| there.foreign(&Chain::default(), &recorded.renderings)).unwrap_or_default()
}

/// Returns true if a configuration contains Calico's plugin, or delegates to it as Canal's does.
#[must_use]
pub fn is_calicos(text: impl AsRef<[u8]>) -> bool {
    let Some(chain) = chain_of(text.as_ref()) else { return false };
    let is_calico = |plugin: &Map<String, Value>| kind(plugin) == "calico";
    plugins(&chain.to_list())
        .into_iter()
        .any(|plugin| is_calico(plugin) || plugin.get("delegate").and_then(Value::as_object).is_some_and(is_calico))
}
