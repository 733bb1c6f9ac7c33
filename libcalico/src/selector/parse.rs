//! [`parse`]: builds an expression from tokens. `!` binds tightest, then `&&`, then `||`.

use super::ast::{Compare, Expr, ValueSet};
use super::token::{Token, TokenKind, tokenize};
use super::{MAX_NESTING, SelectorError, SelectorErrorReason};

/// Parses a complete selector.
pub(super) fn parse(text: &str) -> Result<Expr, SelectorError> {
    let tokens = tokenize(text)?;
    let mut parser = Parser {
        text,
        tokens: &tokens,
        next: 0,
    };
    if parser.peek().kind == TokenKind::End {
        return Ok(Expr::All);
    }
    let expr = parser.expression()?;
    match parser.peek() {
        Token {
            kind: TokenKind::End,
            ..
        } => Ok(expr),
        rest => Err(error(
            rest,
            SelectorErrorReason::TrailingContent(text[rest.offset..].into()),
        )),
    }
}

/// A reader of tokens that never moves past the last one, `End`.
struct Parser<'t> {
    text: &'t str,
    tokens: &'t [Token<'t>],
    next: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Token<'t> {
        self.tokens[self.next]
    }

    fn take(&mut self) -> Token<'t> {
        let token = self.peek();
        if token.kind != TokenKind::End {
            self.next += 1;
        }
        token
    }

    fn eat(&mut self, kind: TokenKind<'_>) -> bool {
        let found = self.peek().kind == kind;
        if found {
            self.take();
        }
        found
    }

    /// Parses an expression. Open parentheses are on an explicit stack, so that the parser does not
    /// recurse.
    fn expression(&mut self) -> Result<Expr, SelectorError> {
        let mut outer: Vec<Group> = Vec::new();
        let mut group = Group::default();
        loop {
            let negated = self.negations();
            let token = self.take();
            if token.kind == TokenKind::OpenParen {
                if outer.len() == MAX_NESTING {
                    return Err(error(token, SelectorErrorReason::TooDeep));
                }
                outer.push(std::mem::replace(
                    &mut group,
                    Group {
                        negated,
                        ..Group::default()
                    },
                ));
                continue;
            }
            group.push(negate(self.term(token)?, negated));
            while !group.continues_after(self.peek().kind) {
                let Some(parent) = outer.pop() else {
                    return Ok(group.into_expr());
                };
                self.expect(
                    TokenKind::CloseParen,
                    SelectorErrorReason::UnclosedParenthesis,
                )?;
                let negated = group.negated;
                let closed = std::mem::replace(&mut group, parent);
                group.push(negate(closed.into_expr(), negated));
            }
            self.take();
        }
    }

    /// Consumes any number of `!`. Returns true if their number is odd.
    fn negations(&mut self) -> bool {
        let mut negated = false;
        while self.eat(TokenKind::Not) {
            negated = !negated;
        }
        negated
    }

    /// Parses a term, whose first token is `first`.
    fn term(&mut self, first: Token<'t>) -> Result<Expr, SelectorError> {
        match first.kind {
            TokenKind::All => Ok(Expr::All),
            TokenKind::Global => Ok(Expr::Global),
            TokenKind::Has(label) => Ok(Expr::Has(label.into())),
            TokenKind::Label(label) => self.comparison(label),
            TokenKind::End => Err(error(first, SelectorErrorReason::UnexpectedEnd)),
            _ => {
                let character = self.text[first.offset..].chars().take(1).collect();
                Err(error(
                    first,
                    SelectorErrorReason::UnexpectedToken(character),
                ))
            }
        }
    }

    fn comparison(&mut self, label: &str) -> Result<Expr, SelectorError> {
        let operator = self.take();
        let compare = match operator.kind {
            TokenKind::Eq => Compare::Equal(self.string()?),
            TokenKind::Ne => Compare::NotEqual(self.string()?),
            TokenKind::Contains => Compare::Contains(self.string()?),
            TokenKind::StartsWith => Compare::StartsWith(self.string()?),
            TokenKind::EndsWith => Compare::EndsWith(self.string()?),
            TokenKind::In => Compare::In(self.set()?),
            TokenKind::NotIn => Compare::NotIn(self.set()?),
            TokenKind::End => return Err(error(operator, SelectorErrorReason::UnexpectedEnd)),
            _ => {
                return Err(error(
                    operator,
                    SelectorErrorReason::ExpectedOperator(label.into()),
                ));
            }
        };
        Ok(Expr::Label(label.into(), compare))
    }

    fn string(&mut self) -> Result<String, SelectorError> {
        match self.take() {
            Token {
                kind: TokenKind::Text(text),
                ..
            } => Ok(text.into()),
            other => Err(error(other, SelectorErrorReason::ExpectedString)),
        }
    }

    /// Parses `{'a', 'b'}`. The set may be empty and may have a comma after the last value.
    fn set(&mut self) -> Result<ValueSet, SelectorError> {
        self.expect(TokenKind::OpenBrace, SelectorErrorReason::ExpectedSet)?;
        let mut values = Vec::new();
        while let TokenKind::Text(text) = self.peek().kind {
            self.take();
            values.push(text.to_owned());
            if !self.eat(TokenKind::Comma) {
                break;
            }
        }
        self.expect(TokenKind::CloseBrace, SelectorErrorReason::UnclosedSet)?;
        Ok(ValueSet::from_iter(values))
    }

    fn expect(
        &mut self,
        kind: TokenKind<'_>,
        otherwise: SelectorErrorReason,
    ) -> Result<(), SelectorError> {
        let token = self.take();
        if token.kind == kind {
            Ok(())
        } else {
            Err(error(token, otherwise))
        }
    }
}

fn error(at: Token<'_>, reason: SelectorErrorReason) -> SelectorError {
    SelectorError {
        reason,
        offset: at.offset,
    }
}

fn negate(expr: Expr, negated: bool) -> Expr {
    if negated {
        Expr::Not(Box::new(expr))
    } else {
        expr
    }
}

/// The content so far of a pair of parentheses, or of the whole selector.
#[derive(Default)]
struct Group {
    /// True if an odd number of `!` precedes the parentheses.
    negated: bool,
    any_of: Vec<Expr>,
    all_of: Vec<Expr>,
}

impl Group {
    fn push(&mut self, term: Expr) {
        self.all_of.push(term);
    }

    /// Processes the token after a term. Returns true if another term must follow.
    fn continues_after(&mut self, kind: TokenKind<'_>) -> bool {
        if kind == TokenKind::Or {
            self.end_all_of();
        }
        matches!(kind, TokenKind::And | TokenKind::Or)
    }

    fn end_all_of(&mut self) {
        let terms = std::mem::take(&mut self.all_of);
        self.any_of.push(single_or_joined(terms, Expr::And));
    }

    fn into_expr(mut self) -> Expr {
        self.end_all_of();
        single_or_joined(self.any_of, Expr::Or)
    }
}

fn single_or_joined(mut terms: Vec<Expr>, join: fn(Vec<Expr>) -> Expr) -> Expr {
    if terms.len() == 1 {
        terms.swap_remove(0)
    } else {
        join(terms)
    }
}
