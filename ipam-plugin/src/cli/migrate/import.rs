//! `migrate import`: creates the objects of a file on an API server. Everything is read and
//! compared before the first write, so that a second run completes an interrupted import.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use datastore::bootstrap::built_in_tiers;
use datastore::{Datastore, Kubernetes};
use futures::future::join_all;
use libcalico::api::{ClusterInformation, Node, ObjectMeta, ObjectSelect, Tier};
use libcalico::failure::Failure;
use libcalico::ipam::BlockAffinity;
use libcalico::kubernetes::Codec;
use libcalico::migration::calicoctl_file::{self, CalicoctlFile};
use libcalico::store::{Entry, Kind, Store, StoreError, Write, WriteOp};
use serde_json::Value;
use time::OffsetDateTime;
use uuid::Uuid;

use super::items::{self, Item};
use super::plan::{Plan, plan};
use super::report::{LISTED, Named, Report};
use super::target::Target;
use super::{datastore_type, lock};
use crate::cli::app::{App, CommandOutcome, Progress};
use crate::cli::documents;
use crate::cli::error::{CliError, contended, file_failure};
use crate::cli::input_file::{self, MAX_REPORT};
use allocation::reads::find;

/// The maximum number of comparisons after the lock.
const ATTEMPTS: usize = 6;
/// The number of objects that are created at the same time.
const AT_ONCE: usize = 10;

/// Create the objects of a file on an API server, which is then locked
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam migrate import -f calico.yaml --kubeconfig ~/.kube/config --dry-run
  calico-ipam migrate import -f calico.yaml --kubeconfig ~/.kube/config

The file is one of `migrate export`, or of calicoctl. An object that exists must equal that of the file. If one differs,
nothing is written. After an interruption, run the command again: it continues. The definitions of Calico's objects
(deploy/crds) and the namespaces have to exist.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct ImportArgs {
    /// The file; - reads stdin
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Print the number of objects without creating them
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: &ImportArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let kubernetes = match app.store {
        Datastore::Kubernetes(kubernetes) => kubernetes,
        Datastore::Etcd(_) | Datastore::Local(_) => {
            // Upstream's text up to `kubernetes`.
            return Err(Failure::new(format_args!(
                "invalid datastore type: {} to import to for datastore migration. Datastore type \
                 must be kubernetes",
                datastore_type(app.store)
            ))
            .way_out("name the API server with --kubeconfig")
            .into());
        }
    };
    let file = read(&args.filename)?;
    let source = cluster(&file.cluster, &args.filename)?;
    let progress = app.progress("comparing objects");
    let guid = source.spec.cluster_guid.as_str();
    let items = prepare(file, kubernetes).await?;
    let mut plan = compare(&items, guid, kubernetes).await?;
    drop(progress);
    warn(&plan, app);
    if !plan.report.refused.is_empty() {
        documents::print_document(app.format, app.out, &plan.report)?;
        let failure = if plan.is_continued {
            disturbed(&plan.report)
        } else {
            refused(&plan.report)
        };
        return Err(failure.into());
    }
    if !args.dry_run {
        let is_locked_now = lock::lock_target(app.store, &app.datastore, &source.spec).await?;
        if is_locked_now && app.format == documents::Format::Table {
            // Upstream's text.
            app.print_line("Datastore locked.")?;
        }
        plan.report.dropped_fields = write(&items, guid, app.store, kubernetes).await?;
        let dropped = "lacks fields of the file, which the API server does not know";
        note_fields(&plan.report.dropped_fields, dropped, app);
        lock::complete_import(app.store, &app.datastore).await?;
    }
    print(&plan, args.dry_run, app)?;
    Ok(CommandOutcome::Success)
}

/// Returns the failure of an import that wrote nothing.
fn refused(report: &Report) -> Failure {
    Failure::new(format_args!(
        "nothing was imported, and the datastore was not locked, for {} reasons:{}",
        report.refused.len(),
        report.listed_refusals()
    ))
}

/// Returns the failure of an import that other programs disturb.
fn disturbed(report: &Report) -> Failure {
    Failure::new(format_args!(
        "the import is incomplete, and the datastore is locked, for {} reasons:{}\nstop the \
         programs that write to the datastore, remove the causes and run the command again, which \
         continues",
        report.refused.len(),
        report.listed_refusals()
    ))
}

