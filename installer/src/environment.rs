//! [`Environment`]: reads single variables.

use std::time::Duration;

use libcalico::api::go_bool;

/// Reasons for rejecting the environment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// A variable for a Boolean has an invalid value.
    #[error("{name}: `{found}` is neither true nor false; unset the variable to use its default")]
    Boolean {
        /// The name of the variable.
        name: String,
        /// The value of the variable.
        found: String,
    },
    /// A variable of another type has an invalid value.
    #[error("{name}: `{found}` is not {wanted}")]
    Value {
        /// The name of the variable.
        name: String,
        /// The value of the variable.
        found: String,
        /// A description of the valid values.
        wanted: &'static str,
    },
}

/// The environment of a process.
pub(crate) struct Environment<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    /// Returns a text. The default applies only if the variable is not set.
    pub(crate) fn text(&self, name: &str, default: &str) -> String {
        (self.lookup)(name).unwrap_or_else(|| default.to_owned())
    }

    /// Returns a text, or `None` if the variable is empty or not set.
    pub(crate) fn non_empty(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// Returns a value for an unquoted place in JSON. Returns the default for a blank value, which
    /// would break the JSON (INST-10).
    pub(crate) fn unquoted(&self, name: &str, default: &str) -> String {
        match (self.lookup)(name) {
            Some(value) if !value.trim().is_empty() => value,
            None => default.to_owned(),
            Some(_) => {
                tracing::warn!("{name} is empty; using its default {default}");
                default.to_owned()
            }
        }
    }

    /// Returns a Boolean, parsed as in Go. An empty value is an error, as in upstream.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, SettingsError> {
        let Some(found) = (self.lookup)(name) else {
            return Ok(None);
        };
        match go_bool(&found) {
            Some(value) => Ok(Some(value)),
            None => Err(SettingsError::Boolean {
                name: name.to_owned(),
                found,
            }),
        }
    }

    /// Returns the mode of a file, from octal digits.
    pub(crate) fn mode(&self, name: &str, default: u32) -> Result<u32, SettingsError> {
        let Some(found) = self.non_empty(name) else {
            return Ok(default);
        };
        let mode = u32::from_str_radix(found.trim_start_matches("0o"), 8)
            .ok()
            .filter(|mode| *mode <= 0o777);
        mode.ok_or(SettingsError::Value {
            name: name.to_owned(),
            found,
            wanted: "the mode of a file, like 0600",
        })
    }

    /// Returns a duration from a whole number of seconds.
    pub(crate) fn seconds(&self, name: &str, default: Duration) -> Result<Duration, SettingsError> {
        let Some(found) = self.non_empty(name) else {
            return Ok(default);
        };
        let seconds = found
            .parse::<u16>()
            .map(|seconds| Duration::from_secs(seconds.into()));
        seconds.map_err(|_| SettingsError::Value {
            name: name.to_owned(),
            found,
            wanted: "a number of seconds",
        })
    }
}
