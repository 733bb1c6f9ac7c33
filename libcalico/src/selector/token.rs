//! [`tokenize`]: splits text into tokens.
//!
//! After a label only operators are recognized, and anywhere else the same words are labels.
//! `in in {'x'}` is a selector (DS-111).

use super::{SelectorError, SelectorErrorReason};

/// The maximum length of a label's name in characters.
const MAX_LABEL: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'t> {
    pub(super) kind: TokenKind<'t>,
    pub(super) offset: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind<'t> {
    Label(&'t str),
    Text(&'t str),
    Has(&'t str),
    All,
    Global,
    Eq,
    Ne,
    In,
    NotIn,
    Contains,
    StartsWith,
    EndsWith,
    Not,
    And,
    Or,
    OpenParen,
    CloseParen,
    OpenBrace,
    CloseBrace,
    Comma,
    End,
}

/// Splits `text` into tokens. The last token is always [`TokenKind::End`].
pub(super) fn tokenize(text: &str) -> Result<Vec<Token<'_>>, SelectorError> {
    let mut cursor = Cursor { text, offset: 0 };
    let mut tokens: Vec<Token<'_>> = Vec::new();
    loop {
        cursor.skip_blanks();
        let offset = cursor.offset;
        let after_label = match tokens.last() {
            Some(Token {
                kind: TokenKind::Label(label),
                ..
            }) => Some(*label),
            _ => None,
        };
        let kind =
            next(&mut cursor, after_label).map_err(|reason| SelectorError { reason, offset })?;
        tokens.push(Token { kind, offset });
        if kind == TokenKind::End {
            return Ok(tokens);
        }
    }
}

fn next<'t>(
    cursor: &mut Cursor<'t>,
    after_label: Option<&str>,
) -> Result<TokenKind<'t>, SelectorErrorReason> {
    let Some(first) = cursor.rest().bytes().next() else {
        return Ok(TokenKind::End);
    };
    match first {
        b'(' => Ok(cursor.symbol(1, TokenKind::OpenParen)),
        b')' => Ok(cursor.symbol(1, TokenKind::CloseParen)),
        b'{' => Ok(cursor.symbol(1, TokenKind::OpenBrace)),
        b'}' => Ok(cursor.symbol(1, TokenKind::CloseBrace)),
        b',' => Ok(cursor.symbol(1, TokenKind::Comma)),
        b'"' => cursor.quoted('"'),
        b'\'' => cursor.quoted('\''),
        b'=' => cursor.double("==", TokenKind::Eq),
        b'&' => cursor.double("&&", TokenKind::And),
        b'|' => cursor.double("||", TokenKind::Or),
        b'!' if cursor.rest().starts_with("!=") => Ok(cursor.symbol(2, TokenKind::Ne)),
        b'!' => Ok(cursor.symbol(1, TokenKind::Not)),
        _ => match after_label {
            Some(label) => cursor
                .word_operator()
                .ok_or_else(|| SelectorErrorReason::ExpectedOperator(label.into())),
            None => cursor.term(),
        },
    }
}

struct Cursor<'t> {
    text: &'t str,
    offset: usize,
}

impl<'t> Cursor<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.offset..]
    }

    /// Skips spaces and tabs. A line break causes an error, as in upstream.
    fn skip_blanks(&mut self) {
        self.offset += count(self.rest(), |b| matches!(b, b' ' | b'\t'));
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.offset += text.len();
        }
        found
    }

    fn symbol(&mut self, length: usize, kind: TokenKind<'t>) -> TokenKind<'t> {
        self.offset += length;
        kind
    }

    fn double(
        &mut self,
        operator: &'static str,
        kind: TokenKind<'t>,
    ) -> Result<TokenKind<'t>, SelectorErrorReason> {
        if self.eat(operator) {
            Ok(kind)
        } else {
            Err(SelectorErrorReason::IncompleteOperator(operator))
        }
    }

    fn quoted(&mut self, quote: char) -> Result<TokenKind<'t>, SelectorErrorReason> {
        let body = &self.rest()[1..];
        let end = body
            .find(quote)
            .ok_or(SelectorErrorReason::UnterminatedString)?;
        self.offset += end + 2;
        Ok(TokenKind::Text(&body[..end]))
    }

    /// Reads `has(x)`, `all()`, `global()` or a label.
    fn term(&mut self) -> Result<TokenKind<'t>, SelectorErrorReason> {
        if self.eat("has(") {
            self.skip_blanks();
            let label = self.label()?;
            self.close("has", TokenKind::Has(label))
        } else if self.eat("all(") {
            self.close("all", TokenKind::All)
        } else if self.eat("global(") {
            self.close("global", TokenKind::Global)
        } else {
            self.label().map(TokenKind::Label)
        }
    }

    fn close(
        &mut self,
        function: &'static str,
        kind: TokenKind<'t>,
    ) -> Result<TokenKind<'t>, SelectorErrorReason> {
        self.skip_blanks();
        if self.eat(")") {
            Ok(kind)
        } else {
            Err(SelectorErrorReason::Unclosed(function))
        }
    }

    fn label(&mut self) -> Result<&'t str, SelectorErrorReason> {
        let label = &self.rest()[..count(self.rest(), is_label_byte)];
        match label.len() {
            0 => Err(SelectorErrorReason::ExpectedIdentifier),
            1..=MAX_LABEL => {
                self.offset += label.len();
                Ok(label)
            }
            _ => Err(SelectorErrorReason::LabelTooLong(label.into())),
        }
    }

    fn word_operator(&mut self) -> Option<TokenKind<'t>> {
        const OPERATORS: [(&[&str], TokenKind<'_>); 5] = [
            (&["contains"], TokenKind::Contains),
            (&["starts", "with"], TokenKind::StartsWith),
            (&["ends", "with"], TokenKind::EndsWith),
            (&["not", "in"], TokenKind::NotIn),
            (&["in"], TokenKind::In),
        ];
        let start = self.offset;
        for (words, kind) in OPERATORS {
            if self.words(words) {
                return Some(kind);
            }
            self.offset = start;
        }
        None
    }

    /// Reads whole `words`, with or without blanks between them.
    fn words(&mut self, words: &[&str]) -> bool {
        for (i, word) in words.iter().enumerate() {
            if i > 0 {
                self.skip_blanks();
            }
            if !self.eat(word) {
                return false;
            }
        }
        !self.rest().bytes().next().is_some_and(is_label_byte)
    }
}

fn is_label_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-')
}

fn count(text: &str, accept: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|b| accept(*b)).count()
}
