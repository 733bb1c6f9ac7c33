//! `show`: prints the use of pools and blocks (IPAM-158), borrowed addresses, the settings, or the
//! allocation of one address.

mod address;
mod pools;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use clap::Args;
use libcalico::ipam::{Block, Borrowings, IpamConfig, borrowed};
use libcalico::store::Store;
use serde::Serialize;

pub(super) use self::pools::Quantity;
use super::app::{App, CommandOutcome};
use super::error::CliError;
use super::settings::{PERSISTENCE_BY_DEFAULT, StoredSettings};
use crate::cli::documents;

/// Show the use of pools, borrowed addresses, the settings, or the owner of an address
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam show
  calico-ipam show --show-blocks
  calico-ipam show --pool default-ipv4-ippool -o json
  calico-ipam show --show-borrowed
  calico-ipam show --show-configuration
  calico-ipam show --ip 10.65.0.1

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct ShowArgs {
    /// Show the blocks of each pool, with owner and use
    #[arg(long, conflicts_with_all = ["ip", "show_borrowed", "show_configuration"])]
    show_blocks: bool,
    /// Show the addresses that nodes use from blocks of other owners
    #[arg(long, conflicts_with_all = ["ip", "pool", "show_configuration"])]
    show_borrowed: bool,
    /// Show the settings of allocation
    #[arg(long, conflicts_with_all = ["ip", "pool"])]
    show_configuration: bool,
    /// Show only this pool, by name or CIDR. May be given several times
    #[arg(long, value_name = "NAME|CIDR", conflicts_with = "ip")]
    pool: Vec<String>,
    /// Show the owner of this address, and the time of its allocation
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<IpAddr>,
}

pub(super) async fn run(args: &ShowArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    match args.ip {
        Some(ip) => address::show(ip, app).await?,
        None if args.show_borrowed => show_borrowed(app).await?,
        None if args.show_configuration => show_configuration(app).await?,
        None => pools::show(&args.pool, args.show_blocks, app).await?,
    }
    Ok(CommandOutcome::Success)
}

/// Prints the addresses that nodes use from blocks of other owners.
async fn show_borrowed(app: &mut App<'_>) -> Result<(), CliError> {
    let progress = app.progress("reading blocks");
    let blocks = app.store.list::<Block>(&None).await?;
    drop(progress);
    let found = borrowed(blocks.iter().map(|entry| &entry.value));
    if documents::print_document(app.format, app.out, &found)? {
        return Ok(());
    }
    // The columns are those of calicoctl.
    let header = [
        "IP",
        "BORROWING-NODE",
        "BLOCK",
        "BLOCK OWNER",
        "TYPE",
        "ALLOCATED-TO",
    ];
    let mut table = documents::new_table(header);
    let Borrowings { rows, without_node } = found;
    for row in rows {
        let cells = [
            row.address.to_string(),
            row.node,
            row.block.to_string(),
            row.block_owner,
            row.kind,
            row.allocated_to,
        ];
        table.add_row(cells.map(documents::table_cell));
    }
    documents::print_table(app.out, &table)?;
    if without_node > 0 {
        app.notice(note_without_node(without_node));
    }
    Ok(())
}

/// Returns the note about allocations that may be borrowed or not.
fn note_without_node(without_node: usize) -> String {
    // Upstream's text.
    format!(
        "Note: found {without_node} IP allocations without an explicit node association. Unable to \
         determine if they are borrowed."
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSettings {
    strict_affinity: bool,
    auto_allocate_blocks: bool,
    max_blocks_per_host: i64,
    #[serde(rename = "kubeVirtVMAddressPersistence")]
    kube_virt_vm_address_persistence: String,
    #[serde(rename = "ipCooldownSeconds")]
    ip_cooldown_seconds: i64,
}

/// Prints the settings of allocation.
async fn show_configuration(app: &mut App<'_>) -> Result<(), CliError> {
    let stored = StoredSettings::read(app.store).await?;
    if let Some(difference) = stored.difference() {
        app.notice(difference);
    }
    let shown = ShownSettings::from(
        stored
            .effective
            .map_or_else(IpamConfig::absent, |entry| entry.value),
    );
    if documents::print_document(app.format, app.out, &shown)? {
        return Ok(());
    }
    // The rows are those of calicoctl.
    let mut table = documents::new_table(["PROPERTY", "VALUE"]);
    for (property, value) in [
        ("StrictAffinity", shown.strict_affinity.to_string()),
        ("AutoAllocateBlocks", shown.auto_allocate_blocks.to_string()),
        ("MaxBlocksPerHost", shown.max_blocks_per_host.to_string()),
        (
            "KubeVirtVMAddressPersistence",
            shown.kube_virt_vm_address_persistence,
        ),
        ("IPCooldownSeconds", shown.ip_cooldown_seconds.to_string()),
    ] {
        table.add_row([
            documents::table_cell(property),
            documents::table_cell(value),
        ]);
    }
    documents::print_table(app.out, &table)
}

impl From<IpamConfig> for ShownSettings {
    fn from(config: IpamConfig) -> Self {
        ShownSettings {
            strict_affinity: config.strict_affinity,
            auto_allocate_blocks: config.auto_allocate_blocks,
            max_blocks_per_host: config.max_blocks_per_host,
            kube_virt_vm_address_persistence: config
                .kube_virt_vm_address_persistence
                .unwrap_or_else(|| PERSISTENCE_BY_DEFAULT.into()),
            ip_cooldown_seconds: config.ip_cooldown_seconds,
        }
    }
}
