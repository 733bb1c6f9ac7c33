//! Calico's selector language, which selects objects by their labels, for pools and policies.
//!
//! `token` splits the text into tokens, `parse` builds an expression from them, and `ast` evaluates
//! and formats it.

mod ast;
mod parse;
#[cfg(test)]
mod tests;
mod token;

use std::collections::BTreeMap;
use std::fmt;

use self::ast::Expr;

/// The maximum nesting of parentheses, so that malicious input cannot exhaust the stack. Upstream
/// has no limit, but the CRD schemas limit most selectors to 1024 characters, which cannot nest
/// deeper.
pub const MAX_NESTING: usize = 512;

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    root: Expr,
}

impl Selector {
    /// Parses `text`. A blank text selects everything, as `all()` does.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(|root| Selector { root })
    }

    /// Returns true if the selector matches `labels`. A missing label differs from every value
    /// (DS-113).
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.root.matches(labels)
    }
}

/// Formats the canonical form, from which the ID is computed (DS-114).
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

/// A text that is not a selector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (at offset {offset})")]
pub struct SelectorError {
    /// The reason.
    pub reason: SelectorErrorReason,
    /// The position, in bytes from the start of the text.
    pub offset: usize,
}

/// The reason why a text is not a selector. The messages follow upstream's; `TooDeep`, and what
/// `UnexpectedToken`, `TrailingContent` and `ExpectedOperator` say about the text, are this
/// project's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorErrorReason {
    /// A quote that is not closed.
    #[error("unterminated string")]
    UnterminatedString,
    /// A single character of a two-character operator.
    #[error("expected {0}")]
    IncompleteOperator(&'static str),
    /// A character with which no token begins, or an empty `has()`.
    #[error("expected identifier")]
    ExpectedIdentifier,
    /// A label of more than 512 characters.
    #[error("label too long: {0}")]
    LabelTooLong(String),
    /// `has(`, `all(` or `global(` without a closing parenthesis.
    #[error("no closing ')' after {0}(")]
    Unclosed(&'static str),
    /// A label that is not followed by an operator.
    #[error("expected operator after label {0:?}")]
    ExpectedOperator(String),
    /// The end of the text where a term or the operator of a label must follow.
    #[error("unexpected end of string looking for op")]
    UnexpectedEnd,
    /// An operator without the quoted string that it requires.
    #[error("expected string")]
    ExpectedString,
    /// `in` or `not in` without `{`.
    #[error("expected set literal")]
    ExpectedSet,
    /// A set without `}`.
    #[error("expected }}")]
    UnclosedSet,
    /// An opening parenthesis without a closing one.
    #[error("expected )")]
    UnclosedParenthesis,
    /// A token with which no term begins, shown by its first character.
    #[error("unexpected token {0:?}")]
    UnexpectedToken(String),
    /// Text after a complete selector.
    #[error("unexpected content at end of selector: {0:?}")]
    TrailingContent(String),
    /// More nested parentheses than [`MAX_NESTING`].
    #[error(
        "parentheses nested deeper than {} levels; write the selector with fewer",
        MAX_NESTING
    )]
    TooDeep,
}
