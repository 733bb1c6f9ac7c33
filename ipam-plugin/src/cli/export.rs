//! `export`: writes all data of the datastore as text that `import` reads.

use std::fs::{File, OpenOptions};
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::export;

use super::error::CliError;
use super::progress::Progress;
use super::session::{Outcome, Session};

/// Write all of Calico's data to a file or stdout
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam export backup.jsonl
  calico-ipam export --datastore-type local | calico-ipam import - --etcd-endpoints http://127.0.0.1:2379

The text is JSON Lines: a header, then one line for each key with its value as it is stored. It is one snapshot.")]
pub(super) struct ExportArgs {
    /// The file, which must not exist yet; stdout if it is - or omitted
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub(super) async fn run(args: &ExportArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    let progress = Progress::new("exporting", 0);
    let tell = |done, total| progress.at(done, total);
    match args.file.as_deref().filter(|file| file.as_os_str() != "-") {
        None => _ = export::export(session.store, &mut *session.out, tell).await?,
        Some(path) => {
            let pairs = export::export(session.store, BufWriter::new(create(path)?), tell).await?;
            drop(progress);
            session.notice(format_args!(
                "{pairs} keys of {} exported to {}",
                session.datastore.clone(),
                path.display()
            ));
        }
    }
    Ok(Outcome::Fine)
}

/// Creates a file that only its owner may read: the data name every pod, and may contain keys.
fn create(path: &Path) -> Result<File, CliError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|cause| CliError::File { what: "write", path: path.display().to_string(), cause })
}
