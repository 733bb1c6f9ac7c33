//! `migrate`: moves Calico's objects from etcd to an API server, with the files of
//! `calicoctl datastore migrate`.
//!
//! ```text
//! etcd ─▶ lock ─▶ export ─▶ file ─▶ import ─▶ API server, locked ─▶ unlock
//! ```

mod export;
mod import;
mod items;
mod lock;
mod plan;
mod report;
mod target;
#[cfg(test)]
mod tests;

use clap::{Args, Subcommand};
use datastore::Datastore;

use super::app::{App, CommandOutcome};
use super::error::CliError;

/// Move Calico's data from etcd to an API server
///
/// Lock etcd, export, switch the cluster to the API server, import, check, and unlock the API
/// server. No program of Calico may write to the API server before the import.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam migrate lock --etcd-endpoints http://127.0.0.1:2379
  calico-ipam migrate export calico.yaml --etcd-endpoints http://127.0.0.1:2379
  calico-ipam migrate import -f calico.yaml --kubeconfig ~/.kube/config --dry-run
  calico-ipam migrate import -f calico.yaml --kubeconfig ~/.kube/config
  calico-ipam migrate unlock --kubeconfig ~/.kube/config

The files are those of `calicoctl datastore migrate`: each program reads the other's.

Exit status: 0; 1 after an error or a refusal; 2 if the arguments are invalid.")]
pub(super) struct MigrateArgs {
    #[command(subcommand)]
    step: MigrateStep,
}

#[derive(Debug, Subcommand)]
enum MigrateStep {
    Lock(lock::LockArgs),
    Unlock(lock::UnlockArgs),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
}

pub(super) async fn run(args: &MigrateArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    match &args.step {
        MigrateStep::Lock(_) => lock::lock(app).await,
        MigrateStep::Unlock(args) => lock::unlock(args, app).await,
        MigrateStep::Export(args) => export::run(args, app).await,
        MigrateStep::Import(args) => import::run(args, app).await,
    }
}

/// Returns the name that calicoctl's configuration gives to the type of a datastore.
fn datastore_type(store: &Datastore) -> &'static str {
    match store {
        Datastore::Etcd(_) => "etcdv3",
        Datastore::Local(_) => "local",
        Datastore::Kubernetes(_) => "kubernetes",
    }
}
