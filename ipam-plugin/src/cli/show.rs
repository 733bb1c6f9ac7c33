//! `show`: how full pools and blocks are, or who holds one address.

mod address;
mod pools;

use std::net::IpAddr;

use clap::Args;

use super::error::CliError;
use super::session::{Outcome, Session};

/// Show how full the pools are, or who holds an address
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam show
  calico-ipam show --show-blocks
  calico-ipam show --pool default-ipv4-ippool -o json
  calico-ipam show --ip 10.65.0.1")]
pub(super) struct ShowArgs {
    /// Show the blocks of each pool, whose they are and how full
    #[arg(long)]
    show_blocks: bool,
    /// Only this pool, by name or CIDR. May be given several times
    #[arg(long, value_name = "NAME|CIDR", conflicts_with = "ip")]
    pool: Vec<String>,
    /// Show who holds this address, and since when
    #[arg(long, value_name = "ADDRESS", conflicts_with = "show_blocks")]
    ip: Option<IpAddr>,
}

pub(super) async fn run(args: &ShowArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    match args.ip {
        Some(ip) => address::show(ip, session).await?,
        None => pools::show(&args.pool, args.show_blocks, session).await?,
    }
    Ok(Outcome::Fine)
}
