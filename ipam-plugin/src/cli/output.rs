//! The output formats: tables for operators, JSON and YAML for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::presets::ASCII_FULL_CONDENSED;
use comfy_table::{Cell, Table};
use netconf::printable;
use serde::Serialize;

use super::error::CliError;

/// The format of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Tables and sentences
    #[default]
    Table,
    /// A JSON document
    Json,
    /// A YAML document
    Yaml,
}

/// Prints `value` as JSON or YAML. Returns `false` if the format is a table, which the caller has to print.
pub(super) fn document(format: Format, out: &mut dyn Write, value: &impl Serialize) -> Result<bool, CliError> {
    match format {
        Format::Table => return Ok(false),
        Format::Json => json(out, value)?,
        Format::Yaml => {
            let text = serde_norway::to_string(value).map_err(|error| CliError::Encode(error.to_string()))?;
            // YAML escapes only in quoted strings, and leaves some control characters as they are. JSON is also valid
            // YAML.
            if printable::lines(&text) != text {
                json(out, value)?;
            } else {
                out.write_all(text.as_bytes()).map_err(CliError::Output)?;
            }
        }
    }
    Ok(true)
}

fn json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(|error| CliError::Output(error.into()))?;
    writeln!(out).map_err(CliError::Output)
}

/// Creates a table with this header.
pub(super) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_FULL_CONDENSED).set_header(header);
    table
}

/// Returns a table cell for a text, whose line breaks stay in the cell.
pub(super) fn cell(text: impl AsRef<str>) -> Cell {
    Cell::new(printable::lines(text.as_ref()))
}

/// Prints a table.
pub(super) fn print_table(out: &mut dyn Write, table: &Table) -> Result<(), CliError> {
    writeln!(out, "{table}").map_err(CliError::Output)
}

/// A writer for a terminal, which escapes control characters as JSON does, so that the meaning of a JSON document does
/// not change. Line breaks and tabs are not escaped.
pub(super) struct Terminal<W: Write> {
    inner: W,
    /// The incomplete last line.
    line: Vec<u8>,
}

impl<W: Write> Terminal<W> {
    pub(super) fn new(inner: W) -> Self {
        Terminal { inner, line: Vec::new() }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.inner.write_all(printable::lines(&String::from_utf8_lossy(&line)).as_bytes())
    }
}

impl<W: Write> Write for Terminal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_line()?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_characters_that_come_in_parts() {
        let mut shown = Vec::new();
        let mut terminal = Terminal::new(&mut shown);
        for byte in "a\x1b[2J\u{9b}ü\nb\r".as_bytes() {
            terminal.write_all(&[*byte]).unwrap();
        }
        terminal.flush().unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), "a\\u001b[2J\\u009bü\nb\\r");
    }

    #[test]
    fn documents_keep_their_values_and_hold_no_control_character() {
        for text in ["\x1b[2J", "\x7f", "\u{85}", "\u{9b}1A", "\u{202e}", "\u{2028}", "a\nb", "\t", "plain"] {
            for format in [Format::Json, Format::Yaml] {
                let (value, mut shown) = (serde_json::json!({ "a": text }), Vec::new());
                let mut terminal = Terminal::new(&mut shown);
                document(format, &mut terminal, &value).unwrap();
                terminal.flush().unwrap();
                let shown = String::from_utf8(shown).unwrap();
                assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{format:?} {shown:?}");
                assert_eq!(serde_norway::from_str::<serde_json::Value>(&shown).unwrap(), value, "{format:?} {shown}");
            }
        }
    }
}
