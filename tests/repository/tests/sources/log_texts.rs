//! The limits of log texts in docs/style.md: a text is short and one literal on one line.

use anyhow::{Result, ensure};
use regex::Regex;

use crate::program_sources;

const MOST_WORDS: usize = 16;
const MOST_WORDS_OF_A_HINT: usize = 20;
/// A comment with this text, above a call or within it, exempts the call.
const EXEMPTION: &str = "Upstream's text";
/// Fewest calls in the programs: below this number, the search has lost some.
const FEWEST: usize = 400;

/// A call of a log macro.
struct LogCall<'a> {
    /// The arguments, without the white space around them.
    arguments: Vec<&'a str>,
    is_upstreams: bool,
    line: usize,
}

impl LogCall<'_> {
    /// Returns the faults of the text and of the hint.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.is_upstreams {
            return faults;
        }
        let is_text = |argument: &&&str| argument.starts_with('"') || argument.starts_with("r\"");
        if let Some(text) = self.arguments.iter().find(is_text) {
            faults.extend(past(text, MOST_WORDS));
            if text.contains('\n') {
                faults.push(format!("a text broken over lines: {text}"));
            }
        }
        for argument in &self.arguments {
            // `concat!` breaks a text as a backslash does.
            if argument.starts_with("concat!") {
                faults.push(format!("a text of several literals: {argument}"));
            }
            let field = argument.split_once('=');
            if let Some((_, hint)) = field.filter(|(name, _)| name.trim() == "hint") {
                faults.extend(past(hint, MOST_WORDS_OF_A_HINT));
            }
        }
        faults
    }
}

fn past(text: &str, most: usize) -> Option<String> {
    let words = text
        .split(|letter: char| letter.is_whitespace() || letter == '"')
        .filter(|word| !word.is_empty() && *word != "\\")
        .count();
    (words > most).then(|| format!("{words} words, at most {most}: {}", text.trim()))
}

/// Returns the calls of log macros in a source.
fn log_calls(source: &str) -> Result<Vec<LogCall<'_>>> {
    let call = Regex::new(r"\b(?:trace|debug|info|warn|error|event)!\(")?;
    let calls = call.find_iter(source).filter_map(|found| {
        let begin = source[..found.start()].rfind('\n').map_or(0, |at| at + 1);
        if source[begin..found.start()].trim_start().starts_with("//") {
            return None;
        }
        let (arguments, length) = arguments(&source[found.end()..]);
        let before = source[..begin].lines().rev();
        let above = before.take_while(|line| line.trim_start().starts_with("//"));
        let within = source[found.start()..found.end() + length].lines();
        Some(LogCall {
            arguments,
            is_upstreams: above.chain(within).any(|line| line.contains(EXEMPTION)),
            line: source[..found.start()].matches('\n').count() + 1,
        })
    });
    Ok(calls.collect())
}

/// Splits the text after an opening parenthesis at the commas of its level, up to the closing
/// parenthesis. Returns the arguments without comments before them, and the length of the text.
fn arguments(text: &str) -> (Vec<&str>, usize) {
    let (mut found, mut begin, mut depth) = (Vec::new(), 0, 0);
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => {
                while let Some((_, letter)) = letters.next().filter(|(_, letter)| *letter != '"') {
                    if letter == '\\' {
                        letters.next();
                    }
                }
            }
            '/' if text[at..].starts_with("//") => {
                while letters.next_if(|(_, letter)| *letter != '\n').is_some() {}
                if text[begin..at].trim().is_empty() {
                    begin = letters.peek().map_or(text.len(), |(at, _)| *at);
                }
            }
            '\'' => {
                let mut rest = text[at + 1..].chars();
                let is_escape = rest.next() == Some('\\');
                // Otherwise the quote begins a lifetime.
                if is_escape || rest.next() == Some('\'') {
                    letters.nth(1 + usize::from(is_escape));
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                found.push(text[begin..at].trim());
                return (found, at);
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    (found, text.len())
}

#[test]
fn log_texts_and_hints_are_short_and_on_one_line() -> Result<()> {
    let (mut calls, mut faults) = (0, Vec::new());
    for source in program_sources()? {
        for call in log_calls(&source.text)? {
            calls += 1;
            let place = format!("{}:{}", source.path, call.line);
            faults.extend(
                call.faults()
                    .iter()
                    .map(|fault| format!("{place}: {fault}")),
            );
        }
    }
    ensure!(
        faults.is_empty(),
        "{} log texts:\n{}",
        faults.len(),
        faults.join("\n")
    );
    ensure!(calls >= FEWEST, "only {calls} log calls were found");
    Ok(())
}

#[test]
fn log_text_that_is_long_or_broken_is_a_fault_unless_it_is_upstreams() -> Result<()> {
    let faults = |source: &str| -> Result<usize> {
        let calls = log_calls(source)?;
        assert_eq!(calls.len(), 1, "{source}");
        Ok(calls[0].faults().len())
    };
    let (sixteen, twenty) = ("word ".repeat(16), "word ".repeat(20));
    for (source, expected) in [
        (format!("warn!(name = ')', %error, \"{sixteen}\");"), 0),
        (
            format!("tracing::warn!(pods = f(a, \"b\"), \"{sixteen}more\");"),
            1,
        ),
        (format!("// Upstream's text.\nwarn!(\"{sixteen}more\");"), 0),
        (
            format!("warn!(\n// Upstream's text.\n\"{sixteen}more\");"),
            0,
        ),
        (format!("// Another comment.\nwarn!(\"{sixteen}more\");"), 1),
        ("info!(\"two \\\n    words\");".to_owned(), 1),
        ("info!(concat!(\"two \", \"words\"));".to_owned(), 1),
        (format!("warn!(hint = \"{twenty}\", \"text\");"), 0),
        (format!("warn!(hint = \"{twenty}more\", \"text\");"), 1),
        (format!("warn!(hint = \"{twenty}\\\n more\", \"text\");"), 1),
        (
            format!("warn!(hint = \"{twenty}more\", \"{sixteen}more\");"),
            2,
        ),
    ] {
        ensure!(faults(&source)? == expected, "{source}");
    }
    Ok(())
}
