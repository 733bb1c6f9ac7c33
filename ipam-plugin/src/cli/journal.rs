//! `journal`: lists the deferred DELs of this node, or assigns them to the datastore of the
//! command.

use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use datastore::ClusterStore as _;
use libcalico::failure::Failure;
use libcalico::names::{InterfaceAlias, container_interface, interface_prefix, pod_interface};
use node_process::process;
use serde::Serialize;

use crate::cli::app::{App, CommandOutcome};
use crate::cli::documents::{self, Format};
use crate::cli::error::{CliError, file_failure, no_identity};
use allocation::journal::{
    DEFAULT_DIRECTORY, DatastoreIdentity, Entry, Journal, PendingDel, short_age,
};

/// List the deferred DELs of this node, or assign deferred DELs to another datastore
///
/// A DEL that cannot reach its datastore, or that the datastore refuses, removes the pod's
/// interface and is deferred: its entry names an endpoint to delete and addresses to release. A
/// later ADD, DEL, STATUS or GC on the node replays the entry, an ADD at most two entries of other
/// pods. The agent of the node replays the entry within a minute. An entry is replayed only on the
/// datastore that it belongs to.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  calico-ipam journal
  calico-ipam journal -o json
  calico-ipam journal adopt 4f1d9c0b --config /etc/cni/net.d/10-calico.conflist
  calico-ipam journal adopt --all --etcd-endpoints http://127.0.0.1:2379

The list needs no datastore. Exit status: 0, or 1 for an error; deferred DELs are no error."
)]
pub(super) struct JournalArgs {
    /// The directory of the journal
    #[arg(long, global = true, value_name = "DIR", default_value = DEFAULT_DIRECTORY)]
    directory: PathBuf,
    #[command(subcommand)]
    command: Option<JournalCommand>,
}

#[derive(Debug, Subcommand)]
enum JournalCommand {
    Adopt(AdoptArgs),
}

/// Assign deferred DELs to the datastore of this command, on which they are then replayed
///
/// Use this for deferred DELs whose datastore was moved, so that its identity changed: otherwise
/// their entries stay. The replay releases the addresses of these containers in the datastore, and
/// nothing else. An entry of a container that has its interface again is refused.
#[derive(Debug, Args)]
struct AdoptArgs {
    /// Container IDs, or prefixes of them
    #[arg(value_name = "CONTAINER", required_unless_present = "all", value_parser = container_id)]
    containers: Vec<String>,
    /// All readable entries
    #[arg(long, conflicts_with = "containers")]
    all: bool,
}

/// An empty ID is refused, because every ID begins with it.
fn container_id(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Err(
            "an empty ID matches every container; name containers that `calico-ipam journal` \
             lists, or write --all",
        );
    }
    Ok(text.to_owned())
}

/// A deferred DEL, or the problem of an entry that cannot be read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    entry: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(flatten)]
    pending_del: Option<Listed>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    network: String,
    container: String,
    interface: String,
    workload: String,
    node: String,
    addresses: Vec<String>,
    age_seconds: u64,
    datastore: String,
    identity: String,
    reason: String,
}

impl JournalArgs {
    pub(super) fn is_list(&self) -> bool {
        self.command.is_none()
    }
}

pub(super) fn list(
    args: &JournalArgs,
    format: Format,
    out: &mut dyn Write,
) -> Result<CommandOutcome, CliError> {
    let rows: Vec<Row> = entries(args)?.into_iter().map(Row::from_entry).collect();
    if documents::print_document(format, out, &rows)? {
        return Ok(CommandOutcome::Success);
    }
    if rows.is_empty() {
        writeln!(out, "This node has no deferred DEL").map_err(CliError::Output)?;
        return Ok(CommandOutcome::Success);
    }
    let mut table = documents::new_table([
        "CONTAINER",
        "INTERFACE",
        "WORKLOAD",
        "NODE",
        "AGE",
        "DATASTORE",
        "REASON",
    ]);
    for row in &rows {
        let cells = match &row.pending_del {
            Some(pending_del) => [
                pending_del.container.clone(),
                pending_del.interface.clone(),
                pending_del.workload.clone(),
                pending_del.node.clone(),
                short_age(std::time::Duration::from_secs(pending_del.age_seconds)),
                [
                    pending_del.datastore.as_str(),
                    pending_del.identity.as_str(),
                ]
                .join("\n")
                .trim_end()
                .to_owned(),
                pending_del.reason.clone(),
            ],
            None => {
                let problem = row.problem.as_deref().unwrap_or_default();
                let mut cells = <[String; 7]>::default();
                cells[6] = format!("{} cannot be read: {problem}", row.entry);
                cells
            }
        };
        table.add_row(cells.map(documents::table_cell));
    }
    documents::print_table(out, &table)?;
    Ok(CommandOutcome::Success)
}

pub(super) async fn run(args: &JournalArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    match &args.command {
        None => list(args, app.format, app.out),
        Some(JournalCommand::Adopt(adopt)) => self::adopt(args, adopt, app).await,
    }
}

