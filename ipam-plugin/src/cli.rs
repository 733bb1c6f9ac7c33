//! `calico-ipam` for operators: the command line of a process that no container runtime started.
//!
//! ```text
//! arguments ─▶ Arguments ─▶ DatastoreConfig ─▶ Datastore ─▶ one command ─▶ stdout
//!                                                             └─▶ notices, progress on stderr
//! ```
//!
//! Most commands have a file of their own with the arguments (`…Args`) and `run`. Read `connection`
//! and `app` first, then the commands.

mod adopt;
mod app;
mod apply;
mod check;
mod cluster_read;
mod configure;
mod connection;
mod delete;
mod documents;
mod endpoints;
mod error;
mod get;
mod init;
mod input_file;
mod journal;
mod kind;
mod migrate;
mod private_file;
mod progress;
mod release;
mod report_file;
mod services_api;
mod settings;
mod show;
mod split;
mod store_object;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod trace;
mod transfer;
mod usage;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::shells;
use datastore::Datastore;
use netconf::printable;

use self::app::{App, CommandOutcome};
use self::connection::{ConnectionArgs, describe};
use self::documents::{Format, Terminal};
use self::error::CliError;
use self::services_api::ServicesApi;
use allocation::journal::datastore_name;
use dataplane::host_link::HostLinks;
use node_process::process;

const AFTER_HELP: &str = "\
Examples:
  calico-ipam init --datastore-type local --pool 10.65.0.0/16
  calico-ipam trace web-0
  calico-ipam show --show-blocks --config /etc/cni/net.d/10-calico.conflist
  DATASTORE_TYPE=etcdv3 ETCD_ENDPOINTS=http://127.0.0.1:2379 calico-ipam check
  calico-ipam check --calicoctl-config /etc/calico/calicoctl.cfg
  calico-ipam check --kubeconfig ~/.kube/config --context production

Container runtimes call the same program with CNI_COMMAND set. `calico-ipam -v` prints its version, `calico-ipam \
-upgrade`
moves the addresses of host-local to Calico.

Exit status: 0; 1 after an error, for findings and for refusals; 2 if the arguments are invalid.";

/// Show, check and set up Calico's IP addresses
#[derive(Debug, Parser)]
#[command(
    name = "calico-ipam", bin_name = "calico-ipam", after_help = AFTER_HELP,
    subcommand_required = true
)]
struct Arguments {
    /// Output format
    #[arg(
        short, long, global = true, value_enum, default_value_t = Format::Table,
        value_name = "FORMAT"
    )]
    output: Format,
    #[command(flatten)]
    connection: ConnectionArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(show::ShowArgs),
    Usage(usage::UsageArgs),
    Trace(trace::TraceArgs),
    Check(check::CheckArgs),
    Release(release::ReleaseArgs),
    Split(split::SplitArgs),
    Configure(configure::ConfigureArgs),
    Apply(apply::ApplyArgs),
    Get(get::GetArgs),
    Delete(delete::DeleteArgs),
    Endpoints(endpoints::EndpointsArgs),
    Init(init::InitArgs),
    Journal(journal::JournalArgs),
    Adopt(adopt::AdoptArgs),
    Export(transfer::ExportArgs),
    Import(transfer::ImportArgs),
    Migrate(migrate::MigrateArgs),
    Completions(CompletionsArgs),
}

/// Options that may precede the command. `-v` and `-upgrade` belong to the plugin (CNI-7).
const LEADING_OPTIONS: [&str; 14] = [
    "-h",
    "--help",
    "-o",
    "--output",
    "--config",
    "--datastore-type",
    "--datastore-path",
    "--etcd-endpoints",
    "--etcd-ca-cert-file",
    "--etcd-cert-file",
    "--etcd-key-file",
    "--kubeconfig",
    "--context",
    "--calicoctl-config",
];

/// Returns true if an operator runs the process: no runtime set `CNI_COMMAND`, and the first
/// argument is a word or an option of this command line.
pub fn is_command_line() -> bool {
    process::lossy_variables()
        .non_empty("CNI_COMMAND")
        .is_none()
        && std::env::args_os()
            .nth(1)
            .is_some_and(|first| is_command_line_argument(&first.to_string_lossy()))
}

fn is_command_line_argument(first: &str) -> bool {
    let name = first.split_once('=').map_or(first, |(name, _)| name);
    first.starts_with(|c: char| c.is_ascii_alphabetic())
        || LEADING_OPTIONS.contains(&name)
        || (first.starts_with("-o") && !first.starts_with("-o="))
}

