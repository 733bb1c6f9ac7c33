//! Finds problems in a configuration. They are warnings only, because a template may use features unknown to this
//! installer.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{kind, plugins};

/// The newest version of the CNI specification that Calico's plugins support.
const NEWEST: (u32, u32, u32) = (1, 1, 0);

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigProblem {
    /// An unknown placeholder.
    Placeholder(String),
    /// The configuration is neither a list of plugins nor a plugin.
    NoPlugin,
    /// The program of a plugin is in none of the directories.
    MissingProgram {
        /// The type of the plugin.
        name: String,
        /// The directories that were searched.
        directories: Vec<PathBuf>,
    },
    /// Calico's plugin does not support this version of the specification.
    TooNew {
        /// The value of `cniVersion`.
        version: String,
    },
}

/// Returns the problems of a configuration, given as text and parsed. Programs are searched in `directories`.
#[must_use]
pub fn find_problems(text: &str, conf: &Map<String, Value>, directories: &[PathBuf]) -> Vec<ConfigProblem> {
    let mut problems: Vec<_> = placeholders(text).into_iter().map(ConfigProblem::Placeholder).collect();
    let plugins = plugins(conf);
    if plugins.is_empty() {
        problems.push(ConfigProblem::NoPlugin);
    }
    for name in plugins.iter().map(|plugin| kind(plugin)).filter(|name| !name.is_empty()) {
        let is_there = |directory: &PathBuf| Path::new(directory).join(name).is_file();
        if !directories.iter().any(is_there) {
            problems.push(ConfigProblem::MissingProgram { name: name.to_owned(), directories: directories.to_vec() });
        }
    }
    let version = conf.get("cniVersion").and_then(Value::as_str).unwrap_or_default();
    if plugins.first().is_some_and(|first| kind(first) == "calico") && is_too_new(version) {
        problems.push(ConfigProblem::TooNew { version: version.to_owned() });
    }
    problems
}

/// Returns the different words of the form `__UPPER_CASE__`.
fn placeholders(text: &str) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("__") {
        let inside = &rest[start + 2..];
        let length = inside.find(|c: char| !matches!(c, 'A'..='Z' | '0'..='9' | '_')).unwrap_or(inside.len());
        let word =
            inside[..length].strip_suffix("__").filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()));
        if let Some(word) = word.map(|word| format!("__{word}__")).filter(|word| !problems.contains(word)) {
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

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigProblem::Placeholder(name) => {
                write!(f, "{name} is no placeholder that is filled in; see `calico install --help` for those that are")
            }
            ConfigProblem::NoPlugin => {
                f.write_str("there is neither `plugins` nor `type` in it; runtimes will not load it")
            }
            ConfigProblem::MissingProgram { name, directories } => {
                let places: Vec<_> = directories.iter().map(|directory| directory.display().to_string()).collect();
                write!(
                    f,
                    "the plugin {name} is not in {}; no pod will start until it is: install it, or take it out of \
                     the configuration",
                    places.join(" or ")
                )
            }
            ConfigProblem::TooNew { version } => {
                write!(f, "cniVersion {version} is newer than the plugin speaks; use 1.1.0 or older")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn of(text: &str, directories: &[PathBuf]) -> Vec<ConfigProblem> {
        find_problems(text, &parse(text).unwrap(), directories)
    }

    #[test]
    fn a_usual_list_has_none() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["calico", "portmap"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let text = r#"{"cniVersion": "1.1.0", "plugins": [{"type": "calico"}, {"type": "portmap"}]}"#;
        assert_eq!(of(text, &[PathBuf::from("/none"), dir.path().into()]), []);
    }

    #[test]
    fn placeholders_that_stay_are_named_once() {
        let text = r#"{"type": "", "a": "__NOBODY_KNOWS__ __NOBODY_KNOWS__", "__init__": "__", "b": "x__NO2__y___"}"#;
        let names = ["__NOBODY_KNOWS__", "__NO2__"];
        assert_eq!(of(text, &[]), names.map(|name| ConfigProblem::Placeholder(name.to_owned())));
    }

    #[test]
    fn what_is_no_plugin_and_what_has_no_program() {
        assert_eq!(of("{}", &[]), [ConfigProblem::NoPlugin]);
        let missing = of(r#"{"type": "flannel"}"#, &["/opt/cni/bin".into()]);
        assert!(missing[0].to_string().starts_with("the plugin flannel is not in /opt/cni/bin; "), "{missing:?}");
    }

    #[test]
    fn versions_from_the_future() {
        for (version, is_new) in [("1.1.0", false), ("1.1.1", true), ("2.0.0", true), ("0.3.1", false), ("", false)] {
            assert_eq!(is_too_new(version), is_new, "{version}");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("calico"), "").unwrap();
        let text = r#"{"cniVersion": "1.2.0", "type": "calico"}"#;
        assert_eq!(of(text, &[dir.path().into()]), [ConfigProblem::TooNew { version: "1.2.0".into() }]);
    }
}
