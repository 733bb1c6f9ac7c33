//! Rules of the installer for environment variables of some types.

use std::time::Duration;

use libcalico::variables::{InvalidVariable, Variables};

/// Returns a value for an unquoted place in JSON. Returns the default for a blank value, which would
/// break the JSON (INST-10).
pub(crate) fn unquoted(variables: &Variables<'_>, name: &str, default: &str) -> String {
    match variables.get(name) {
        Some(value) if !value.trim().is_empty() => value,
        None => default.to_owned(),
        Some(_) => {
            tracing::warn!("{name} is empty; using its default {default}");
            default.to_owned()
        }
    }
}

/// Returns the mode of a file, from octal digits.
pub(crate) fn mode(
    variables: &Variables<'_>,
    name: &str,
    default: u32,
) -> Result<u32, InvalidVariable> {
    let Some(found) = variables.non_empty(name) else {
        return Ok(default);
    };
    let mode = u32::from_str_radix(found.trim_start_matches("0o"), 8).ok();
    mode.filter(|mode| *mode <= 0o777)
        .ok_or_else(|| InvalidVariable::new(name, found, "not the mode of a file, like 0600"))
}

/// Returns a duration from a whole number of seconds.
pub(crate) fn seconds(
    variables: &Variables<'_>,
    name: &str,
    default: Duration,
) -> Result<Duration, InvalidVariable> {
    let Some(found) = variables.non_empty(name) else {
        return Ok(default);
    };
    match found.parse::<u16>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => Err(InvalidVariable::new(name, found, "not a number of seconds")),
    }
}
