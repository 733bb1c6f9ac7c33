//! Calico's selector language, which selects objects by their labels, for pools and policies.
//!
//! `token` splits the text into tokens, `parse` builds an expression from the tokens, and `ast` evaluates it on
//! labels and formats it in its canonical form.

mod ast;
mod error;
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

/// The deepest nesting of parentheses that parses. Upstream has no limit, but the CRD schemas limit a selector to 1024
/// characters, which cannot nest deeper. The limit prevents malicious input from exhausting the stack.
pub const MAX_NESTING: usize = 512;

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    root: Expr,
}

impl Selector {
    /// Parses `text`. A text that is empty, or consists of spaces and tabs, selects everything, as `all()` does.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(|root| Selector { root })
    }

    /// Returns true if the selector matches `labels`. A missing label differs from every value: objects without the
    /// label `a` match both `a != 'x'` and `a not in {'x'}` (DS-113).
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.root.matches(labels)
    }

    /// Returns the ID that Felix gives the selector: equal IDs mean equal canonical text (DS-115).
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

/// Formats the canonical form, from which the ID is computed (DS-114).
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}
