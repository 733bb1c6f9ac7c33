//! The errors of the selector parser.

/// A text that is not a selector: the reason and the position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (at offset {offset})")]
pub struct SelectorError {
    /// The reason.
    pub reason: SelectorErrorReason,
    /// The position, in bytes from the start of the text.
    pub offset: usize,
}

/// The reason why a text is not a selector. The messages are upstream's, except that of `TooDeep`, which upstream does
/// not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorErrorReason {
    /// A quote that is not closed.
    #[error("unterminated string")]
    UnterminatedString,
    /// A single character of a two-character operator.
    #[error("expected {0}")]
    HalfOperator(&'static str),
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
    /// The end of the text in the middle of a term.
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
    /// A token with which no term begins.
    #[error("unexpected token {0:?}")]
    UnexpectedToken(String),
    /// Text after a complete selector.
    #[error("unexpected content at end of selector: {0:?}")]
    TrailingContent(String),
    /// More nested parentheses than [`super::MAX_NESTING`].
    #[error("parentheses nested deeper than {} levels; write the selector with fewer", super::MAX_NESTING)]
    TooDeep,
}
