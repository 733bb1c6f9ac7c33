//! [`Variable`]: the description of an environment variable in `--help` and the README.

use std::fmt::Write as _;

/// An environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// The name.
    pub name: &'static str,
    /// The value used if the variable is not set; empty if there is none.
    pub default: &'static str,
    /// The effect.
    pub meaning: &'static str,
}

/// Creates a variable.
pub const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default, meaning }
}

/// Returns a title and the variables below it, for `--help`.
#[must_use]
pub fn list(title: &str, variables: &[Variable]) -> String {
    let mut text = format!("{title}:\n");
    for Variable { name, default, meaning } in variables {
        let _ = write!(text, "  {name}\n          {meaning}");
        let _ = if default.is_empty() { writeln!(text) } else { writeln!(text, " [default: {default}]") };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_told_where_there_is_one() {
        let variables = [variable("A", "1", "what"), variable("B", "", "else")];
        let expected = "Group:\n  A\n          what [default: 1]\n  B\n          else\n";
        assert_eq!(list("Group", &variables), expected);
    }
}
