//! [`Variable`]: an environment variable as `--help` and the README tell it.

use std::fmt::Write as _;

/// One environment variable.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds when it is not set; empty: nothing.
    pub default: &'static str,
    /// What it decides.
    pub meaning: &'static str,
}

/// A variable.
pub const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default, meaning }
}

/// A title and the variables below it, for `--help`.
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
