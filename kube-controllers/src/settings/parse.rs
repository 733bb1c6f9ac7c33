//! Parsers of the values of environment variables, and their error.

use std::str::FromStr;

use libcalico::api::{GoDuration, go_bool};
use libcalico::variables::InvalidVariable;

/// An invalid environment, with which the process ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A name of no controller.
    #[error("ENABLED_CONTROLLERS: `{name}` is not a controller; valid are {valid}")]
    UnknownController {
        /// The invalid name.
        name: String,
        /// All valid names.
        valid: String,
    },
    /// The migration from flannel, which this program does not contain.
    #[error(
        "ENABLED_CONTROLLERS: flannelmigration is not a controller of this program; \
         docs/moving-from-flannel.md says how to migrate"
    )]
    FlannelMigration,
    /// A value of the wrong form.
    #[error(transparent)]
    Value(#[from] InvalidVariable),
}

pub(super) fn duration(variable: &'static str, text: &str) -> Result<GoDuration, SettingsError> {
    parsed(
        variable,
        text,
        "not a duration such as `90s`, `5m` or `1h30m`",
    )
}

pub(super) fn port(variable: &'static str, text: &str) -> Result<u16, SettingsError> {
    parsed(variable, text, "not a TCP port, or 0")
}

/// Parses a number of at least 1.
pub(super) fn count(variable: &'static str, text: &str) -> Result<usize, SettingsError> {
    let problem = "not a whole number from 1 on";
    let number: usize = parsed(variable, text, problem)?;
    if number == 0 {
        Err(invalid(variable, text, problem))
    } else {
        Ok(number)
    }
}

pub(super) fn rate(variable: &'static str, text: &str) -> Result<u32, SettingsError> {
    parsed(variable, text, "not a whole number of requests per second")
}

/// Parses the Boolean values that Go's `strconv.ParseBool` accepts.
pub(super) fn boolean(variable: &'static str, text: &str) -> Result<bool, SettingsError> {
    go_bool(text).ok_or_else(|| invalid(variable, text, "not true or false"))
}

/// Returns a parser of one of `keywords`, in any case.
pub(super) fn keyword<T: Copy>(
    problem: &'static str,
    keywords: [(&'static str, T); 2],
) -> impl Fn(&'static str, &str) -> Result<T, SettingsError> {
    move |variable, text| {
        let given = text.to_ascii_lowercase();
        let value = keywords.iter().find(|(word, _)| *word == given);
        value
            .map(|(_, value)| *value)
            .ok_or_else(|| invalid(variable, text, problem))
    }
}

pub(super) fn parsed<T: FromStr>(
    variable: &'static str,
    text: &str,
    problem: &'static str,
) -> Result<T, SettingsError> {
    text.parse().map_err(|_| invalid(variable, text, problem))
}

fn invalid(variable: &'static str, text: &str, problem: &'static str) -> SettingsError {
    InvalidVariable::new(variable, text, problem).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flannelmigration_names_the_page() {
        let page = include_str!("../../../docs/moving-from-flannel.md");
        assert!(page.starts_with("# From flannel or Canal\n"));
        let error = SettingsError::FlannelMigration.to_string();
        assert!(error.contains("docs/moving-from-flannel.md"), "{error}");
    }
}
