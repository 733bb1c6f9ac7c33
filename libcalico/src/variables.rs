//! [`Variables`]: environment variables, read by name.

use crate::api::go_bool;

/// The environment variables of a process, or those of a test.
#[derive(Clone, Copy)]
pub struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

/// An invalid value of a variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: `{value}` is {problem}")]
pub struct InvalidVariable {
    variable: String,
    value: String,
    problem: &'static str,
}

impl InvalidVariable {
    /// Returns the error. `problem` continues the sentence "the value is …" and says which values
    /// are valid.
    pub fn new(
        variable: impl Into<String>,
        value: impl Into<String>,
        problem: &'static str,
    ) -> Self {
        InvalidVariable {
            variable: variable.into(),
            value: value.into(),
            problem,
        }
    }
}

impl Variables<'static> {
    /// An environment in which no variable is set.
    pub const NONE: Variables<'static> = Variables { lookup: &|_| None };
}

impl<'a> Variables<'a> {
    /// `lookup` returns the value of a variable, or `None` if the variable is not set.
    pub fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Variables { lookup }
    }

    /// Returns the value, which may be empty, or `None` if the variable is not set.
    pub fn get(&self, variable: &str) -> Option<String> {
        (self.lookup)(variable)
    }

    /// Returns the value. `default` applies only if the variable is not set.
    pub fn text(&self, variable: &str, default: &str) -> String {
        self.get(variable).unwrap_or_else(|| default.to_owned())
    }

    /// Returns the value, or `None` if the variable is empty or not set.
    pub fn non_empty(&self, variable: &str) -> Option<String> {
        self.get(variable).filter(|value| !value.is_empty())
    }

    /// Returns the value without the white space around it, or `None` if the variable is blank or
    /// not set.
    pub fn trimmed(&self, variable: &str) -> Option<String> {
        let value = self.get(variable)?.trim().to_owned();
        Some(value).filter(|value| !value.is_empty())
    }

    /// Returns a Boolean, or `None` if the variable is not set.
    ///
    /// # Errors
    /// Returns an error if Go does not accept the value, for example if it is empty.
    pub fn boolean(&self, variable: &str) -> Result<Option<bool>, InvalidVariable> {
        let Some(value) = self.get(variable) else {
            return Ok(None);
        };
        let problem = "neither true nor false; unset the variable to use its default";
        go_bool(&value)
            .ok_or_else(|| InvalidVariable::new(variable, value, problem))
            .map(Some)
    }

    /// Returns the value that `parse` makes of the variable's name and [trimmed](Self::trimmed)
    /// value, or `None` if the variable is blank or not set.
    ///
    /// # Errors
    /// Returns the error of `parse`.
    pub fn parsed<T, E>(
        &self,
        variable: &'static str,
        parse: impl FnOnce(&'static str, &str) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let value = self.trimmed(variable);
        value.map(|value| parse(variable, &value)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLANK: &str = " ";

    fn lookup(variable: &str) -> Option<String> {
        let value = match variable {
            "EMPTY" => "",
            "BLANK" => BLANK,
            "ON" => "T",
            "SEVEN" => " 7 ",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn empty_and_blank_variables_count_as_unset_where_the_reader_says_so() {
        let variables = Variables::new(&lookup);
        assert_eq!(variables.get("EMPTY").as_deref(), Some(""));
        assert_eq!(variables.non_empty("EMPTY"), None);
        assert_eq!(variables.non_empty("BLANK").as_deref(), Some(BLANK));
        assert_eq!(variables.trimmed("BLANK"), None);
        assert_eq!(variables.trimmed("SEVEN").as_deref(), Some("7"));
        assert_eq!(variables.get("UNSET"), None);
    }

    #[test]
    fn invalid_variable_is_named_with_value_and_way_out() {
        let variables = Variables::new(&lookup);
        assert_eq!(variables.boolean("ON"), Ok(Some(true)));
        assert_eq!(variables.boolean("UNSET"), Ok(None));
        assert_eq!(
            variables.boolean("EMPTY").unwrap_err().to_string(),
            "EMPTY: `` is neither true nor false; unset the variable to use its default"
        );
        let number = |variable: &'static str, value: &str| {
            let invalid = || InvalidVariable::new(variable, value, "not a number");
            value.parse::<u8>().map_err(|_| invalid())
        };
        assert_eq!(variables.parsed("SEVEN", number), Ok(Some(7)));
        assert_eq!(variables.parsed("BLANK", number), Ok(None));
        assert_eq!(
            variables.parsed("ON", number).unwrap_err().to_string(),
            "ON: `T` is not a number"
        );
    }
}
