//! Evaluates an expression on labels (DS-113).

use std::collections::BTreeMap;

use super::ast::{Compare, Expr};

impl Expr {
    pub(super) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Expr::All | Expr::Global => true,
            Expr::Has(label) => labels.contains_key(label),
            Expr::Label(label, compare) => match labels.get(label) {
                Some(value) => compare.accepts(value),
                None => compare.accepts_missing(),
            },
            Expr::Not(operand) => !operand.matches(labels),
            Expr::And(operands) => operands.iter().all(|o| o.matches(labels)),
            Expr::Or(operands) => operands.iter().any(|o| o.matches(labels)),
        }
    }
}

impl Compare {
    fn accepts(&self, value: &str) -> bool {
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

    fn accepts_missing(&self) -> bool {
        matches!(self, Compare::NotEqual(_) | Compare::NotIn(_))
    }
}
