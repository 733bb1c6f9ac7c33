//! The network configuration as a text with placeholders. The installer only warns about a
//! [`ConfigProblem`], because a template may use features unknown to the installer. Read `values`
//! first.

mod values;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use libcalico::failure::Failure;
use serde_json::{Map, Value};

pub use self::values::{BUILT_IN, TOKEN_PLACEHOLDER, TlsPaths, Values};

#[cfg(test)]
mod tests;

/// Parses the text of a network configuration.
///
/// # Errors
/// Returns an error if the text is not a JSON object.
pub fn parse(text: &str) -> Result<Map<String, Value>, Failure> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Failure::new("the CNI configuration is not a JSON object")),
        Err(error) => Err(Failure::new(format_args!(
            "the CNI configuration is not valid JSON (line {}, column {}, after the placeholders \
             were filled in)",
            error.line(),
            error.column()
        ))),
    }
}

/// Returns the plugins of a configuration in order. A single plugin is a configuration by itself.
#[must_use]
pub fn plugins(conf: &Map<String, Value>) -> Vec<&Map<String, Value>> {
    match conf.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.iter().filter_map(Value::as_object).collect(),
        None if conf.contains_key("type") => vec![conf],
        None => Vec::new(),
    }
}

/// Returns the `type` of a plugin, which is the name of its program; empty if it is missing.
#[must_use]
pub fn kind(plugin: &Map<String, Value>) -> &str {
    plugin
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the programs of a plugin: its own, and those that it calls: its IPAM plugin, and its
/// delegate as in Canal's configuration. The configurations in `delegates` (Multus) are networks of
/// their own and do not count.
#[must_use]
pub fn program_names(plugin: &Map<String, Value>) -> Vec<&str> {
    let called = ["ipam", "delegate"]
        .iter()
        .filter_map(|key| plugin.get(*key)?.as_object());
    // The JSON parser limits the depth, and so this recursion.
    let names = called.flat_map(program_names);
    [kind(plugin)]
        .into_iter()
        .chain(names)
        .filter(|name| !name.is_empty())
        .collect()
}

/// Returns true if runtimes and plugins search for a program of this name. They refuse a name with
/// a separator.
#[must_use]
pub fn is_program_name(name: &str) -> bool {
    !name.contains('/')
}

/// The newest version of the CNI specification that Calico's plugins support.
const NEWEST: (u32, u32, u32) = (1, 1, 0);

/// A problem of a network configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    /// The text contains a word that looks like a placeholder, which the installer does not know.
    #[error(
        "{0} is not a placeholder of the installer; see `calico install --help` for the \
         placeholders"
    )]
    Placeholder(String),
    /// The configuration contains no plugin.
    #[error("the configuration contains no plugin; runtimes do not load it")]
    NoPlugin,
    /// The program of a plugin, or one that the plugin calls, is in none of the directories.
    #[error("the plugin {name} is missing in {}, so no pod starts; install the plugin, or remove \
             it from the configuration", join_paths(.directories))]
    MissingProgram {
        /// The name of the program.
        name: String,
        /// The directories that were searched.
        directories: Vec<PathBuf>,
    },
    /// The program of a plugin, or one that the plugin calls, has this name, which contains a
    /// separator.
    #[error(
        "the plugin name {0} contains '/', so no pod starts; write the name of a file in a plugin \
         directory"
    )]
    InvalidProgram(String),
    /// Calico's plugin does not support this version of the specification, the value of
    /// `cniVersion`.
    #[error("cniVersion {0} is newer than the plugin supports; use 1.1.0 or older")]
    TooNew(String),
}

/// Returns the problems of a configuration, given as text and parsed. Programs are searched in
/// `directories`.
#[must_use]
pub fn find_problems(
    text: &str,
    conf: &Map<String, Value>,
    directories: &[PathBuf],
) -> Vec<ConfigProblem> {
    let mut problems: Vec<_> = placeholders(text)
        .into_iter()
        .map(ConfigProblem::Placeholder)
        .collect();
    let plugins = plugins(conf);
    if plugins.is_empty() {
        problems.push(ConfigProblem::NoPlugin);
    }
    let names: BTreeSet<&str> = plugins
        .iter()
        .flat_map(|plugin| program_names(plugin))
        .collect();
    for name in names {
        let is_there = |directory: &PathBuf| Path::new(directory).join(name).is_file();
        if !is_program_name(name) {
            problems.push(ConfigProblem::InvalidProgram(name.to_owned()));
        } else if !directories.iter().any(is_there) {
            problems.push(ConfigProblem::MissingProgram {
                name: name.to_owned(),
                directories: directories.to_vec(),
            });
        }
    }
    let version = conf
        .get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if plugins.first().is_some_and(|first| kind(first) == "calico") && is_too_new(version) {
        problems.push(ConfigProblem::TooNew(version.to_owned()));
    }
    problems
}

/// Returns the words of the form `__UPPER_CASE__` in a text, each once.
fn placeholders(text: &str) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("__") {
        let inside = &rest[start + 2..];
        let length = inside
            .find(|c: char| !matches!(c, 'A'..='Z' | '0'..='9' | '_'))
            .unwrap_or(inside.len());
        let word = inside[..length]
            .strip_suffix("__")
            .filter(|word| word.starts_with(char::is_uppercase));
        if let Some(word) = word
            .map(|word| format!("__{word}__"))
            .filter(|word| !problems.contains(word))
        {
            problems.push(word);
        }
        rest = &inside[length..];
    }
    problems
}

fn is_too_new(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    let mut next = || parts.next().flatten();
    (next(), next(), next()) > (Some(NEWEST.0), Some(NEWEST.1), Some(NEWEST.2))
}

fn join_paths(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(" or ")
}
