//! The program `kube-controllers`: the controllers, and the migration beside them. Run under the
//! name `check-status`, it is the exec probe of its own pod.

use std::io::Write;
use std::process::ExitCode;

use kube_controllers::cli::Options;
use kube_controllers::run;
use kube_controllers::status::check;
use node_process::process;

/// Replaces musl's allocator, which returns little memory to the system.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    if let Some(arguments) = check::probe_arguments(std::env::args_os()) {
        return check::run(arguments);
    }
    let options = match Options::parse_from_command(std::env::args_os()) {
        Ok(options) => options,
        // clap prints help and version to stdout and exits with success.
        Err(error) if error.exit_code() == 0 => error.exit(),
        Err(error) => {
            let _ = write!(std::io::stderr(), "{}", error.render());
            return ExitCode::FAILURE;
        }
    };
    run::main(&options, process::variables(), migration::run)
}
