//! Documents of operators: manifests as input, and results as output.

use std::error::Error;
use std::io::{self, Write};
use std::iter;
use std::path::Path;

use clap::ValueEnum;
use comfy_table::presets::ASCII_FULL_CONDENSED;
use comfy_table::{Cell, LineStyle, Table, TableStyle};
use libcalico::failure::{Failure, OrFail};
use libcalico::validation::manifest::{self, Manifest};
use libcalico::yaml;
use netconf::printable;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{CliError, file_failure};
use super::input_file::{self, MAX_MANIFESTS};

/// Reads all manifests of `path`, or of stdin for `-`. An invalid manifest rejects all of them.
pub(super) fn read_manifests(path: &Path) -> Result<Vec<Manifest>, Failure> {
    let file = if path.as_os_str() == "-" {
        Path::new("stdin")
    } else {
        path
    };
    let text = input_file::text(path, MAX_MANIFESTS).map_err(file_failure("read", file))?;
    parse_manifests(&file.display().to_string(), &text)
}

pub(super) fn parse_manifests(file: &str, text: &str) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    for (index, document) in documents(text).enumerate() {
        let place = format!("{file}, document {}", index + 1);
        for object in objects(
            document
                .map_err(|error| error.to_string())
                .or_fail(&place)?,
        ) {
            manifests.push(manifest::decode(object).or_fail(&place)?);
        }
    }
    if manifests.is_empty() {
        Err(Failure::new(format_args!("{file} contains no object"))
            .way_out("write documents with apiVersion, kind, metadata and spec"))
    } else {
        Ok(manifests)
    }
}

/// The YAML parser accepts JSON, but neither consecutive JSON values nor tabs.
fn documents(text: &str) -> Box<dyn Iterator<Item = Result<Value, Box<dyn Error>>> + '_> {
    if text.trim_start().starts_with(['{', '[']) {
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        return Box::new(values.map(|value| value.map_err(Box::from)));
    }
    match yaml::documents(text) {
        Ok(values) => Box::new(values.map(|value| Value::deserialize(value).map_err(Box::from))),
        Err(error) => Box::new(iter::once(Err(error.into()))),
    }
}

/// Returns none for an empty document, the items of a list, or otherwise the document itself.
fn objects(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        Value::Object(mut object) if is_list(&object) => {
            objects(object.remove("items").unwrap_or_default())
        }
        other => vec![other],
    }
}

fn is_list(object: &Map<String, Value>) -> bool {
    let kind = object.get("kind").and_then(Value::as_str);
    object.get("items").is_some_and(Value::is_array)
        && kind.is_some_and(|kind| kind.ends_with("List"))
}

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

/// Returns `false` if the format is a table, which the caller has to print.
pub(super) fn print_document(
    format: Format,
    out: &mut dyn Write,
    value: &impl Serialize,
) -> Result<bool, CliError> {
    match format {
        Format::Table => return Ok(false),
        Format::Json => print_json(out, value)?,
        Format::Yaml => {
            // The text of a long list would take more memory than the list.
            let mut check = PrintableCheck::default();
            serde_norway::to_writer(&mut check, value).map_err(CliError::encode)?;
            // YAML leaves some control characters as they are. JSON is also valid YAML.
            if check.has_found() {
                print_json(out, value)?;
            } else {
                print_yaml(out, value)?;
            }
        }
    }
    Ok(true)
}

fn print_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value)
        .map_err(|error| CliError::Output(error.into()))?;
    writeln!(out).map_err(CliError::Output)
}

fn print_yaml(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    let mut out = FailureWriter {
        inner: out,
        failure: None,
    };
    let written = serde_norway::to_writer(&mut out, value);
    written.map_err(|error| {
        out.failure
            .map_or_else(|| CliError::encode(error), CliError::Output)
    })
}

/// A writer that keeps its error, which the YAML encoder hides in its own.
struct FailureWriter<'a> {
    inner: &'a mut dyn Write,
    failure: Option<io::Error>,
}

impl Write for FailureWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes).map_err(|error| {
            let kind = error.kind();
            self.failure = Some(error);
            kind.into()
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// A writer that only looks for control characters.
#[derive(Debug, Default)]
struct PrintableCheck {
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
    found_unprintable: bool,
}

impl PrintableCheck {
    fn has_found(&self) -> bool {
        let line = String::from_utf8_lossy(&self.line);
        self.found_unprintable || printable::lines(&line) != line
    }
}

impl Write for PrintableCheck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.found_unprintable = self.has_found();
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The style of calicoctl's tables.
const TABLE_STYLE: TableStyle =
    ASCII_FULL_CONDENSED.header_separator(LineStyle::new('+', '-', '+', '+'));

pub(super) fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(TABLE_STYLE).set_header(header);
    table
}

pub(super) fn table_cell(text: impl AsRef<str>) -> Cell {
    Cell::new(printable::lines(text.as_ref()))
}

pub(super) fn print_table(out: &mut dyn Write, table: &Table) -> Result<(), CliError> {
    writeln!(out, "{table}").map_err(CliError::Output)
}

/// Prints a long table as [`print_table`] does, with a fraction of its memory. The cells have no
/// control characters but line breaks.
pub(super) fn print_rows<const N: usize>(
    out: &mut dyn Write,
    header: &[&str; N],
    rows: &[[Box<str>; N]],
) -> Result<(), CliError> {
    let width = |text: &str| {
        text.lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| width(&row[column]))
            .chain([header[column].len()])
            .max()
            .unwrap_or_default()
    });
    let rule: String = widths
        .iter()
        .map(|width| format!("+{}", "-".repeat(width + 2)))
        .collect::<String>()
        + "+";
    let mut print = |line: &str| writeln!(out, "{line}").map_err(CliError::Output);
    let line = |cells: [&str; N]| -> String {
        let cells = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("| {cell:<width$} "));
        cells.collect::<String>() + "|"
    };
    print(&rule)?;
    print(&line(*header))?;
    print(&rule)?;
    for row in rows {
        let height = row
            .iter()
            .map(|cell| cell.lines().count())
            .max()
            .unwrap_or_default()
            .max(1);
        for number in 0..height {
            print(&line(std::array::from_fn(|column| {
                row[column].lines().nth(number).unwrap_or_default()
            })))?;
        }
    }
    print(&rule)
}