async fn adopt(
    args: &JournalArgs,
    adopt: &AdoptArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    if app.is_new {
        let file = &app.datastore;
        return Err(Failure::new(format_args!(
            "{file} does not exist, so no deferred DEL can belong to it"
        ))
        .way_out("name the datastore of the deferred DELs")
        .into());
    }
    let identity = app.store.identity().await?;
    let identity = identity.ok_or_else(|| no_identity(&app.datastore))?;
    let target = DatastoreIdentity {
        name: app.journal_name.clone(),
        identity,
    };
    let journal = Journal::new(&args.directory);
    let locked = journal.lock().await?;
    let pending_dels: Vec<(PathBuf, PendingDel)> = entries(args)?
        .into_iter()
        .filter_map(|entry| Some((entry.path, entry.pending_del.ok()?)))
        .collect();
    for container in &adopt.containers {
        if !pending_dels
            .iter()
            .any(|(_, pending_del)| pending_del.container_id.starts_with(container))
        {
            return Err(Failure::new(format_args!(
                "the journal has no deferred DEL of a container whose ID begins with {container}"
            ))
            .way_out("`calico-ipam journal` lists them")
            .into());
        }
    }
    let is_chosen = |pending_del: &PendingDel| {
        adopt.all
            || adopt
                .containers
                .iter()
                .any(|id| pending_del.container_id.starts_with(id))
    };
    let mut chosen = Vec::new();
    for (entry, pending_del) in pending_dels
        .iter()
        .filter(|(_, pending_del)| is_chosen(pending_del))
    {
        let Some(interface) = recreated_interface(app, pending_del) else {
            chosen.push((entry, pending_del));
            continue;
        };
        let (container, entry) = (
            pending_del.container_id.clone(),
            entry.display().to_string(),
        );
        let error = Failure::new(format_args!(
            "container {container} has its interface {interface}: it was probably added again \
             after the DEL, and the replay would release its addresses"
        ))
        .way_out(format!("if no other cleanup remains, remove {entry}"));
        if !adopt.all {
            return Err(error.into());
        }
        app.notice(format_args!("note: entry unchanged: {error}"));
    }
    // The stored identities are removed first, so that no entry is missed if this command ends
    // early. Calls of the plugin then read the identities of their datastores again.
    journal
        .remove_identities()
        .map_err(file_failure("write", &args.directory))?;
    for (entry, pending_del) in chosen {
        locked.adopt(entry, &target)?;
        let former = if pending_del.identity.is_empty() {
            "unknown"
        } else {
            &pending_del.identity
        };
        app.print_line(format_args!(
            "the deferred DEL of {} (container {}) now belongs to {} ({}); before: {} ({former})",
            pending_del.workload(),
            pending_del.container_id,
            target.name,
            target.identity,
            pending_del.datastore,
        ))?;
    }
    Ok(CommandOutcome::Success)
}

/// Returns the name of the container's interface, if it exists and its alias names no other
/// container.
fn recreated_interface(app: &mut App<'_>, pending_del: &PendingDel) -> Option<String> {
    let prefixes = process::felix_interface_prefix();
    let name = match pending_del.pod() {
        Some((namespace, pod)) => {
            pod_interface(interface_prefix(prefixes.as_deref()), namespace, &pod)
        }
        None => container_interface(&pending_del.container_id),
    };
    match app.links.find(&name) {
        // The alias has a digest in place of a long container ID.
        Ok(link) => {
            let alias = InterfaceAlias::for_container(&pending_del.container_id);
            link.filter(|link| {
                link.container_id
                    .as_ref()
                    .is_none_or(|id| id == alias.container())
            })
            .map(|_| name)
        }
        Err(reason) => {
            app.notice(format_args!(
                "note: cannot check whether interface {name} exists again: {reason}"
            ));
            None
        }
    }
}

fn entries(args: &JournalArgs) -> Result<Vec<Entry>, Failure> {
    Journal::new(&args.directory)
        .entries()
        .map_err(file_failure("read", &args.directory))
}

impl Row {
    fn from_entry(
        Entry {
            path,
            modified,
            pending_del,
        }: Entry,
    ) -> Row {
        let entry = path.display().to_string();
        match pending_del {
            Err(error) => Row {
                entry,
                problem: Some(error.to_string()),
                pending_del: None,
            },
            Ok(pending_del) => Row {
                entry,
                problem: None,
                pending_del: Some(Listed::new(pending_del, modified)),
            },
        }
    }
}

impl Listed {
    fn new(pending_del: PendingDel, modified: SystemTime) -> Listed {
        Listed {
            workload: pending_del.workload(),
            age_seconds: pending_del.age(modified, SystemTime::now()).as_secs(),
            network: pending_del.network,
            container: pending_del.container_id,
            interface: pending_del.ifname,
            node: pending_del.node,
            addresses: pending_del
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            datastore: pending_del.datastore,
            identity: pending_del.identity,
            reason: pending_del.reason,
        }
    }
}

#[cfg(test)]
mod tests;
