//! How results are printed: tables for people, JSON and YAML for programs.

use std::io::Write;

use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::ASCII_FULL_CONDENSED;
use serde::Serialize;

use super::error::CliError;

/// The form of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Tables and sentences
    #[default]
    Table,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

/// Prints `value` as JSON or YAML; `false` leaves it to the caller, who was asked for a table.
pub(super) fn document(format: Format, out: &mut dyn Write, value: &impl Serialize) -> Result<bool, CliError> {
    match format {
        Format::Table => return Ok(false),
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, value).map_err(|error| CliError::Output(error.into()))?;
            writeln!(out).map_err(CliError::Output)?;
        }
        Format::Yaml => {
            let text = serde_norway::to_string(value).map_err(|error| CliError::Encode(error.to_string()))?;
            out.write_all(text.as_bytes()).map_err(CliError::Output)?;
        }
    }
    Ok(true)
}

/// A table with this header.
pub(super) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_FULL_CONDENSED).set_header(header);
    table
}

/// Prints a table.
pub(super) fn print_table(out: &mut dyn Write, table: &Table) -> Result<(), CliError> {
    writeln!(out, "{table}").map_err(CliError::Output)
}
