//! The network configuration as a text with placeholders. A filled template is parsed here, and the plugins in it are
//! returned. Read `values` first.

mod problems;
mod values;

pub use self::problems::{ConfigProblem, find_problems};
pub use self::values::{BUILT_IN, TOKEN, Tls, Values};
use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

/// Reasons why a text is no network configuration. The text may contain a token, so the errors do not quote it.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The text is not JSON.
    #[error(
        "the CNI configuration is not valid JSON (line {line}, column {column}, after the placeholders were filled in)"
    )]
    Syntax {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// The text is JSON, but not an object.
    #[error("the CNI configuration is not a JSON object")]
    NoObject,
}

/// Parses a network configuration.
///
/// # Errors
/// Returns an error if the text is not a JSON object.
pub fn parse(text: &str) -> Result<Map<String, Value>, TemplateError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(TemplateError::NoObject),
        Err(error) => Err(TemplateError::Syntax { line: error.line(), column: error.column() }),
    }
}

/// Returns the plugins of a configuration in order: those of the list, or the configuration itself if it is a single
/// plugin.
#[must_use]
pub fn plugins(conf: &Map<String, Value>) -> Vec<&Map<String, Value>> {
    match conf.get("plugins").and_then(Value::as_array) {
        Some(plugins) => plugins.iter().filter_map(Value::as_object).collect(),
        None if conf.contains_key("type") => vec![conf],
        None => Vec::new(),
    }
}

/// Returns the `type` of a plugin, which is the name of its program.
#[must_use]
pub fn kind(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}
