//! Why a text is not a selector.

/// A text that is not a selector: what is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (at offset {offset})")]
pub struct SelectorError {
    /// What is wrong.
    pub reason: SelectorErrorReason,
    /// Where, in bytes from the start of the text.
    pub offset: usize,
}

/// What is wrong with a selector. The texts are those that users of Calico know (DS-116).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorErrorReason {
    /// A quote is never closed.
    #[error("unterminated string")]
    UnterminatedString,
    /// One character of a two-character operator.
    #[error("expected {0}")]
    HalfOperator(&'static str),
    /// A character that no token begins with, or `has()`.
    #[error("expected identifier")]
    ExpectedIdentifier,
    /// More than 512 characters.
    #[error("label too long: {0}")]
    LabelTooLong(String),
    /// `has(`, `all(` or `global(` without its end.
    #[error("no closing ')' after {0}(")]
    Unclosed(&'static str),
    /// What follows a label is no operator.
    #[error("expected operator after label {0:?}")]
    ExpectedOperator(String),
    /// The text ends where a term should go on.
    #[error("unexpected end of string looking for op")]
    UnexpectedEnd,
    /// An operator that needs a quoted string.
    #[error("expected string")]
    ExpectedString,
    /// `in` or `not in` without `{`.
    #[error("expected set literal")]
    ExpectedSet,
    /// A set without `}`.
    #[error("expected }}")]
    UnclosedSet,
    /// A parenthesis without its end.
    #[error("expected )")]
    UnclosedParenthesis,
    /// Something that no term begins with.
    #[error("unexpected token {0:?}")]
    UnexpectedToken(String),
    /// A complete selector, and then more.
    #[error("unexpected content at end of selector: {0:?}")]
    TrailingContent(String),
    /// Nested deeper than [`super::MAX_NESTING`].
    #[error("parentheses nested deeper than {} levels; write the selector with fewer", super::MAX_NESTING)]
    TooDeep,
}