fn read(path: &Path) -> Result<CalicoctlFile, Failure> {
    let text = input_file::text(path, MAX_REPORT).map_err(|cause| match cause.kind() {
        ErrorKind::FileTooLarge => Failure::new(format_args!(
            "imported file: {} has more than 512 MiB",
            path.display()
        ))
        .way_out("it cannot be a file of `migrate export`"),
        _ => file_failure("read", path)(cause),
    })?;
    calicoctl_file::parse(&text).map_err(|cause| improper(path, cause))
}

fn cluster(value: &Value, path: &Path) -> Result<ClusterInformation, Failure> {
    let cluster = ClusterInformation::decode(value.to_string().as_bytes());
    cluster.map_err(|cause| improper(path, calicoctl_file::invalid_cluster(cause)))
}

fn improper(path: &Path, cause: Failure) -> Failure {
    // Upstream's text.
    let file = format!("imported file: {} is improperly formatted", path.display());
    Failure::new(file).because(cause)
}

/// Returns the objects to import: those of the file, and the built-in tiers that neither the file
/// nor the target has.
async fn prepare(file: CalicoctlFile, kubernetes: &Kubernetes) -> Result<Vec<Item>, CliError> {
    let codec = Codec::new(kubernetes.group().await?);
    let mut now = ObjectMeta::default();
    now.stamp(Uuid::new_v4(), OffsetDateTime::now_utc());
    let created = now.creation_timestamp.unwrap_or_default();
    let items = items::items(file, &codec, &created)?;
    let stored = kubernetes.list::<Tier>(&ObjectSelect::default()).await?;
    let mut all = missing_tiers(&items, &stored, &codec, &created)?;
    all.extend(items);
    Ok(all)
}

/// `guid` is that of the cluster in the file.
async fn compare(items: &[Item], guid: &str, kubernetes: &Kubernetes) -> Result<Plan, CliError> {
    let mut kinds = items::kinds(items);
    // Blocks may belong to nodes that the file lacks.
    kinds.insert(Node::KIND);
    let target = Target::read(kubernetes, &kinds, guid).await?;
    Ok(plan(items, &target))
}

/// Returns the built-in tiers to add. Old versions of Calico have no tiers.
fn missing_tiers(
    items: &[Item],
    stored: &[Entry<Tier>],
    codec: &Codec,
    created: &str,
) -> Result<Vec<Item>, CliError> {
    let mut missing = Vec::new();
    for tier in built_in_tiers()
        .into_iter()
        .filter(|tier| !stored.iter().any(|entry| entry.key == tier.key()))
    {
        let tier = serde_json::to_value(tier).map_err(CliError::encode)?;
        let item = items::resource(tier, codec, created)?;
        missing.extend(item.filter(|item| !items.iter().any(|known| known.path == item.path)));
    }
    Ok(missing)
}

fn warn(plan: &Plan, app: &mut App<'_>) {
    for node in &plan.report.skipped_nodes {
        // Upstream's text.
        app.notice(format_args!(
            "[WARNING] Attempted to import node {node} from etcd that references a nonexistent \
             Kubernetes node. Skipping that node. Non-Kubernetes nodes are not supported in the \
             Kubernetes datastore and will be skipped."
        ));
    }
    if plan.ownerless_blocks > 0 {
        let blocks = plan.ownerless_blocks;
        app.notice(format_args!(
            "note: {blocks} blocks belong to nodes that do not exist in Kubernetes"
        ));
    }
    note_fields(
        &plan.report.other_fields,
        "exists and has more fields than in the file",
        app,
    );
}

fn note_fields(objects: &[Named], what: &str, app: &mut App<'_>) {
    for Named { object, remark } in objects.iter().take(LISTED) {
        app.notice(format_args!("note: {object} {what}: {remark}"));
    }
    if objects.len() > LISTED {
        let more = objects.len() - LISTED;
        app.notice(format_args!(
            "note: and so on for {more} other objects; -o json lists all"
        ));
    }
}

