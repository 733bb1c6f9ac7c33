//! [`Finding`]: what one check came to.

use std::fmt;

use serde::Serialize;

/// How it is with one thing. Ordered from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Could not be looked at, because of something that another check tells.
    Skipped,
    /// Works, but not for long or not for everything.
    Warn,
    /// Pods cannot be networked, or not rightly.
    Fail,
}

/// What one check came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub state: State,
    /// What was seen.
    pub seen: String,
    /// What to do; empty when all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub way_out: String,
}

impl Finding {
    /// All is well.
    pub fn ok(name: impl Into<String>, seen: impl Into<String>) -> Self {
        Finding { name: name.into(), state: State::Ok, seen: seen.into(), way_out: String::new() }
    }

    /// Something that lets pods down soon or sometimes.
    pub fn warn(name: impl Into<String>, seen: impl Into<String>, way_out: impl Into<String>) -> Self {
        Finding { state: State::Warn, way_out: way_out.into(), ..Finding::ok(name, seen) }
    }

    /// Something that lets pods down.
    pub fn fail(name: impl Into<String>, seen: impl Into<String>, way_out: impl Into<String>) -> Self {
        Finding { state: State::Fail, ..Finding::warn(name, seen, way_out) }
    }

    /// Something that could not be looked at.
    pub fn skipped(name: impl Into<String>, because: impl Into<String>) -> Self {
        Finding { state: State::Skipped, ..Finding::ok(name, because) }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            State::Ok => "ok",
            State::Skipped => "skipped",
            State::Warn => "warn",
            State::Fail => "FAIL",
        })
    }
}
