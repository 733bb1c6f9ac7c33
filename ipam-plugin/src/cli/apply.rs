//! `apply`: creates or changes stored objects so that they match manifests.

use std::path::PathBuf;

use clap::Args;
use datastore::Datastore;
use libcalico::api::{IpPool, Node, Object, ObjectSelect, Spec, Unknown};
use libcalico::ipam::Block;
use libcalico::store::{ReadBatch, Store};
use libcalico::validation::manifest::Manifest;
use libcalico::validation::{
    PoolContext, admit_ip_pool, validate_cluster_information, validate_ip_reservation,
    validate_node,
};
use libcalico::validation_error::ValidationError;
use serde::Serialize;

use super::app::{App, CommandOutcome};
use super::documents::Format;
use super::error::{CliError, invalid};
use super::store_object::{Applied, plan, retry_races, write_planned};
use super::{documents, settings};
use allocation::reads::find;

/// Create or change pools, reservations, settings, nodes and cluster information
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam apply -f pools.yaml
  calico-ipam get ippool demo -o yaml | sed 's/disabled: false/disabled: true/' | calico-ipam apply -f -

A manifest replaces spec, labels and annotations. With metadata.resourceVersion in it, it is refused when the object has
changed since. IPAMConfiguration is written to both of its keys.

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct ApplyArgs {
    /// YAML or JSON with one or more objects; - reads stdin. May be given several times
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    filename: Vec<PathBuf>,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) action: Applied,
}

/// All files are read and parsed before the first write.
pub(super) async fn run(args: &ApplyArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let mut manifests = Vec::new();
    for file in &args.filename {
        manifests.extend(documents::read_manifests(file)?);
    }
    apply_all(manifests, app).await
}

pub(super) async fn apply_all(
    manifests: Vec<Manifest>,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    app.store.ensure_initialized().await?;
    let mut rows = Vec::new();
    for manifest in manifests {
        let (kind, name) = identity(&manifest);
        let progress = app.progress("applying");
        let action = apply(app.store, &manifest).await?;
        drop(progress);
        if app.format == Format::Table {
            app.print_line(format_args!("{kind} {name} {action}"))?;
        }
        rows.push(Row { kind, name, action });
    }
    documents::print_document(app.format, app.out, &rows)?;
    Ok(CommandOutcome::Success)
}

fn identity(manifest: &Manifest) -> (&'static str, String) {
    match manifest {
        Manifest::IpPool(object) => ("IPPool", object.metadata.name.clone()),
        Manifest::IpReservation(object) => ("IPReservation", object.metadata.name.clone()),
        Manifest::IpamConfiguration(object) => ("IPAMConfiguration", object.metadata.name.clone()),
        Manifest::Node(object) => ("Node", object.metadata.name.clone()),
        Manifest::ClusterInformation(object) => {
            ("ClusterInformation", object.metadata.name.clone())
        }
    }
}

async fn apply(store: &Datastore, manifest: &Manifest) -> Result<Applied, CliError> {
    let (kind, name) = identity(manifest);
    retry_races(&format!("{kind} {name}"), async || match manifest {
        Manifest::IpPool(pool) => apply_pool(store, pool).await,
        Manifest::IpReservation(reservation) => {
            apply_object(store, kind, reservation, validate_ip_reservation, |spec| {
                &mut spec.unknown
            })
            .await
        }
        Manifest::IpamConfiguration(wanted) => settings::apply(store, wanted).await,
        Manifest::Node(node) => apply_node(store, node).await,
        Manifest::ClusterInformation(information) => {
            apply_object(
                store,
                kind,
                information,
                validate_cluster_information,
                |spec| &mut spec.unknown,
            )
            .await
        }
    })
    .await
}

/// Tries once to store a node.
pub(super) async fn apply_node(store: &Datastore, node: &Node) -> Result<Applied, CliError> {
    apply_object(store, "Node", node, validate_node, |spec| &mut spec.unknown).await
}

/// Tries once to store an object whose validity depends on no other object.
async fn apply_object<S: Spec>(
    store: &Datastore,
    kind: &'static str,
    wanted: &Object<S>,
    validate: fn(&Object<S>) -> Result<(), ValidationError>,
    unknown_of: fn(&mut S) -> &mut Unknown,
) -> Result<Applied, CliError> {
    validate(wanted).map_err(|cause| invalid(kind, &wanted.metadata.name, cause))?;
    let previous = find::<Object<S>>(store, &wanted.key()).await?;
    Ok(write_planned(store, plan(previous, wanted.clone(), unknown_of)?).await?)
}

/// Tries once to store a pool, validated against all pools and blocks (DS-47).
pub(super) async fn apply_pool(store: &Datastore, wanted: &IpPool) -> Result<Applied, CliError> {
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let blocks = batch.list::<Block>(&None);
    let answers = store.read(&batch).await?;
    let pools = answers.list(&pools);
    let blocks: Vec<_> = answers
        .list(&blocks)
        .into_iter()
        .map(|entry| entry.key)
        .collect();
    let previous = pools
        .iter()
        .find(|entry| entry.key == wanted.key())
        .cloned();
    let pools: Vec<IpPool> = pools.into_iter().map(|entry| entry.value).collect();
    let context = PoolContext {
        previous: previous.as_ref().map(|entry| &entry.value),
        pools: &pools,
        blocks: &blocks,
    };
    let admitted = admit_ip_pool(wanted.clone(), &context)
        .map_err(|cause| invalid("IPPool", &wanted.metadata.name, cause))?;
    Ok(write_planned(store, plan(previous, admitted, |spec| &mut spec.unknown)?).await?)
}

#[cfg(test)]
mod tests;