/// Writes the objects, until a comparison finds all of them. Compares them also before the first
/// write: another program may have written before the lock, requests of a killed import may still
/// take effect, and another import may run. Returns the fields that the API server dropped.
async fn write(
    items: &[Item],
    guid: &str,
    store: &Datastore,
    kubernetes: &Kubernetes,
) -> Result<Vec<Named>, CliError> {
    let mut lost: Option<String> = None;
    for attempt in 0..ATTEMPTS {
        let Plan { writes, report, .. } = compare(items, guid, kubernetes).await?;
        if !report.refused.is_empty() {
            return Err(disturbed(&report).into());
        }
        let is_update = |write: &Write| matches!(write.op, WriteOp::Update(..));
        // A node does not store each value of the file, so that its update may remain.
        let is_done = attempt > 0 && lost.is_none() && writes.iter().all(is_update);
        if writes.is_empty() || is_done {
            return Ok(report.dropped_fields);
        }
        lost = write_all(store, &writes).await?;
        if attempt > 0 && lost.is_some() {
            complete_deletions(store, &writes).await?;
        }
    }
    Err(contended(lost.as_deref().unwrap_or("the objects of the file")).into())
}

/// Reads the affinities to create. Lists omit an affinity that is marked as deleted, and its name
/// is taken until a read of this affinity alone completes the deletion (DS-72).
async fn complete_deletions(store: &Datastore, writes: &[Write]) -> Result<(), StoreError> {
    for key in writes
        .iter()
        .filter_map(|write| BlockAffinity::parse_path(&write.path))
    {
        find::<BlockAffinity>(store, &key).await?;
    }
    Ok(())
}

/// Writes the objects kind by kind. Returns the name of the first object that another process wrote
/// meanwhile.
async fn write_all(store: &Datastore, writes: &[Write]) -> Result<Option<String>, CliError> {
    let progress = Progress::new("importing", writes.len());
    let (mut done, mut lost) = (0, None);
    for same_kind in writes.chunk_by(|one, next| one.kind == next.kind) {
        for chunk in same_kind.chunks(AT_ONCE) {
            let outcomes = join_all(
                chunk
                    .iter()
                    .map(async |write| store.write_one(write.clone()).await),
            )
            .await;
            let mut failed: Option<(&Write, StoreError)> = None;
            for (write, outcome) in chunk.iter().zip(outcomes) {
                match outcome {
                    Ok(_) => {
                        done += 1;
                        progress.step();
                    }
                    Err(cause) if cause.is_race() => {
                        _ = lost.get_or_insert_with(|| write.key.clone())
                    }
                    Err(cause) => _ = failed.get_or_insert((write, cause)),
                }
            }
            if let Some((write, cause)) = failed {
                let failure = Failure::new(format_args!("the import of {} failed", write.key));
                return Err(failure
                    .because(cause)
                    .way_out(stopped(done, writes.len()))
                    .into());
            }
        }
    }
    Ok(lost)
}

/// Returns the state of an import after a failure, and the way out.
fn stopped(done: usize, total: usize) -> String {
    format!(
        "{done} of {total} writes are done, and the datastore is locked: remove the cause and run \
         the command again, which continues"
    )
}

fn print(plan: &Plan, dry_run: bool, app: &mut App<'_>) -> Result<(), CliError> {
    let report = &plan.report;
    if documents::print_document(app.format, app.out, report)? {
        return Ok(());
    }
    if dry_run {
        for (counts, kind) in [
            (&report.resources, "resource(s)"),
            (&report.ipam, "IPAM resource(s)"),
        ] {
            let (created, configured, unchanged) =
                (counts.created, counts.configured, counts.unchanged);
            app.print_line(format_args!(
                "Would create {created} {kind} and change {configured}; {unchanged} exist already"
            ))?;
        }
        return Ok(());
    }
    let total = |total: usize, unchanged: usize, kind: &str| match unchanged {
        0 => format!("Successfully applied {total} {kind}"),
        _ => format!("Successfully applied {total} {kind}, of which {unchanged} existed already"),
    };
    // Upstream's texts.
    app.print_line(total(
        report.resources.total(),
        report.resources.unchanged,
        "resource(s)",
    ))?;
    app.print_line("Importing IPAM resources")?;
    app.print_line(total(
        report.ipam.total(),
        report.ipam.unchanged,
        "IPAM resource(s)",
    ))?;
    app.print_line(
        "Datastore information successfully imported. Please refer to the datastore migration \
         documentation for next steps.",
    )?;
    app.notice(
        "note: the datastore is locked: no pod starts or ends before `calico-ipam migrate unlock`",
    );
    Ok(())
}
