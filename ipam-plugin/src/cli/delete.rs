//! `delete`: removes stored objects, and with pools and nodes what hangs on them.

mod node;
mod pool;

use clap::Args;
use libcalico::api::{ClusterInformation, IpReservation, IpamConfiguration, ObjectKey};
use libcalico::store::{Kind, Store, StoreError, identifier};

use super::error::CliError;
use super::kind::ResourceKind;
use super::output::Format;
use super::session::{Outcome, Session};
use super::settings;
use super::store_object::until_won;

/// Delete a pool, reservation, the settings, a node or the cluster information
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam delete ippool demo
  calico-ipam delete node node2

A pool is disabled first and its blocks are given up; addresses that are held stay held. A node's blocks and tunnel
addresses are given up; one that has endpoints is refused without --force, which releases and deletes those too. Kinds that
this program does not know (BGPPeer, HostEndpoint, FelixConfiguration) are left alone.")]
pub(super) struct DeleteArgs {
    /// Kind of the object
    #[arg(value_name = "KIND")]
    kind: ResourceKind,
    /// Its name
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Delete a node although it has endpoints
    #[arg(long)]
    force: bool,
}

pub(super) async fn run(args: &DeleteArgs, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    for name in &args.names {
        match args.kind {
            ResourceKind::IpPool => pool::delete(name, session).await?,
            ResourceKind::Node => node::delete(name, args.force, session).await?,
            ResourceKind::IpamConfiguration => delete_settings(name, session).await?,
            ResourceKind::IpReservation => delete::<IpReservation>(name, session).await?,
            ResourceKind::ClusterInformation => delete::<ClusterInformation>(name, session).await?,
        }
        if session.format == Format::Table {
            session.say(format_args!("{} {name} deleted", args.kind))?;
        }
    }
    Ok(Outcome::Fine)
}

async fn delete<K: Kind<Key = ObjectKey>>(name: &str, session: &Session<'_>) -> Result<(), CliError> {
    Ok(session.store.delete::<K>(&ObjectKey::global(name), None).await?)
}

async fn delete_settings(name: &str, session: &mut Session<'_>) -> Result<(), CliError> {
    let store = session.store;
    let object = format!("IPAMConfiguration {name}");
    if name != "default" || !until_won(&object, async || settings::delete(store).await).await? {
        let key = identifier::<IpamConfiguration>(&ObjectKey::global(name));
        return Err(StoreError::NotFound { key }.into());
    }
    session.notice("note: the built-in settings are in force now");
    Ok(())
}
