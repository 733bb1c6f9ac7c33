//! `show`: prints the use of pools and blocks (IPAM-158), borrowed addresses, the settings, or the
//! allocation of one address.

mod address;
mod borrowed;
mod configuration;
mod pools;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use clap::Args;

pub(super) use self::pools::Quantity;
use super::app::{App, CommandOutcome};
use super::error::CliError;

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
        None if args.show_borrowed => borrowed::show(app).await?,
        None if args.show_configuration => configuration::show(app).await?,
        None => pools::show(&args.pool, args.show_blocks, app).await?,
    }
    Ok(CommandOutcome::Success)
}
