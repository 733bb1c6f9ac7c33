//! What both plugins do as processes: arguments in, streams and exit status out, panics told to the runtime.

use std::future::Future;
use std::io::{self, IsTerminal, Read, Write};
use std::mem::ManuallyDrop;
use std::panic::{self, PanicHookInfo};
use std::path::PathBuf;
use std::process::ExitCode;

use netconf::conf::{LogConf, LogLevel as ConfLevel};
use netconf::invocation::{Invocation, Plugin, Printed, invocation as decide};
use netconf::{Call, CallError, CniError, MAX_INPUT, printable};
use tokio::runtime::Runtime;

use crate::logging::{self, LogConfig, LogLevel, Subject};

/// The version of this build: what `-v` prints. The build may set it with `CALICO_VERSION`.
pub fn build_version() -> &'static str {
    option_env!("CALICO_VERSION").unwrap_or(concat!("v", env!("CARGO_PKG_VERSION")))
}

/// Decides what this process has to do, from its arguments, its environment and stdin.
pub fn invocation(plugin: Plugin) -> Result<Invocation, CallError> {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
    // A value that is no UTF-8 is malformed, not missing: its replacement characters pass no check.
    decide(plugin, build_version(), &arguments, &variable, read_stdin)
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// All of stdin; nothing where it is a terminal, which would make a person wait for nothing. Reading stops behind the
/// longest input that is accepted.
pub fn read_stdin() -> io::Result<Vec<u8>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Ok(Vec::new());
    }
    let mut bytes = Vec::new();
    stdin.lock().take(MAX_INPUT as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Prints, and says how to exit.
pub fn print(printed: &Printed) -> ExitCode {
    // A reader that went away cannot be told.
    let _ = io::stderr().write_all(printed.stderr.as_bytes());
    write_stdout(&printed.stdout);
    exit_code(printed.status)
}

/// The end of an operation: its result, or its error, on stdout.
pub fn finish(outcome: Result<String, CallError>) -> ExitCode {
    exit_code(print_outcome(outcome))
}

/// An error as the runtime reads it (CNI-45).
pub fn fail(error: CallError) -> ExitCode {
    finish(Err(error))
}

/// Ends a call that cannot be decoded: its error goes to the runtime, and into the log with what the environment says
/// of the attachment, in the file of the configuration if that can be read so far.
pub fn refuse(error: CallError, component: &'static str) -> ExitCode {
    let conf = error.log.as_deref().cloned().unwrap_or_default();
    start_log(&conf, component, Subject::of_environment(&variable, error.node.as_deref()));
    tracing::error!(error = %error.error, "{} is refused", variable("CNI_COMMAND").unwrap_or_default());
    fail(error)
}

/// Prints, and returns the exit status.
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

/// From now on a panic prints a CNI error and ends the process: release builds abort on panic, so that nothing after
/// the hook would run (CNI-48, CNI-49).
pub fn report_panics() {
    panic::set_hook(Box::new(|info| {
        let error = panic_error(info);
        match tracing::dispatcher::has_been_set() {
            true => tracing::error!("{error}"),
            false => _ = writeln!(io::stderr(), "{}", printable::line(&error.to_string())),
        }
        write_stdout(&error.to_json(None));
        std::process::exit(CniError::EXIT_STATUS);
    }));
}

fn panic_error(info: &PanicHookInfo<'_>) -> CniError {
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied();
    let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown reason");
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    CniError::internal(format!("the plugin panicked: {what}"))
        .with_details(format!("this is a bug{place} of {}; please report it", build_version()))
}

/// Begins to log as the configuration of a call says, and tells what of it is passed over.
pub fn start_call_log(call: &Call, component: &'static str) {
    start_log(&call.conf.log, component, Subject::of_call(call));
    let (network, netns, ifname) = (&call.conf.name, &call.netns, &call.ifname);
    tracing::debug!(network, netns, ifname, "{} begins", call.command.as_str());
    for error in &call.passed_over {
        tracing::warn!(%error, "{} does not need this setting, which is wrong, and goes on", call.command.as_str());
    }
}

/// Begins to log as the network configuration says. `component` is the first part of the source in each line, and each
/// ends with the fields of `subject`.
pub fn start_log(conf: &LogConf, component: &'static str, subject: Subject) {
    logging::init(LogConfig {
        level: match conf.log_level {
            ConfLevel::Debug => LogLevel::Debug,
            ConfLevel::Info => LogLevel::Info,
            ConfLevel::Error => LogLevel::Error,
        },
        file: (!conf.log_file_path.is_empty()).then(|| PathBuf::from(&conf.log_file_path)),
        max_size_mib: conf.log_file_max_size.into(),
        max_age_days: conf.log_file_max_age.into(),
        max_count: conf.log_file_max_count as usize,
        component,
        subject,
    });
}

/// Runs an operation to its end, on this thread. The runtime is built here and not earlier: `-v` and malformed calls
/// need none (design decision 8).
pub fn block_on<T>(operation: impl Future<Output = T>) -> T {
    runtime().block_on(operation)
}

/// The same for an operation that is all this process has to do: ends it with what the operation answered. The runtime
/// is not taken down, which the kernel does faster; for the same reason the operation should keep what it has open.
pub fn run(operation: impl Future<Output = Result<String, CallError>>) -> ! {
    let runtime = ManuallyDrop::new(runtime());
    let outcome = runtime.block_on(operation);
    std::process::exit(print_outcome(outcome))
}

fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    // Only a process without file descriptors or memory to spare gets here; the panic hook tells the runtime.
    runtime.unwrap_or_else(|error| panic!("cannot start: {error}"))
}

fn write_stdout(text: &str) {
    let mut stdout = io::stdout().lock();
    // Without a reader there is nobody to tell.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The hook ends the process, so the test runs itself as another one.
    #[test]
    fn a_panic_is_a_cni_error_on_stdout_and_exit_status_1() {
        const CHILD: &str = "CALICO_TEST_PANIC";
        if std::env::var_os(CHILD).is_some() {
            report_panics();
            panic!("boom <{}>", 7);
        }
        let name = "process::tests::a_panic_is_a_cni_error_on_stdout_and_exit_status_1";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(1));
        let stdout = String::from_utf8(child.stdout).unwrap();
        let json: serde_json::Value = serde_json::from_str(&stdout[stdout.find('{').unwrap()..]).unwrap();
        assert_eq!(json["code"], 999);
        assert_eq!(json["msg"], "the plugin panicked: boom <7>");
        assert!(json["details"].as_str().unwrap().contains("src/process.rs:"), "{json}");
    }
}
