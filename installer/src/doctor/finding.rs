//! [`Finding`]: the result of one check.

use std::fmt;

use serde::Serialize;

/// The state of the checked item, ordered from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No problem was found.
    Ok,
    /// The check was not possible, for a reason that another finding gives.
    Skipped,
    /// The item works, but not for long or not in all cases.
    Warn,
    /// Pods get no network, or a wrong one.
    Fail,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The checked item.
    pub name: String,
    /// The state of the item.
    pub state: Severity,
    /// The observation.
    pub seen: String,
    /// The remedy; empty without a problem.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub way_out: String,
}

impl Finding {
    /// Creates a finding without a problem.
    pub fn ok(name: impl Into<String>, seen: impl Into<String>) -> Self {
        Finding { name: name.into(), state: Severity::Ok, seen: seen.into(), way_out: String::new() }
    }

    /// Creates a finding about a problem that affects pods soon or in some cases.
    pub fn warn(name: impl Into<String>, seen: impl Into<String>, way_out: impl Into<String>) -> Self {
        Finding { state: Severity::Warn, way_out: way_out.into(), ..Finding::ok(name, seen) }
    }

    /// Creates a finding about a problem that affects pods now.
    pub fn fail(name: impl Into<String>, seen: impl Into<String>, way_out: impl Into<String>) -> Self {
        Finding { state: Severity::Fail, ..Finding::warn(name, seen, way_out) }
    }

    /// Creates a finding for a check that was not possible.
    pub fn skipped(name: impl Into<String>, because: impl Into<String>) -> Self {
        Finding { state: Severity::Skipped, ..Finding::ok(name, because) }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Ok => "ok",
            Severity::Skipped => "skipped",
            Severity::Warn => "warn",
            Severity::Fail => "FAIL",
        })
    }
}
