//! The process of the programs: arguments, environment variables, streams, exit status and panics.

use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::future::Future;
use std::io::{self, IsTerminal, Read, Write};
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::panic::{self, PanicHookInfo};
use std::path::Path;
use std::process::ExitCode;

use libcalico::variables::Variables;
use netconf::CommandOutput;
use netconf::invocation::{Invocation, Plugin, invocation as decode_invocation};
use netconf::{Call, CallError, CniError, MAX_INPUT, printable};
use tokio::runtime::Runtime;

use crate::logging::stages::StageTimes;
use crate::logging::{self, Subject};

/// Returns the version of this build, as `-v` prints it. The build may set it with
/// `CALICO_VERSION`.
pub fn build_version() -> &'static str {
    option_env!("CALICO_VERSION").unwrap_or(concat!("v", env!("CARGO_PKG_VERSION")))
}

/// Decides the work of this process from its arguments, its environment and stdin.
pub fn invocation(plugin: Plugin) -> Result<Invocation, CallError> {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|text| text.to_string_lossy().into_owned())
        .collect();
    decode_invocation(
        plugin,
        build_version(),
        &arguments,
        lossy_variables(),
        read_stdin,
    )
}

/// Returns the environment variables of this process. A value that is not UTF-8 counts as unset.
pub fn variables() -> Variables<'static> {
    Variables::new(&|name| std::env::var(name).ok())
}

