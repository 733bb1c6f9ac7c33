//! [`Arguments`]: the whole command line. The arguments of a command are in the command's file.

use clap::{Parser, Subcommand};

use super::apply::ApplyArgs;
use super::check::CheckArgs;
use super::completions::CompletionsArgs;
use super::connection::ConnectionArgs;
use super::delete::DeleteArgs;
use super::documents::Format;
use super::endpoints::EndpointsArgs;
use super::get::GetArgs;
use super::init::InitArgs;
use super::journal::JournalArgs;
use super::release::ReleaseArgs;
use super::show::ShowArgs;
use super::trace::TraceArgs;
use super::transfer::{ExportArgs, ImportArgs};

const AFTER_HELP: &str = "\
Examples:
  calico-ipam init --datastore-type local --pool 10.65.0.0/16
  calico-ipam trace web-0
  calico-ipam show --show-blocks --config /etc/cni/net.d/10-calico.conflist
  DATASTORE_TYPE=etcdv3 ETCD_ENDPOINTS=http://127.0.0.1:2379 calico-ipam check

Container runtimes call the same program with CNI_COMMAND set. `calico-ipam -v` prints its version, `calico-ipam \
-upgrade`
moves the addresses of host-local to Calico.";

/// Show, check and set up Calico's IP addresses
#[derive(Debug, Parser)]
#[command(name = "calico-ipam", bin_name = "calico-ipam", after_help = AFTER_HELP, subcommand_required = true)]
pub(super) struct Arguments {
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORMAT")]
    pub(super) output: Format,
    #[command(flatten)]
    pub(super) connection: ConnectionArgs,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    Show(ShowArgs),
    Trace(TraceArgs),
    Check(CheckArgs),
    Release(ReleaseArgs),
    Apply(ApplyArgs),
    Get(GetArgs),
    Delete(DeleteArgs),
    Endpoints(EndpointsArgs),
    Init(InitArgs),
    Journal(JournalArgs),
    Export(ExportArgs),
    Import(ImportArgs),
    Completions(CompletionsArgs),
}
