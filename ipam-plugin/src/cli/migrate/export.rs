//! `migrate export`: writes Calico's objects in etcd to a file of `calicoctl datastore migrate`.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use datastore::Datastore;
use libcalico::api::{ClusterInformation, ObjectKey};
use libcalico::failure::Failure;
use libcalico::ipam::{Block, BlockAffinity};
use libcalico::migration::calicoctl_file::{self, CalicoctlFile};
use libcalico::store::{Kind, RawEntry, StoreError};
use serde::Serialize;
use serde_json::{Value, json};

use super::datastore_type;
use super::lock::no_cluster_information;
use crate::cli::app::{App, CommandOutcome, Progress};
use crate::cli::documents;
use crate::cli::error::{CliError, file_failure, not_locked};
use crate::cli::private_file::PrivateFile;
use allocation::reads::find;

/// The beginning of the paths of all pairs.
const ROOT: &str = "/calico/";

/// Write the objects of a locked etcd to a file for `migrate import`, or for calicoctl
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam migrate export calico.yaml --etcd-endpoints http://127.0.0.1:2379
  calico-ipam migrate export >calico.yaml

The file is one snapshot. Nodes get the names that they have in Kubernetes (spec.orchRefs), wherever an object names
them. Endpoints and profiles are left out: with Kubernetes, they follow from pods and namespaces.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct ExportArgs {
    /// The file, which must not exist yet; stdout if it is - or omitted
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// The document of an export to a file: the numbers of objects.
#[derive(Serialize)]
struct Exported<'a> {
    file: String,
    resources: usize,
    ipam: usize,
    /// For each kind that is left out, by its plural.
    omitted: BTreeMap<&'a str, usize>,
}

pub(super) async fn run(args: &ExportArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    check(app).await?;
    let progress = Progress::new("exporting", 0);
    let pairs = app.store.scan(ROOT).await?;
    let file = content(&pairs)?;
    let omitted = omitted(&pairs);
    if !is_locked(&file.cluster) {
        return Err(not_locked().into());
    }
    let path = args.file.as_deref().filter(|file| file.as_os_str() != "-");
    if let Some(path) = path {
        let mut out = BufWriter::new(PrivateFile::create(path)?);
        write!(out, "{file}").map_err(file_failure("write", path))?;
        out.into_inner()
            .map_err(|error| file_failure("write", path)(error.into_error()))?
            .publish()?;
    } else {
        write!(app.out, "{file}").map_err(CliError::Output)?;
    }
    drop(progress);
    let (resources, ipam) = (file.resources.len(), file.ipam.len());
    let to = path.map_or_else(|| "stdout".to_owned(), |path| path.display().to_string());
    app.notice(format_args!(
        "{resources} resources and {ipam} objects of IPAM exported to {to}"
    ));
    if !omitted.is_empty() {
        let kinds: Vec<String> = omitted
            .iter()
            .map(|(plural, number)| format!("{number} {plural}"))
            .collect();
        app.notice(format_args!("note: not exported: {}", kinds.join(", ")));
    }
    if path.is_some() {
        documents::print_document(
            app.format,
            app.out,
            &Exported {
                file: to,
                resources,
                ipam,
                omitted,
            },
        )?;
    }
    Ok(CommandOutcome::Success)
}

/// Checks the lock, then the type of the datastore, as calicoctl does.
async fn check(app: &App<'_>) -> Result<(), CliError> {
    let information = find::<ClusterInformation>(app.store, &ObjectKey::global("default")).await?;
    let Some(information) = information else {
        return Err(no_cluster_information(&app.datastore).into());
    };
    if information.value.spec.datastore_ready != Some(false) {
        return Err(not_locked().into());
    }
    match app.store {
        // Upstream's text up to `etcdv3`.
        Datastore::Kubernetes(_) => Err(Failure::new(format_args!(
            "invalid datastore type: {} to export from for datastore migration. Datastore type \
             must be etcdv3",
            datastore_type(app.store)
        ))
        .way_out("name etcd with --etcd-endpoints")
        .into()),
        Datastore::Etcd(_) | Datastore::Local(_) => Ok(()),
    }
}

fn content(pairs: &[RawEntry]) -> Result<CalicoctlFile, CliError> {
    // Without the block, its addresses would be free.
    let is_lost =
        |path: &str| path.starts_with(&Block::prefix(&None)) && !calicoctl_file::is_exported(path);
    if let Some(lost) = pairs.iter().find(|pair| is_lost(&pair.path)) {
        return Err(calicoctl_file::invalid_object(&lost.path).into());
    }
    let mut exported = Vec::new();
    for pair in pairs
        .iter()
        .filter(|pair| calicoctl_file::is_exported(&pair.path))
    {
        let corrupt = |error: serde_json::Error| StoreError::Corrupt {
            key: pair.path.clone(),
            reason: error.to_string(),
        };
        let value: Value =
            if pair.value.bytes().is_empty() && BlockAffinity::parse_path(&pair.path).is_some() {
                // Calico before v3 wrote an empty value (DS-34).
                json!({ "state": "confirmed", "deleted": false })
            } else {
                pair.value.json().map_err(corrupt)?.into_owned()
            };
        exported.push((pair.path.clone(), value));
    }
    Ok(calicoctl_file::of_pairs(&exported)?)
}

/// Returns the number of objects of each kind that no file contains.
fn omitted(pairs: &[RawEntry]) -> BTreeMap<&str, usize> {
    let mut omitted = BTreeMap::new();
    for plural in pairs
        .iter()
        .filter_map(|pair| calicoctl_file::omitted_plural(&pair.path))
    {
        *omitted.entry(plural).or_default() += 1;
    }
    omitted
}

fn is_locked(information: &Value) -> bool {
    information["spec"]["datastoreReady"] == false
}
