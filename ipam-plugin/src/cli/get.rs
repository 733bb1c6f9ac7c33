//! `get`: prints stored objects.

use clap::Args;
use comfy_table::Table;
use datastore::Datastore;
use libcalico::api::{
    API_VERSION, ClusterInformation, IpPool, IpReservation, IpamConfiguration, Node, Object, ObjectKey, ObjectSelect,
    Spec,
};
use libcalico::store::{Store, StoreError, identifier};
use serde_json::{Value, json};

use super::error::CliError;
use super::kind::ResourceKind;
use super::output;
use super::session::{Outcome, Session};
use super::settings::StoredSettings;

/// Print pools, reservations, settings, nodes or cluster information
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam get ippools
  calico-ipam get ippool demo -o yaml
  calico-ipam get nodes -o json | jq -r '.items[].metadata.name'

Kinds: ippool (pool), ipreservation (reservation), ipamconfiguration (ipamconfig), node, clusterinformation.
What is printed as YAML or JSON can be applied again.")]
pub(super) struct GetArgs {
    /// Kind of the objects, singular or plural
    #[arg(value_name = "KIND")]
    kind: ResourceKind,
    /// Name of the one object wanted
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// Objects of one kind, in the two forms that they are printed in.
struct Found {
    objects: Vec<Value>,
    table: Table,
}

pub(super) async fn run(args: &GetArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    let found = find(args, session).await?;
    let document = match (&args.name, found.objects) {
        (Some(_), mut objects) => objects.pop().unwrap_or_default(),
        (None, items) => json!({"apiVersion": API_VERSION, "kind": format!("{}List", args.kind), "items": items}),
    };
    if !output::document(session.format, session.out, &document)? {
        output::print_table(session.out, &found.table)?;
    }
    Ok(Outcome::Fine)
}

async fn find(args: &GetArgs, session: &mut Session<'_>) -> Result<Found, CliError> {
    let (store, name) = (session.store, args.name.as_deref());
    match args.kind {
        ResourceKind::IpPool => {
            let header = ["NAME", "CIDR", "BLOCK SIZE", "DISABLED", "ASSIGNMENT", "NODE SELECTOR"];
            rows(header, list::<libcalico::api::IpPoolSpec>(store, name).await?, pool_row)
        }
        ResourceKind::IpReservation => {
            let row = |reservation: &IpReservation| {
                [reservation.metadata.name.clone(), reservation.spec.reserved_cidrs.join("\n")]
            };
            rows(["NAME", "RESERVED CIDRS"], list(store, name).await?, row)
        }
        ResourceKind::IpamConfiguration => settings(session, name).await,
        ResourceKind::Node => rows(["NAME", "IPV4", "IPV6", "LABELS"], list(store, name).await?, node_row),
        ResourceKind::ClusterInformation => {
            let row = |information: &ClusterInformation| {
                let ready = information.spec.datastore_ready.map_or("unset".into(), |ready| ready.to_string());
                let spec = &information.spec;
                [information.metadata.name.clone(), ready, spec.cluster_guid.clone(), spec.calico_version.clone()]
            };
            rows(["NAME", "DATASTORE READY", "CLUSTER GUID", "CALICO VERSION"], list(store, name).await?, row)
        }
    }
}

/// The object called `name`, or all of the kind.
async fn list<S: Spec>(store: &Datastore, name: Option<&str>) -> Result<Vec<Object<S>>, CliError> {
    let entries = match name {
        Some(name) => vec![store.get::<Object<S>>(&ObjectKey::global(name)).await?],
        None => store.list::<Object<S>>(&ObjectSelect::default()).await?,
    };
    Ok(entries.into_iter().map(|entry| entry.value).collect())
}

fn rows<S: Spec, const N: usize>(
    header: [&str; N],
    objects: Vec<Object<S>>,
    row: impl Fn(&Object<S>) -> [String; N],
) -> Result<Found, CliError> {
    let mut table = output::table(header);
    for object in &objects {
        table.add_row(row(object));
    }
    let encoded: Result<Vec<Value>, _> = objects.iter().map(serde_json::to_value).collect();
    Ok(Found { objects: encoded.map_err(|error| CliError::Encode(error.to_string()))?, table })
}

fn pool_row(pool: &IpPool) -> [String; 6] {
    let spec = &pool.spec;
    let block_size = spec.range().map_or_else(|_| "-".into(), |range| spec.block_prefix(range.version()).to_string());
    let mode = format!("{:?}", spec.assignment_mode.unwrap_or_default());
    let selector = if spec.node_selector.is_empty() { "all()" } else { &spec.node_selector };
    [pool.metadata.name.clone(), spec.cidr.clone(), block_size, spec.disabled.to_string(), mode, selector.into()]
}

fn node_row(node: &Node) -> [String; 4] {
    let (v4, v6) = node.spec.bgp.as_ref().map(|bgp| (bgp.ipv4_address.clone(), bgp.ipv6_address.clone())).unzip();
    let labels: Vec<String> = node.metadata.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    [node.metadata.name.clone(), v4.unwrap_or_default(), v6.unwrap_or_default(), labels.join("\n")]
}

async fn settings(session: &mut Session<'_>, name: Option<&str>) -> Result<Found, CliError> {
    if let Some(other) = name.filter(|name| *name != "default") {
        let key = identifier::<IpamConfiguration>(&ObjectKey::global(other));
        return Err(StoreError::NotFound { key }.into());
    }
    let stored = StoredSettings::read(session.store).await?;
    if let Some(disagreement) = stored.disagreement() {
        session.notice(disagreement);
    } else if stored.obeyed.is_none() {
        session.notice("note: no settings are stored; these are the built-in ones");
    }
    let row = |settings: &IpamConfiguration| {
        let spec = &settings.spec;
        [
            settings.metadata.name.clone(),
            spec.strict_affinity.to_string(),
            spec.auto_allocate_blocks.unwrap_or(true).to_string(),
            spec.max_blocks_per_host.to_string(),
            format!("{} s", spec.ip_cooldown_seconds),
        ]
    };
    let header = ["NAME", "STRICT AFFINITY", "AUTO ALLOCATE BLOCKS", "MAX BLOCKS PER HOST", "IP COOLDOWN"];
    rows(header, vec![stored.in_force()], row)
}
