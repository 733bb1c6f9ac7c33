//! `split`: replaces a pool by parts of equal size, while the datastore is locked. Blocks and
//! addresses stay.

mod plan;
#[cfg(test)]
mod tests;
mod writes;

use clap::Args;
use datastore::Datastore;
use libcalico::api::IpPool;
use libcalico::failure::Failure;
use libcalico::net::Cidr;
use serde::Serialize;

use self::plan::{Lock, Planned, Selection, plan};
use super::app::{App, CommandOutcome};
use super::documents;
use super::error::CliError;
use super::store_object::retry_races;

/// Split a pool into parts of equal size
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam split 4 --name default-ipv4-ippool --dry-run
  calico-ipam split 4 --name default-ipv4-ippool
  calico-ipam split 2 --cidr 10.65.0.0/16

The datastore must be locked (calico-ipam migrate lock). The parts are called split-POOL-0, split-POOL-1 and so on, and
have the settings of the pool, but are in service even if it is disabled. The pool is deleted; its blocks and addresses
stay. Everything is checked before the first write. On an API server, which writes one object after the other, a second
run completes an interrupted one.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct SplitArgs {
    /// Number of parts, a power of two up to 1024
    #[arg(value_name = "NUMBER")]
    number: u32,
    /// Name of the pool
    #[arg(long, value_name = "NAME", conflicts_with = "cidr")]
    name: Option<String>,
    /// Range of the pool
    #[arg(long, value_name = "CIDR")]
    cidr: Option<Cidr>,
    /// Print the parts without making them
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct ShownSplit<'a> {
    pool: &'a str,
    parts: Vec<ShownPart<'a>>,
}

#[derive(Serialize)]
struct ShownPart<'a> {
    name: &'a str,
    cidr: &'a str,
}

pub(super) async fn run(args: &SplitArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let (store, selection) = (app.store, args.selection()?);
    let progress = app.progress("splitting the pool");
    let planned = if args.dry_run {
        plan(store, &selection, args.number, Lock::Optional).await?
    } else {
        retry_races("the pools", async || {
            split_once(store, &selection, args.number).await
        })
        .await?
    };
    drop(progress);
    print(&planned, args.dry_run, app)?;
    Ok(CommandOutcome::Success)
}

async fn split_once(
    store: &Datastore,
    selection: &Selection,
    number: u32,
) -> Result<Planned, CliError> {
    let planned = plan(store, selection, number, Lock::Required).await?;
    writes::replace(store, &planned).await?;
    Ok(planned)
}

fn print(planned: &Planned, dry_run: bool, app: &mut App<'_>) -> Result<(), CliError> {
    let (pool, parts) = (&planned.pool.key.name, &planned.parts);
    if !documents::print_document(app.format, app.out, &ShownSplit::new(pool, parts))? {
        // Upstream's text, except that it has no line break after the first sentence and the last
        // one.
        let (outcome, verb) = if dry_run {
            ("would be", "Would create")
        } else {
            ("was successfully", "Created")
        };
        app.print_line(format_args!(
            "IP Pool {pool} {outcome} split into {} smaller pools.",
            parts.len()
        ))?;
        for part in parts {
            app.print_line(format_args!(
                "{verb} {} with CIDR {}.",
                part.metadata.name, part.spec.cidr
            ))?;
        }
        if !dry_run {
            app.print_line("Please refer to the documentation for final steps.")?;
        }
    }
    if !dry_run {
        app.notice(format_args!(
            "note: network configurations (ipv4_pools, ipv6_pools) and annotations of pods and \
             namespaces (cni.projectcalico.org/ipv4pools, ipv6pools) that name {pool} have to name \
             its parts"
        ));
    }
    Ok(())
}

impl SplitArgs {
    fn selection(&self) -> Result<Selection, Failure> {
        match (&self.name, self.cidr) {
            (Some(name), _) => Ok(Selection::Name(name.clone())),
            (None, Some(cidr)) => Ok(Selection::Range(cidr)),
            // Upstream's text.
            (None, None) => Err(Failure::new(
                "no name or CIDR provided. Provide a name or CIDR to denote the IP pool to split",
            )),
        }
    }
}

impl<'a> ShownSplit<'a> {
    fn new(pool: &'a str, parts: &'a [IpPool]) -> Self {
        let shown = |part: &'a IpPool| ShownPart {
            name: &part.metadata.name,
            cidr: &part.spec.cidr,
        };
        ShownSplit {
            pool,
            parts: parts.iter().map(shown).collect(),
        }
    }
}
