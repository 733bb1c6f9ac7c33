//! `usage`: prints the use of addresses by pool, node and namespace, fragmented blocks, and the
//! room for more pods.

mod shown;
mod tables;
#[cfg(test)]
mod tests;

use clap::{Args, ValueEnum};
use libcalico::api::{IpPool, IpReservation, Node, ObjectSelect};
use libcalico::failure::Failure;
use libcalico::ipam::{
    Block, FamilyCount, IpamConfig, IpamConfigKey, NamespaceUsage, NodeUsage, Reservations,
    UsageInput, usage,
};
use libcalico::store::{Answers, Kind, ListTicket, ReadBatch, Store, StoreError};
use time::OffsetDateTime;

use self::shown::ShownUsage;
use super::app::{App, CommandOutcome};
use super::documents;
use super::error::CliError;

/// Show the use of addresses by pool, node and namespace, and the room for more pods
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam usage
  calico-ipam usage --by node
  calico-ipam usage --node node1 -o json
  calico-ipam usage --namespace web

The numbers of pods that fit are upper bounds: for a node, if no other node gets addresses meanwhile. They consider
node selectors if the nodes can be read, and no namespace selectors. A block is fragmented if it is not empty and
not more than a quarter of it is in use, if it has no owner, or if it has another size than the blocks of its pool.
SPARSE is the number of blocks of nodes of which not more than a quarter is in use, including empty blocks. FULLEST NODE
is the smallest number of addresses that a node with a block in the pool can take there without borrowing.

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct UsageArgs {
    /// Show only one table
    #[arg(long, value_enum, value_name = "TABLE")]
    by: Option<Grouping>,
    /// Show only this node
    #[arg(long, value_name = "NAME", conflicts_with = "by")]
    node: Option<String>,
    /// Show only this namespace
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["by", "node"])]
    namespace: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Grouping {
    /// The pools, and the room for more pods
    Pool,
    /// The nodes, and the room for more pods on each
    Node,
    /// The namespaces
    Namespace,
}

pub(super) async fn run(args: &UsageArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let shown = args.select(read(app).await?)?;
    if documents::print_document(app.format, app.out, &shown)? {
        return Ok(CommandOutcome::Success);
    }
    tables::print(&shown, app)?;
    Ok(CommandOutcome::Success)
}

async fn read(app: &mut App<'_>) -> Result<ShownUsage, CliError> {
    let mut batch = ReadBatch::new();
    let pools = batch.list::<IpPool>(&ObjectSelect::default());
    let blocks = batch.list::<Block>(&None);
    let reservations = batch.list::<IpReservation>(&ObjectSelect::default());
    let config = batch.get::<IpamConfig>(&IpamConfigKey);
    let progress = app.progress("reading pools and blocks");
    let answers = app.store.read(&batch).await?;
    drop(progress);
    let config = answers
        .get(&config)?
        .map_or_else(IpamConfig::absent, |entry| entry.value);
    let pools = readable("IPPool", &answers, &pools, app);
    let mut blocks = readable("block", &answers, &blocks, app);
    free_cooled(&mut blocks, &config);
    let (reservations, malformed) =
        Reservations::of(&readable("IPReservation", &answers, &reservations, app));
    for entry in malformed {
        app.notice(format_args!("note: {entry}"));
    }
    let nodes = read_nodes(app).await?;
    let input = UsageInput {
        pools: &pools,
        blocks: &blocks,
        reservations: &reservations,
        config: &config,
        nodes: nodes.as_deref(),
    };
    let usage = usage(&input);
    if usage.corrupt_blocks > 0 {
        app.notice(format_args!(
            "note: corrupt blocks: {}; `calico-ipam check` names them",
            usage.corrupt_blocks
        ));
    }
    for error in &usage.malformed_selectors {
        app.notice(format_args!(
            "note: {error}; an ADD that evaluates the selector fails"
        ));
    }
    Ok(ShownUsage::new(usage, nodes.is_some()))
}

/// Returns the objects that can be decoded, with a note for each of the others.
fn readable<K: Kind>(
    kind: &str,
    answers: &Answers,
    listed: &ListTicket<K>,
    app: &mut App<'_>,
) -> Vec<K> {
    let mut found = Vec::new();
    for (key, object) in answers.each(listed) {
        match object {
            Ok(entry) => found.push(entry.value),
            Err(error) => app.notice(format_args!("note: {kind} {key} is not counted: {error}")),
        }
    }
    found
}

/// Frees the addresses whose cooldown is over. A corrupt block stays as it is.
fn free_cooled(blocks: &mut [Block], config: &IpamConfig) {
    let now = OffsetDateTime::now_utc();
    for block in blocks {
        let _ = block.collect_garbage(config.ip_cooldown_seconds, now);
    }
}

/// Returns `None`, with a note, if the account must not list nodes.
async fn read_nodes(app: &mut App<'_>) -> Result<Option<Vec<Node>>, CliError> {
    let progress = app.progress("reading nodes");
    let listed = app.store.list::<Node>(&ObjectSelect::default()).await;
    drop(progress);
    match listed {
        Ok(nodes) => Ok(Some(nodes.into_iter().map(|entry| entry.value).collect())),
        Err(error @ StoreError::Forbidden { .. }) => {
            app.notice(format_args!(
                "note: node selectors are not considered: {error}"
            ));
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

impl UsageArgs {
    fn select(&self, all: ShownUsage) -> Result<ShownUsage, Failure> {
        let ShownUsage {
            pools,
            outside_pools,
            nodes,
            without_node,
            namespaces,
            borrowed,
            fits,
            ..
        } = all;
        let ShownUsage {
            node_selectors_considered,
            corrupt_blocks,
            ..
        } = all;
        let none = ShownUsage {
            node_selectors_considered,
            corrupt_blocks,
            ..ShownUsage::default()
        };
        Ok(match (self.by, &self.node, &self.namespace) {
            (Some(Grouping::Pool), ..) => ShownUsage {
                pools,
                outside_pools,
                fits,
                ..none
            },
            (Some(Grouping::Node), ..) => ShownUsage {
                nodes,
                without_node,
                borrowed,
                ..none
            },
            (Some(Grouping::Namespace), ..) => ShownUsage { namespaces, ..none },
            (None, Some(node), _) => {
                let nodes: Vec<NodeUsage> = nodes
                    .into_iter()
                    .flatten()
                    .filter(|row| row.node == *node)
                    .collect();
                if nodes.is_empty() {
                    return Err(Failure::new(format_args!(
                        "no node {node} exists, owns a block or uses an address"
                    ))
                    .way_out("`calico-ipam usage --by node` lists the nodes"));
                }
                let mut borrowed = borrowed.unwrap_or_default();
                borrowed
                    .rows
                    .retain(|row| row.node == *node || row.block_owner == *node);
                ShownUsage {
                    nodes: Some(nodes),
                    borrowed: Some(borrowed),
                    ..none
                }
            }
            (None, None, Some(namespace)) => {
                let found = namespaces
                    .into_iter()
                    .flatten()
                    .find(|row| row.namespace == *namespace);
                let unused = || NamespaceUsage {
                    namespace: namespace.clone(),
                    used: FamilyCount::default(),
                };
                ShownUsage {
                    namespaces: Some(vec![found.unwrap_or_else(unused)]),
                    ..none
                }
            }
            (None, None, None) => ShownUsage {
                pools,
                outside_pools,
                nodes,
                without_node,
                namespaces,
                borrowed,
                fragmented: all.fragmented,
                fits,
                ..none
            },
        })
    }
}
