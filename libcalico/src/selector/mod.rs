//! Calico's selector language: which labelled things a pool or a policy is about (DS-111 … DS-117).
//!
//! Text is cut into tokens (`token`), tokens become an expression (`parse`), an expression is evaluated over labels
//! (`eval`) or written back in its one canonical form (`ast`).

mod ast;
mod error;
mod eval;
mod parse;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use data_encoding::BASE64URL_NOPAD;
use sha2::{Digest, Sha224};

use self::ast::Expr;
pub use self::error::{SelectorError, SelectorErrorReason};

/// Deepest nesting of parentheses that parses. Upstream has no limit, but the CRD schemas bound a selector to 1024
/// characters, which cannot nest deeper than this; the limit keeps hostile input from exhausting the stack.
pub const MAX_NESTING: usize = 512;

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    root: Expr,
}

impl Selector {
    /// Parses `text`. Empty text (or only spaces and tabs) selects everything, as `all()` does.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(|root| Selector { root })
    }

    /// Whether `labels` are selected. A missing label differs from every value, so `a != 'x'` and `a not in {'x'}`
    /// select things that have no `a` (DS-113).
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.root.matches(labels)
    }

    /// The id that Felix gives the selector: equal ids mean equal canonical text (DS-115).
    pub fn unique_id(&self) -> String {
        let digest = Sha224::digest(format!("s:{self}"));
        format!("s:{}", BASE64URL_NOPAD.encode(&digest))
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Selector::parse(text)
    }
}

/// The canonical form (DS-114).
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}