/// Runs the command line. The exit status is 0 for success, 2 for invalid arguments, and
/// otherwise 1.
pub fn main(links: &dyn HostLinks) -> ExitCode {
    let name = std::iter::once(OsString::from("calico-ipam"));
    let arguments = match Arguments::try_parse_from(name.chain(std::env::args_os().skip(1))) {
        Ok(arguments) => arguments,
        Err(usage) => {
            let _ = usage.print();
            return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
        }
    };
    let mut out = Terminal::new(BufWriter::new(io::stdout().lock()));
    let outcome = run(arguments, links, &mut out);
    let outcome = outcome.and_then(|outcome| {
        out.flush().map_err(CliError::Output)?;
        Ok(outcome)
    });
    match outcome {
        Ok(CommandOutcome::Success) => ExitCode::SUCCESS,
        Ok(CommandOutcome::Findings) => ExitCode::FAILURE,
        // In `calico-ipam show | head`, the reader closes the pipe after it has read enough.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "calico-ipam: {}",
                printable::lines(&error.to_string())
            );
            ExitCode::FAILURE
        }
    }
}

fn run(
    arguments: Arguments,
    links: &dyn HostLinks,
    out: &mut dyn Write,
) -> Result<CommandOutcome, CliError> {
    let Arguments {
        connection,
        output,
        command,
    } = arguments;
    match &command {
        Command::Completions(args) => return print_completions(args, out),
        // `trace` also works without a reachable datastore.
        Command::Trace(args) => return trace::run(args, &connection, output, links, out),
        Command::Adopt(args) => return adopt::run(args, &connection, output, links, out),
        Command::Journal(args) if args.is_list() => return journal::list(args, output, out),
        _ => {}
    }
    let config = connection.resolve(process::variables())?;
    let store = Datastore::open_uncached(&config)?;
    let services = &ServicesApi::of(&connection, &config, process::variables());
    let notices = &mut io::stderr();
    let is_new = config.missing_file().is_some();
    if is_new && !matches!(command, Command::Journal(_)) {
        writeln!(
            notices,
            "note: {} does not exist yet; it is created now",
            describe(&config)
        )
        .map_err(CliError::Output)?;
    }
    for warning in config.warnings() {
        writeln!(notices, "note: {}", printable::line(warning)).map_err(CliError::Output)?;
    }
    let (datastore, journal_name) = (describe(&config), datastore_name(&config));
    let mut app = App {
        store: &store,
        services,
        datastore,
        journal_name,
        links,
        is_new,
        format: output,
        out,
        notices,
    };
    process::block_on(execute(command, &mut app))
}

async fn execute(command: Command, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    match command {
        Command::Show(args) => show::run(&args, app).await,
        Command::Usage(args) => usage::run(&args, app).await,
        Command::Trace(args) => trace::with_app(&args, app).await,
        Command::Check(args) => check::run(&args, app).await,
        Command::Release(args) => release::run(&args, app).await,
        Command::Split(args) => split::run(&args, app).await,
        Command::Configure(args) => configure::run(&args, app).await,
        Command::Apply(args) => apply::run(&args, app).await,
        Command::Get(args) => get::run(&args, app).await,
        Command::Delete(args) => delete::run(&args, app).await,
        Command::Endpoints(args) => endpoints::run(&args, app).await,
        Command::Init(args) => init::run(&args, app).await,
        Command::Journal(args) => journal::run(&args, app).await,
        Command::Adopt(args) => adopt::with_app(&args, app).await,
        Command::Export(args) => transfer::export(&args, app).await,
        Command::Import(args) => transfer::import(&args, app).await,
        Command::Migrate(args) => migrate::run(&args, app).await,
        Command::Completions(args) => print_completions(&args, app.out),
    }
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam completions bash >/etc/bash_completion.d/calico-ipam
  source <(calico-ipam completions zsh)
  calico-ipam completions fish >~/.config/fish/completions/calico-ipam.fish

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

fn print_completions(
    args: &CompletionsArgs,
    out: &mut dyn Write,
) -> Result<CommandOutcome, CliError> {
    let mut script = Vec::new();
    let (mut command, name) = (Arguments::command(), "calico-ipam");
    match args.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    out.write_all(&script).map_err(CliError::Output)?;
    Ok(CommandOutcome::Success)
}
