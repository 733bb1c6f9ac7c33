//! `export`: writes all data of the datastore as text. `import`: loads that text.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::export::{self, OnExisting};
use serde::Serialize;

use super::app::{App, CommandOutcome, Progress};
use super::documents;
use super::error::CliError;

/// Write all of Calico's data to a file or stdout
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam export backup.jsonl
  calico-ipam export --datastore-type local | calico-ipam import - --etcd-endpoints http://127.0.0.1:2379

The text is JSON Lines: a header, then one line for each key with its value as it is stored. It is one snapshot. With
a file, -o prints the name of the file and the number of keys.

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct ExportArgs {
    /// The file, which must not exist yet; stdout if it is - or omitted
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// The document of an export to a file.
#[derive(Serialize)]
struct Exported {
    file: String,
    keys: usize,
}

/// The document of an import: the number of keys for each outcome.
#[derive(Serialize)]
struct Imported {
    created: usize,
    replaced: usize,
    unchanged: usize,
}

pub(super) async fn export(args: &ExportArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let progress = Progress::new("exporting", 0);
    let show_progress = |completed, total| progress.set(completed, total);
    match args.file.as_deref().filter(|file| file.as_os_str() != "-") {
        None => _ = export::export(app.store, &mut *app.out, show_progress).await?,
        Some(path) => {
            let pairs = export::export(app.store, BufWriter::new(create_private(path)?), show_progress).await?;
            drop(progress);
            app.notice(format_args!("{pairs} keys of {} exported to {}", app.datastore.clone(), path.display()));
            let file = path.display().to_string();
            documents::print_document(app.format, app.out, &Exported { file, keys: pairs })?;
        }
    }
    Ok(CommandOutcome::Success)
}

/// Creates a file that only its owner may read: the data name every pod, and may contain keys.
pub(super) fn create_private(path: &Path) -> Result<File, CliError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(CliError::file("write", path))
}

/// Load data that `export` wrote
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam import backup.jsonl --datastore-path /var/lib/calico/calico.db
  calico-ipam import - --overwrite <backup.jsonl

All keys are read and compared before the first write. Keys that the file does not contain stay unchanged.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct ImportArgs {
    /// The file; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace existing keys with other values
    #[arg(long)]
    overwrite: bool,
}

pub(super) async fn import(args: &ImportArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let existing = if args.overwrite { OnExisting::Overwrite } else { OnExisting::Keep };
    let input = open_input(&args.file)?;
    let progress = Progress::new("importing", 0);
    let imported = export::import(app.store, input, existing, |done, total| progress.set(done, total)).await?;
    drop(progress);
    let export::ImportSummary { created, replaced, unchanged } = imported;
    app.notice(format_args!("{created} keys created, {replaced} replaced, {unchanged} unchanged"));
    documents::print_document(app.format, app.out, &Imported { created, replaced, unchanged })?;
    Ok(CommandOutcome::Success)
}

pub(super) fn open_input(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    Ok(Box::new(BufReader::new(File::open(path).map_err(CliError::file("read", path))?)))
}

#[cfg(test)]
mod tests {
    use crate::cli::testing::Shell;

    #[test]
    fn export_and_import_round_trip_between_datastores() {
        let (from, to) = (Shell::with_pool(), Shell::new());
        from.allocate("a");
        let file = from.dir.path().join("backup.jsonl");
        let file = file.to_str().unwrap();
        assert!(from.run(&["export", file]).notices.contains("keys of the test's exported to"));
        assert!(to.run(&["import", file]).notices.contains(" 0 unchanged\n"));
        assert_eq!(to.ok(&["export"]), std::fs::read_to_string(file).unwrap());
        assert_eq!(to.ok(&["export", "-"]), from.ok(&["export"]));
        assert!(to.run(&["import", file]).notices.starts_with("0 keys created, 0 replaced, "));
    }

    #[test]
    fn import_overwrites_existing_keys_only_if_requested() {
        let (from, to) = (Shell::with_pool(), Shell::with_pool());
        let file = from.file("backup.jsonl", &from.ok(&["export"]));
        let error = to.error(&["import", &file]);
        assert!(error.contains("nothing was imported") && error.contains("--overwrite"), "{error}");
        to.ok(&["import", "--overwrite", &file]);
        assert_eq!(to.ok(&["export"]), from.ok(&["export"]));
    }

    #[test]
    fn export_over_an_existing_file_and_import_of_a_missing_file_fail() {
        let shell = Shell::new();
        let file = shell.file("there.jsonl", "precious");
        let error = shell.error(&["export", &file]);
        assert!(error.starts_with(&format!("cannot write {file}: File exists")), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(shell.error(&["import", "/no/such"]).starts_with("cannot read /no/such: No such file"));
        assert!(shell.error(&["import", &file]).contains("not a Calico export"));
    }
}
