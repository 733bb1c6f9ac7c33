//! `import`: loads what `export` wrote.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::transfer::{self, Existing};

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
    /// Replace keys that are there already with other values
    #[arg(long)]
    overwrite: bool,
}

pub(super) async fn run(args: &ImportArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    let existing = if args.overwrite { Existing::Overwrite } else { Existing::Keep };
    let input = open(&args.file)?;
    let progress = Progress::new("importing", 0);
    let imported = transfer::import(session.store, input, existing, |done, total| progress.at(done, total)).await?;
    drop(progress);
    let transfer::Imported { created, replaced, unchanged } = imported;
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
