//! Reading single variables.

use std::time::Duration;

use super::SettingsError;

/// The environment of a process.
pub(crate) struct Environment<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    /// A text: the default holds only where the variable is not set.
    pub(crate) fn text(&self, name: &str, default: &str) -> String {
        (self.lookup)(name).unwrap_or_else(|| default.to_owned())
    }

    /// A text that is not empty.
    pub(crate) fn some(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    /// Something that stands bare in JSON: a variable that is set to nothing would leave no JSON (INST-10).
    pub(crate) fn bare(&self, name: &str, default: &str) -> String {
        match (self.lookup)(name) {
            Some(value) if !value.trim().is_empty() => value,
            None => default.to_owned(),
            Some(_) => {
                tracing::warn!("{name} is set to nothing; {default} is used");
                default.to_owned()
            }
        }
    }

    /// A truth value as Go reads it; `None` where the variable is not set. One that is set to nothing is an error, as
    /// upstream.
    pub(crate) fn truth(&self, name: &'static str) -> Result<Option<bool>, SettingsError> {
        let Some(found) = (self.lookup)(name) else { return Ok(None) };
        match found.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Some(true)),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Some(false)),
            _ => Err(SettingsError::Truth { name, found }),
        }
    }

    /// The mode of a file, in octal digits.
    pub(crate) fn mode(&self, name: &'static str, default: u32) -> Result<u32, SettingsError> {
        let Some(found) = self.some(name) else { return Ok(default) };
        let mode = u32::from_str_radix(found.trim_start_matches("0o"), 8).ok().filter(|mode| *mode <= 0o777);
        mode.ok_or(SettingsError::Value { name, found, wanted: "the mode of a file, like 0600" })
    }

    /// A number of seconds.
    pub(crate) fn seconds(&self, name: &'static str, default: Duration) -> Result<Duration, SettingsError> {
        let Some(found) = self.some(name) else { return Ok(default) };
        let seconds = found.parse::<u16>().map(|seconds| Duration::from_secs(seconds.into()));
        seconds.map_err(|_| SettingsError::Value { name, found, wanted: "a number of seconds" })
    }
}
