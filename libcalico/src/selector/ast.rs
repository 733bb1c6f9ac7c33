//! [`Expr`]: a selector as a tree.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expr {
    All,
    /// Matches everything here; policy processing restricts it (DS-113).
    Global,
    Has(String),
    Label(String, Compare),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Compare {
    Equal(String),
    NotEqual(String),
    Contains(String),
    StartsWith(String),
    EndsWith(String),
    In(ValueSet),
    NotIn(ValueSet),
}

/// A set of values, sorted by bytes and without duplicates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValueSet(Vec<String>);

impl ValueSet {
    pub(super) fn contains(&self, value: &str) -> bool {
        self.0.binary_search_by(|v| v.as_str().cmp(value)).is_ok()
    }
}

impl FromIterator<String> for ValueSet {
    fn from_iter<I: IntoIterator<Item = String>>(values: I) -> Self {
        let mut values: Vec<String> = values.into_iter().collect();
        values.sort_unstable();
        values.dedup();
        ValueSet(values)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::All => f.write_str("all()"),
            Expr::Global => f.write_str("global()"),
            Expr::Has(label) => write!(f, "has({label})"),
            Expr::Label(label, compare) => write!(f, "{label} {compare}"),
            Expr::Not(operand) => write!(f, "!{operand}"),
            Expr::And(operands) => joined(f, operands, ["(", " && ", ")"]),
            Expr::Or(operands) => joined(f, operands, ["(", " || ", ")"]),
        }
    }
}

fn joined<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    [open, separator, close]: [&str; 3],
) -> fmt::Result {
    f.write_str(open)?;
    for (i, item) in items.into_iter().enumerate() {
        write!(f, "{}{item}", if i > 0 { separator } else { "" })?;
    }
    f.write_str(close)
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compare::Equal(value) => write!(f, "== {}", Quoted(value)),
            Compare::NotEqual(value) => write!(f, "!= {}", Quoted(value)),
            Compare::Contains(value) => write!(f, "contains {}", Quoted(value)),
            Compare::StartsWith(value) => write!(f, "starts with {}", Quoted(value)),
            Compare::EndsWith(value) => write!(f, "ends with {}", Quoted(value)),
            Compare::In(values) => write!(f, "in {values}"),
            Compare::NotIn(values) => write!(f, "not in {values}"),
        }
    }
}

impl fmt::Display for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        joined(
            f,
            self.0.iter().map(|value| Quoted(value)),
            ["{", ", ", "}"],
        )
    }
}

/// A value in quotes. It cannot contain both kinds of quotes, because the language has no escapes.
struct Quoted<'v>(&'v str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('"') { '\'' } else { '"' };
        write!(f, "{quote}{}{quote}", self.0)
    }
}

impl Expr {
    pub(super) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Expr::All | Expr::Global => true,
            Expr::Has(label) => labels.contains_key(label),
            Expr::Label(label, compare) => compare.accepts(labels.get(label)),
            Expr::Not(operand) => !operand.matches(labels),
            Expr::And(operands) => operands.iter().all(|o| o.matches(labels)),
            Expr::Or(operands) => operands.iter().any(|o| o.matches(labels)),
        }
    }
}

impl Compare {
    fn accepts(&self, value: Option<&String>) -> bool {
        let Some(value) = value else {
            return matches!(self, Compare::NotEqual(_) | Compare::NotIn(_));
        };
        match self {
            Compare::Equal(wanted) => value == wanted,
            Compare::NotEqual(unwanted) => value != unwanted,
            Compare::Contains(part) => value.contains(part.as_str()),
            Compare::StartsWith(start) => value.starts_with(start.as_str()),
            Compare::EndsWith(end) => value.ends_with(end.as_str()),
            Compare::In(values) => values.contains(value),
            Compare::NotIn(values) => !values.contains(value),
        }
    }
}
