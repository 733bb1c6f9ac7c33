//! `export`: writes all data of the datastore as text. `import`: loads that text.

use std::io::{BufWriter, ErrorKind};
use std::path::PathBuf;

use clap::Args;
use datastore::export::{self, OnExisting, TransferError};
use serde::Serialize;

use super::app::{App, CommandOutcome, Progress};
use super::documents;
use super::error::{CliError, file_failure};
use super::input_file::{self, MAX_EXPORT};
use super::private_file::PrivateFile;

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

pub(super) async fn export(
    args: &ExportArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    let progress = Progress::new("exporting", 0);
    let show_progress = |completed, total| progress.set(completed, total);
    match args.file.as_deref().filter(|file| file.as_os_str() != "-") {
        None => _ = export::export(app.store, &mut *app.out, show_progress).await?,
        Some(path) => {
            let mut file = BufWriter::new(PrivateFile::create(path)?);
            let pairs = export::export(app.store, &mut file, show_progress).await?;
            file.into_inner()
                .map_err(|error| file_failure("write", path)(error.into_error()))?
                .publish()?;
            drop(progress);
            app.notice(format_args!(
                "{pairs} keys of {} exported to {}",
                app.datastore.clone(),
                path.display()
            ));
            let file = path.display().to_string();
            documents::print_document(app.format, app.out, &Exported { file, keys: pairs })?;
        }
    }
    Ok(CommandOutcome::Success)
}

/// Load data that `export` wrote
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam import backup.jsonl --datastore-path /var/lib/calico/calico.db
  calico-ipam import - --overwrite <backup.jsonl

All keys are read and compared before the first write. Keys that the file does not contain stay unchanged. An import of
more than 100 keys locks the datastore until it is complete. If it is interrupted, run it again: it continues.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct ImportArgs {
    /// The file; - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replace existing keys with other values
    #[arg(long)]
    overwrite: bool,
}

pub(super) async fn import(
    args: &ImportArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    let existing = if args.overwrite {
        OnExisting::Overwrite
    } else {
        OnExisting::Keep
    };
    let input = input_file::open(&args.file, MAX_EXPORT)?;
    let progress = Progress::new("importing", 0);
    let imported = export::import(app.store, input, existing, |done, total| {
        progress.set(done, total)
    })
    .await;
    drop(progress);
    let imported = imported.map_err(|error| match error {
        TransferError::Io(cause) if cause.kind() == ErrorKind::FileTooLarge => {
            CliError::from(file_failure("read", &args.file)(cause))
        }
        error => error.into(),
    })?;
    let export::ImportSummary {
        created,
        replaced,
        unchanged,
    } = imported;
    app.notice(format_args!(
        "{created} keys created, {replaced} replaced, {unchanged} unchanged"
    ));
    documents::print_document(
        app.format,
        app.out,
        &Imported {
            created,
            replaced,
            unchanged,
        },
    )?;
    Ok(CommandOutcome::Success)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use datastore::export::{self, OnExisting};
    use libcalico::migration::IMPORTING;
    use node_process::process::block_on;

    use crate::cli::testing::Shell;

    #[test]
    fn export_and_import_round_trip_between_datastores() {
        let (from, to) = (Shell::with_pool(), Shell::new());
        from.allocate("a");
        let file = from.dir.path().join("backup.jsonl");
        let file = file.to_str().unwrap();
        assert!(
            from.run(&["export", file])
                .notices
                .contains("keys of the test's exported to")
        );
        assert!(to.run(&["import", file]).notices.contains(" 0 unchanged\n"));
        assert_eq!(to.ok(&["export"]), std::fs::read_to_string(file).unwrap());
        assert_eq!(to.ok(&["export", "-"]), from.ok(&["export"]));
        assert!(
            to.run(&["import", file])
                .notices
                .starts_with("0 keys created, 0 replaced, ")
        );
    }

    #[test]
    fn import_overwrites_existing_keys_only_if_requested() {
        let (from, to) = (Shell::with_pool(), Shell::with_pool());
        let file = from.file("backup.jsonl", &from.ok(&["export"]));
        let error = to.error(&["import", &file]);
        assert!(
            error.contains("nothing was imported") && error.contains("--overwrite"),
            "{error}"
        );
        to.ok(&["import", "--overwrite", &file]);
        assert_eq!(to.ok(&["export"]), from.ok(&["export"]));
    }

    #[test]
    fn interrupted_import_leaves_the_datastore_locked_and_the_same_import_continues() {
        let (from, to) = (Shell::with_pool(), Shell::new());
        (0..250).for_each(|n| from.put(&format!("/calico/n-{n:03}"), "1"));
        let text = from.ok(&["export"]);
        from.put("/calico/later", "1");
        let (same, other) = (
            to.file("same.jsonl", &text),
            to.file("other.jsonl", &from.ok(&["export"])),
        );
        let stop = |done: usize, _| assert!(done < 150, "the process is killed here");
        let import = export::import(&to.store, text.as_bytes(), OnExisting::Keep, stop);
        assert!(catch_unwind(AssertUnwindSafe(|| block_on(import))).is_err());

        let half = to.ok(&["export"]);
        assert!(
            half.contains(r#""datastoreReady":false"#) && half.contains(IMPORTING),
            "{half}"
        );
        assert!(
            to.error(&["import", &other])
                .contains("nothing was imported"),
            "another export"
        );
        assert!(to.error(&["migrate", "unlock"]).contains("incomplete"));
        let continued = to.json(&["import", &same]);
        assert!(
            continued["created"].as_u64() > Some(0) && continued["unchanged"].as_u64() > Some(100),
            "{continued}"
        );
        assert_eq!(to.ok(&["export"]), text);
    }

    #[test]
    fn continued_import_replaces_no_pair_that_another_program_has_changed() {
        const INFORMATION: &str =
            "/calico/resources/v3/projectcalico.org/clusterinformations/default";
        for is_unlocked in [false, true] {
            let (from, to) = (Shell::with_pool(), Shell::new());
            (0..250).for_each(|n| from.put(&format!("/calico/n-{n:03}"), "1"));
            let text = from.ok(&["export"]);
            let file = to.file("same.jsonl", &text);
            let stop = |done: usize, _| assert!(done < 150, "the process is killed here");
            let import = export::import(&to.store, text.as_bytes(), OnExisting::Keep, stop);
            assert!(catch_unwind(AssertUnwindSafe(|| block_on(import))).is_err());
            to.remove("/calico/n-000");
            to.put("/calico/n-000", "2");
            if is_unlocked {
                let stored = block_on(to.store.scan(INFORMATION)).unwrap().remove(0);
                let value = String::from_utf8(stored.value.bytes().into_owned()).unwrap();
                to.remove(INFORMATION);
                to.put(
                    INFORMATION,
                    &value.replace(r#""datastoreReady":false"#, r#""datastoreReady":true"#),
                );
            }
            let error = to.error(&["import", &file]);
            assert!(error.contains("nothing was imported"), "{error}");
            to.ok(&["import", "--overwrite", &file]);
            assert_eq!(to.ok(&["export"]), text);
        }
    }

    #[test]
    fn export_over_an_existing_file_and_import_of_a_missing_file_fail() {
        let shell = Shell::new();
        let file = shell.file("there.jsonl", "precious");
        let error = shell.error(&["export", &file]);
        assert!(
            error.starts_with(&format!("cannot write {file}: File exists")),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(
            shell
                .error(&["import", "/no/such"])
                .starts_with("cannot read /no/such: No such file")
        );
        assert!(
            shell
                .error(&["import", &file])
                .contains("not a Calico export")
        );
    }
}
