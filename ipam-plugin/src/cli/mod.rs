//! `calico-ipam` for operators: the command line of a process that no container runtime started.
//!
//! ```text
//! arguments ─▶ Arguments ─▶ Connection ─▶ Datastore ─▶ one command ─▶ stdout
//!                                                          └───────▶ notices and progress on stderr
//! ```
//!
//! Each command has a file of its own with its arguments (`…Args`) and `run`, which writes to the `Session` and can
//! thus be tested without a process. Read `arguments`, `connection` and `session` first, then the commands.

mod apply;
mod arguments;
mod check;
mod completions;
mod connection;
mod delete;
mod documents;
mod endpoints;
mod error;
mod export;
mod get;
mod import;
mod init;
mod journal;
mod kind;
mod output;
mod progress;
mod reading;
mod release;
mod session;
mod settings;
mod show;
mod store_object;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod trace;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::Parser;
use datastore::Datastore;
use netconf::printable;

use self::arguments::{Arguments, Command};
use self::error::CliError;
use self::session::{Outcome, Session};
use crate::host_link::HostLinks;
use crate::journal::name_of;
use crate::process;

/// Options that may precede the command. `-v` and `-upgrade` belong to the plugin (CNI-7).
const LEADING_OPTIONS: [&str; 12] = [
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
];

/// Returns true if an operator runs the process: no runtime set `CNI_COMMAND`, and the first argument is a word or an
/// option of this command line. The plugin ignores a configuration as an argument (`{…}`).
pub fn is_asked() -> bool {
    std::env::var_os("CNI_COMMAND").is_none_or(|command| command.is_empty())
        && std::env::args_os().nth(1).is_some_and(|first| is_ours(&first.to_string_lossy()))
}

fn is_ours(first: &str) -> bool {
    let name = first.split_once('=').map_or(first, |(name, _)| name);
    first.starts_with(|c: char| c.is_ascii_alphabetic())
        || LEADING_OPTIONS.contains(&name)
        || (first.starts_with("-o") && !first.starts_with("-o="))
}

/// Runs the command line. The exit status is 0, or 1 for errors and for findings of `check`, or 2 for invalid
/// arguments. `links` gives access to the network interfaces of the kernel.
pub fn main(links: &dyn HostLinks) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments()) {
        Ok(arguments) => arguments,
        Err(usage) => {
            // Failure is ignored, because there is no other output for the text.
            let _ = usage.print();
            return ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2));
        }
    };
    let mut out = output::Terminal::new(BufWriter::new(io::stdout().lock()));
    let outcome = run(arguments, links, &mut out).and_then(|outcome| {
        out.flush().map_err(CliError::Output)?;
        Ok(outcome)
    });
    match outcome {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Wrong) => ExitCode::FAILURE,
        // In `calico-ipam show | head`, the reader closes the pipe after it has read enough.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "calico-ipam: {}", printable::lines(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Returns the arguments after the usual program name, whatever the name of the binary is.
fn arguments() -> impl Iterator<Item = OsString> {
    std::iter::once("calico-ipam".into()).chain(std::env::args_os().skip(1))
}

fn run(arguments: Arguments, links: &dyn HostLinks, out: &mut dyn Write) -> Result<Outcome, CliError> {
    let Arguments { connection, output, command } = arguments;
    match &command {
        Command::Completions(args) => return completions::run(args, out),
        // `trace` also works without a reachable datastore.
        Command::Trace(args) => return trace::run(args, &connection, output, links, out),
        _ => {}
    }
    if let Command::Journal(args) = &command
        && args.is_list()
    {
        return journal::list(args, output, out);
    }
    let connection = connection.resolve(|name| std::env::var(name).ok())?;
    let store = Datastore::open(&connection.config)?;
    let mut notices = io::stderr();
    let is_new = connection.is_new_file();
    if is_new && !matches!(command, Command::Journal(_)) {
        writeln!(notices, "note: {} does not exist yet; it is created now", connection.name())
            .map_err(CliError::Output)?;
    }
    let mut session = Session::new(&store, output, out, &mut notices);
    (session.datastore, session.is_new) = (connection.name(), is_new);
    (session.spelling, session.links) = (name_of(&connection.config), links);
    process::block_on(execute(command, &mut session))
}

async fn execute(command: Command, session: &mut Session<'_>) -> Result<Outcome, CliError> {
    match command {
        Command::Show(args) => show::run(&args, session).await,
        Command::Trace(args) => trace::in_session(&args, session).await,
        Command::Check(args) => check::run(&args, session).await,
        Command::Release(args) => release::run(&args, session).await,
        Command::Apply(args) => apply::run(&args, session).await,
        Command::Get(args) => get::run(&args, session).await,
        Command::Delete(args) => delete::run(&args, session).await,
        Command::Endpoints(args) => endpoints::run(&args, session).await,
        Command::Init(args) => init::run(&args, session).await,
        Command::Journal(args) => journal::run(&args, session).await,
        Command::Export(args) => export::run(&args, session).await,
        Command::Import(args) => import::run(&args, session).await,
        Command::Completions(args) => completions::run(&args, session.out),
    }
}
