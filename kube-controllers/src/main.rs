//! `kube-controllers`; called as `check-status`, the exec probe of its pod.

use std::io::Write;
use std::process::ExitCode;

use kube_controllers::cli::Options;
use kube_controllers::run;
use kube_controllers::status::check;

/// musl's own allocator serialises threads, and gives back little of what it took.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    if let Some(arguments) = check::called(std::env::args_os()) {
        return check::run(arguments);
    }
    let options = match Options::parse_from_command(std::env::args_os()) {
        Ok(options) => options,
        // Prints help and version to stdout and succeeds; prints what is wrong to stderr and fails.
        Err(error) if error.exit_code() == 0 => error.exit(),
        Err(error) => {
            let _ = write!(std::io::stderr(), "{}", error.render());
            return ExitCode::FAILURE;
        }
    };
    run::main(&options, |name| std::env::var(name).ok())
}