/// Returns the environment variables of this process. A value that is not UTF-8 is passed on with
/// replacement characters, so that it does not count as missing.
pub fn lossy_variables() -> Variables<'static> {
    Variables::new(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Returns `FELIX_INTERFACEPREFIX`, the prefixes of the names of pods' interfaces as a comma list,
/// or `None` if it is not set or not UTF-8.
pub fn felix_interface_prefix() -> Option<String> {
    variables().get("FELIX_INTERFACEPREFIX")
}

/// Reads stdin, at most one byte more than the longest accepted input. Reads nothing from a
/// terminal, where a read would block.
pub fn read_stdin() -> io::Result<Vec<u8>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    stdin
        .lock()
        .take(MAX_INPUT as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Prints the texts for stdout and stderr, and returns the exit code.
pub fn print(printed: &CommandOutput) -> ExitCode {
    // A write error is ignored, because there is no other output for the text.
    let _ = io::stderr().write_all(printed.stderr.as_bytes());
    write_stdout(&printed.stdout);
    exit_code(printed.status)
}

/// Prints the result or the error of an operation on stdout and returns the exit code.
pub fn finish(outcome: Result<String, CallError>) -> ExitCode {
    exit_code(print_outcome(outcome))
}

/// Ends a call that cannot be decoded: prints the error for the runtime and logs it, as far as the
/// configuration was readable.
pub fn refuse(error: CallError, component: &'static str) -> ExitCode {
    let conf = error.log.as_deref().cloned().unwrap_or_default();
    logging::init(
        &conf,
        component,
        &Subject::of_environment(lossy_variables(), error.node.as_deref()),
    );
    tracing::error!(
        error = %error.error,
        command = lossy_variables().get("CNI_COMMAND"),
        "the call is refused",
    );
    finish(Err(error))
}

fn print_outcome(outcome: Result<String, CallError>) -> i32 {
    match outcome {
        Ok(stdout) => {
            write_stdout(&stdout);
            0
        }
        Err(error) => {
            write_stdout(&error.error.to_json(error.version));
            CniError::EXIT_STATUS
        }
    }
}

/// Makes every panic print a CNI error and end the process. Release builds abort on panic, so no
/// code after the hook would run.
pub fn report_panics() {
    panic::set_hook(Box::new(|info| {
        let error = panic_error(info);
        if tracing::dispatcher::has_been_set() {
            tracing::error!("{error}");
        } else {
            _ = writeln!(io::stderr(), "{}", printable::line(&error.to_string()));
        }
        write_stdout(&error.to_json(None));
        std::process::exit(CniError::EXIT_STATUS);
    }));
}

fn panic_error(info: &PanicHookInfo<'_>) -> CniError {
    let payload = info.payload();
    let message = payload.downcast_ref::<&str>().copied();
    let message = message
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown reason");
    let location = info
        .location()
        .map(|at| format!(" at {}:{}", at.file(), at.line()))
        .unwrap_or_default();
    CniError::internal(format!("the plugin panicked: {message}")).with_details(format!(
        "this is a bug{location} of {}; please report it",
        build_version()
    ))
}

/// Starts logging by the configuration of a call, and logs the invalid settings that are ignored.
/// Returns the stages that the call runs from now on.
pub fn start_call_log(call: &Call, component: &'static str) -> StageTimes {
    let stages = logging::init_for_call(&call.conf.log, component, &Subject::of_call(call));
    let (command, network, netns, ifname) = (
        call.command.as_str(),
        &call.conf.name,
        &call.netns,
        &call.ifname,
    );
    tracing::debug!(command, network, netns, ifname, "the call begins");
    for error in &call.ignored_settings {
        tracing::warn!(
            %error, command, "ignoring an invalid setting that the command does not need",
        );
    }
    stages
}

/// Runs an operation to completion on this thread.
pub fn block_on<T>(operation: impl Future<Output = T>) -> T {
    runtime().block_on(operation)
}

/// Runs the only operation of this process, prints its outcome, and ends the process. The async
/// runtime is not dropped, because the kernel frees its resources faster.
pub fn run(operation: impl Future<Output = Result<String, CallError>>) -> ! {
    let runtime = ManuallyDrop::new(runtime());
    let outcome = runtime.block_on(operation);
    std::process::exit(print_outcome(outcome))
}

fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    // This fails, for example, without free file descriptors.
    runtime.unwrap_or_else(|error| panic!("cannot start the async runtime: {error}"))
}

fn write_stdout(text: &str) {
    let mut stdout = io::stdout().lock();
    // A write error is ignored, because there is no other output for the text.
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

/// An environment variable that a program reads, as `--help` describes it.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// The name.
    pub name: &'static str,
    /// The value used if the variable is not set; empty if there is none.
    pub default: &'static str,
    /// The effect.
    pub meaning: &'static str,
}

/// Creates the description of a variable.
pub const fn variable(
    name: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Variable {
    Variable {
        name,
        default,
        meaning,
    }
}

/// Returns a title and the variables below it, for `--help`.
#[must_use]
pub fn variables_help(title: &str, variables: &[Variable]) -> String {
    let mut text = format!("{title}:\n");
    for Variable {
        name,
        default,
        meaning,
    } in variables
    {
        let _ = write!(text, "  {name}\n          {meaning}");
        let _ = if default.is_empty() {
            writeln!(text)
        } else {
            writeln!(text, " [default: {default}]")
        };
    }
    text
}

/// The path of the network namespace of the calling thread. `/proc/self` would be that of the main
/// thread.
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

/// Returns true for the network namespace of the calling thread.
pub fn is_own_netns(file: &Metadata) -> io::Result<bool> {
    let own = fs::metadata(OWN_NETNS)?;
    Ok((file.dev(), file.ino()) == (own.dev(), own.ino()))
}

/// Returns true if this path leads to the network namespace of the calling thread; false if it
/// cannot be read.
pub fn is_path_to_own_netns(path: &Path) -> bool {
    fs::metadata(path)
        .and_then(|file| is_own_netns(&file))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn panic_prints_a_cni_error_on_stdout_and_exits_with_status_1() {
        const CHILD: &str = "CALICO_TEST_PANIC";
        if std::env::var_os(CHILD).is_some() {
            report_panics();
            panic!("boom <{}>", 7);
        }
        let name = "process::tests::panic_prints_a_cni_error_on_stdout_and_exits_with_status_1";
        let _forks = crate::FORKS
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(1));
        let stdout = String::from_utf8(child.stdout).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&stdout[stdout.find('{').unwrap()..]).unwrap();
        assert_eq!(json["code"], 999);
        assert_eq!(json["msg"], "the plugin panicked: boom <7>");
        assert!(
            json["details"]
                .as_str()
                .unwrap()
                .contains("src/process.rs:"),
            "{json}"
        );
    }

    #[test]
    fn own_network_namespace_is_recognized_by_any_path() {
        for own in ["/proc/self/ns/net", "/proc/thread-self/ns/net"] {
            assert!(is_path_to_own_netns(Path::new(own)), "{own}");
        }
        for other in [
            "/proc/self/ns/mnt",
            "/proc/self/status",
            "/no/such/file",
            "",
        ] {
            assert!(!is_path_to_own_netns(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn variables_help_shows_nonempty_defaults() {
        let variables = [variable("A", "1", "what"), variable("B", "", "else")];
        let expected = "Group:\n  A\n          what [default: 1]\n  B\n          else\n";
        assert_eq!(variables_help("Group", &variables), expected);
    }
}
