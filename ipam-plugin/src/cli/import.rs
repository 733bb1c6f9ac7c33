//! `import`: loads the output of `export`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::export::{self, OnExisting};

use super::error::CliError;
use super::progress::Progress;
use super::session::{Outcome, Session};

/// Load data that `export` wrote
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam import backup.jsonl --datastore-path /var/lib/calico/calico.db
  calico-ipam import - --overwrite <backup.jsonl

All is read and compared before anything is written. Keys that the file does not name stay as they are.")]
pub(super) struct ImportArgs {
    /// The file; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace existing keys with other values
    #[arg(long)]
    overwrite: bool,
}

pub(super) async fn run(args: &ImportArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    let existing = if args.overwrite { OnExisting::Overwrite } else { OnExisting::Keep };
    let input = open(&args.file)?;
    let progress = Progress::new("importing", 0);
    let imported = export::import(session.store, input, existing, |done, total| progress.at(done, total)).await?;
    drop(progress);
    let export::ImportSummary { created, replaced, unchanged } = imported;
    session.notice(format_args!("{created} keys created, {replaced} replaced, {unchanged} unchanged"));
    Ok(Outcome::Fine)
}

fn open(path: &Path) -> Result<Box<dyn BufRead>, CliError> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    match File::open(path) {
        Ok(file) => Ok(Box::new(BufReader::new(file))),
        Err(cause) => Err(CliError::File { what: "read", path: path.display().to_string(), cause }),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::testing::Shell;

    #[test]
    fn an_export_goes_into_another_datastore_and_back_the_same() {
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
    fn nothing_is_overwritten_unless_asked_for() {
        let (from, to) = (Shell::with_pool(), Shell::with_pool());
        let file = from.file("backup.jsonl", &from.ok(&["export"]));
        let error = to.error(&["import", &file]);
        assert!(error.contains("nothing was imported") && error.contains("--overwrite"), "{error}");
        to.ok(&["import", "--overwrite", &file]);
        assert_eq!(to.ok(&["export"]), from.ok(&["export"]));
    }

    #[test]
    fn files_that_are_in_the_way_or_not_there() {
        let shell = Shell::new();
        let file = shell.file("there.jsonl", "precious");
        let error = shell.error(&["export", &file]);
        assert!(error.starts_with(&format!("write {file}: File exists")), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(shell.error(&["import", "/no/such"]).starts_with("read /no/such: No such file"));
        assert!(shell.error(&["import", &file]).contains("not a Calico export"));
    }
}