/// A writer for a terminal, which escapes control characters as JSON does, except line breaks and
/// tabs.
pub(super) struct Terminal<W: Write> {
    inner: W,
    line: Vec<u8>,
}

impl<W: Write> Terminal<W> {
    pub(super) fn new(inner: W) -> Self {
        Terminal {
            inner,
            line: Vec::new(),
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.inner
            .write_all(printable::lines(&String::from_utf8_lossy(&line)).as_bytes())
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

    const POOL: &str = r#"{"apiVersion":"projectcalico.org/v3","kind":"IPPool","metadata":{"name":"p"},"spec":{}}"#;
    const NODE: &str = "apiVersion: projectcalico.org/v3\nkind: Node\nmetadata:\n  name: n\n";

    fn kinds(text: &str) -> Vec<&'static str> {
        let kind = |manifest: &Manifest| match manifest {
            Manifest::IpPool(_) => "IPPool",
            Manifest::Node(_) => "Node",
            _ => "other",
        };
        parse_manifests("f", text)
            .unwrap()
            .iter()
            .map(kind)
            .collect()
    }

    #[test]
    fn manifests_are_parsed_from_yaml_json_and_lists() {
        assert_eq!(kinds(NODE), ["Node"]);
        assert_eq!(
            kinds(&format!("---\n{NODE}---\n# nothing\n---\n{NODE}")),
            ["Node", "Node"]
        );
        assert_eq!(kinds(&format!("{POOL}\n{POOL}")), ["IPPool", "IPPool"]);
        assert_eq!(
            kinds(&format!("---\n{NODE}---\n{POOL}\n")),
            ["Node", "IPPool"]
        );
        assert_eq!(kinds(&format!("[{POOL},{POOL}]")), ["IPPool", "IPPool"]);
        assert_eq!(
            kinds(&format!(
                r#"{{"kind":"IPPoolList","apiVersion":"x","items":[{POOL}]}}"#
            )),
            ["IPPool"]
        );
    }

    #[test]
    fn long_table_looks_like_other_tables() {
        let rows = [
            ["a", "10.0.0.1/32\nfd00::1/128"],
            ["", ""],
            ["long name", "é"],
        ]
        .map(|row| row.map(Box::from));
        for rows in [&rows[..], &[]] {
            let (mut long, mut other) = (Vec::new(), Vec::new());
            print_rows(&mut long, &["NAME", "NETWORKS"], rows).unwrap();
            let mut table = new_table(["NAME", "NETWORKS"]);
            rows.iter()
                .for_each(|row: &[Box<str>; 2]| _ = table.add_row(row.iter().map(table_cell)));
            print_table(&mut other, &table).unwrap();
            assert_eq!(
                String::from_utf8(long).unwrap(),
                String::from_utf8(other).unwrap()
            );
        }
    }

    #[test]
    fn parse_errors_name_the_document() {
        let error = |text: &str| parse_manifests("pools.yaml", text).unwrap_err().to_string();
        let second = error(&format!("{NODE}---\nkind: Pool\n"));
        assert!(
            second.starts_with("pools.yaml, document 2: unsupported kind \"Pool\""),
            "{second}"
        );
        assert!(error("a: [").starts_with("pools.yaml, document 1: "));
        assert!(error("{\"a\": ").starts_with("pools.yaml, document 1: "));
        assert!(error("").starts_with("pools.yaml contains no object"));
        assert!(error("# only a comment\n").starts_with("pools.yaml contains no object"));
    }

    #[test]
    fn terminal_escapes_control_characters_written_in_parts() {
        let mut shown = Vec::new();
        let mut terminal = Terminal::new(&mut shown);
        for byte in "a\x1b[2J\u{9b}ü\nb\r".as_bytes() {
            terminal.write_all(&[*byte]).unwrap();
        }
        terminal.flush().unwrap();
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            "a\\u001b[2J\\u009bü\nb\\r"
        );
    }

    #[test]
    fn printed_documents_round_trip_and_contain_no_control_characters() {
        for text in [
            "\x1b[2J", "\x7f", "\u{85}", "\u{9b}1A", "\u{202e}", "\u{2028}", "a\nb", "\t", "plain",
        ] {
            for format in [Format::Json, Format::Yaml] {
                let (value, mut shown) = (serde_json::json!({ "a": text }), Vec::new());
                let mut terminal = Terminal::new(&mut shown);
                print_document(format, &mut terminal, &value).unwrap();
                terminal.flush().unwrap();
                let shown = String::from_utf8(shown).unwrap();
                assert!(
                    !shown.contains(|c: char| c.is_control() && c != '\n'),
                    "{format:?} {shown:?}"
                );
                assert_eq!(
                    serde_norway::from_str::<serde_json::Value>(&shown).unwrap(),
                    value,
                    "{format:?} {shown}"
                );
            }
        }
    }
}
