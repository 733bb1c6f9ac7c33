//! Converts a Kubernetes label selector to Calico's selector language.

use crate::conversion::ORCHESTRATOR_LABEL;
use crate::kubernetes::{LabelExpression, LabelSelector};

/// The kind of objects that a selector selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfWhat {
    /// Pods, but neither host endpoints nor endpoints of other orchestrators.
    Pods,
    /// Namespaces.
    Namespaces,
}

/// Returns the selector's text; empty if a selector of namespaces is missing (KC-305). No value is escaped, because
/// labels cannot contain quotes.
pub(super) fn selector(given: Option<&LabelSelector>, what: OfWhat) -> String {
    let mut terms = Vec::new();
    if what == OfWhat::Pods {
        terms.push(format!("{ORCHESTRATOR_LABEL} == 'k8s'"));
    }
    let Some(given) = given else { return terms.join(" && ") };
    terms.extend(given.match_labels.iter().map(|(key, value)| format!("{key} == '{value}'")));
    terms.extend(given.match_expressions.iter().filter_map(expression));
    let is_empty = given.match_labels.is_empty() && given.match_expressions.is_empty();
    if what == OfWhat::Namespaces && is_empty { "all()".into() } else { terms.join(" && ") }
}

/// Returns the term of an expression; `None` for an unknown operator, which upstream also skips.
fn expression(given: &LabelExpression) -> Option<String> {
    let key = &given.key;
    let values = || given.values.join("', '");
    match given.operator.as_str() {
        "In" => Some(format!("{key} in {{ '{}' }}", values())),
        "NotIn" => Some(format!("{key} not in {{ '{}' }}", values())),
        "Exists" => Some(format!("has({key})")),
        "DoesNotExist" => Some(format!("! has({key})")),
        _ => None,
    }
}
