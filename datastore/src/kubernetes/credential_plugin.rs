//! Runs the credential plugin of a kubeconfig's user (`exec`), a program that prints a token or a
//! client certificate.
//!
//! kube runs such programs too, but without a time limit, and it drops the expiry of certificates.

mod output;

use std::io::{self, IsTerminal};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kube::config::{ExecConfig, ExecInteractiveMode};
use libcalico::failure::Failure;
use os::child::{self, BusyRetry};
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub(super) use output::Credential;

/// The versions of the protocol between client and plugin. Both have the same fields here.
const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

/// Time limit of a plugin that cannot ask anybody.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The way out if a plugin failed, whose output is not shown.
const RUN_BY_HAND: &str = "run it by hand to see its messages";

/// Another process may just have written the program.
const BUSY: BusyRetry = BusyRetry {
    attempts: 10,
    pause: Duration::from_millis(10),
};

/// Number of running plugins that may ask a person on the terminal.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// Returns true while a credential plugin of this process may ask a person on the terminal. Other
/// output would then get between its question and the answer.
pub fn may_be_asking() -> bool {
    ASKING.load(Ordering::Relaxed) > 0
}

/// Returns the program's name for errors.
pub(super) fn name(exec: &ExecConfig) -> &str {
    exec.command.as_deref().unwrap_or("?")
}

/// Runs the plugin to its end and returns the credentials. An error contains no output of the
/// plugin and none of its arguments. `has_person` says that a person started
/// this process, whom the plugin may ask if there is a terminal.
pub(super) async fn run(exec: &ExecConfig, has_person: bool) -> Result<Credential, Failure> {
    run_within(TIME_LIMIT, exec, has_person).await
}

async fn run_within(
    limit: Duration,
    exec: &ExecConfig,
    has_person: bool,
) -> Result<Credential, Failure> {
    let has_terminal = has_person && io::stdin().is_terminal() && io::stderr().is_terminal();
    let version = version(exec)?;
    let is_interactive = is_interactive(exec.interactive_mode.as_ref(), has_terminal)?;
    let mut command = command(exec, version, is_interactive)?;
    let start_error = |reason: io::Error| {
        let failure = Failure::new("cannot run the program").because(reason);
        match &exec.install_hint {
            Some(hint) => failure.way_out(hint.clone()),
            None => failure,
        }
    };
    let (sender, receiver) = oneshot::channel();
    // The runtime would wait for a thread of its own pool when the process ends.
    let runner = move || {
        // The receiver is dropped if nobody waits for the credentials any more.
        let _ = sender.send(execute(&mut command, is_interactive, limit));
    };
    thread::Builder::new()
        .name("credentials".into())
        .spawn(runner)
        .map_err(start_error)?;
    let ended = receiver
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that runs the program ended")));
    let Output { status, stdout, .. } = ended.map_err(start_error)?.ok_or_else(|| {
        Failure::new(format_args!(
            "no credentials within {limit:?}, so the program was killed"
        ))
        .way_out(RUN_BY_HAND)
    })?;
    if !status.success() {
        let failure = Failure::new(format_args!("the program failed ({status})"));
        return Err(failure.way_out(RUN_BY_HAND));
    }
    output::parse(&stdout, version)
}

fn version(exec: &ExecConfig) -> Result<&'static str, Failure> {
    let configured = exec.api_version.as_deref().unwrap_or_default();
    let known = VERSIONS.into_iter().find(|version| *version == configured);
    known.ok_or_else(|| {
        let [first, second] = VERSIONS;
        Failure::new(format_args!("its apiVersion is `{configured}`"))
            .way_out(format!("write {first} or {second}"))
    })
}

fn is_interactive(mode: Option<&ExecInteractiveMode>, has_terminal: bool) -> Result<bool, Failure> {
    match mode {
        Some(ExecInteractiveMode::Never) => Ok(false),
        Some(ExecInteractiveMode::Always) if !has_terminal => Err(Failure::new(
            "its interactiveMode is Always, but no person and no terminal are there",
        )
        .way_out("use a plugin that asks nothing")),
        Some(ExecInteractiveMode::Always | ExecInteractiveMode::IfAvailable) | None => {
            Ok(has_terminal)
        }
    }
}

fn command(exec: &ExecConfig, version: &str, is_interactive: bool) -> Result<Command, Failure> {
    let program = exec
        .command
        .as_deref()
        .filter(|program| !program.is_empty())
        .ok_or_else(|| Failure::new("the kubeconfig names no command"))?;
    let mut command = Command::new(program);
    command.args(exec.args.iter().flatten());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut spec = json!({ "interactive": is_interactive });
    if let Some(cluster) = exec
        .cluster
        .as_ref()
        .and_then(|cluster| serde_json::to_value(cluster).ok())
    {
        spec["cluster"] = cluster;
    }
    let info: Value = json!({ "kind": "ExecCredential", "apiVersion": version, "spec": spec });
    command.env("KUBERNETES_EXEC_INFO", info.to_string());
    Ok(command)
}

/// Returns `None` if the time limit passes. A person gets all the time they need, and sees the
/// plugin's questions.
fn execute(
    command: &mut Command,
    is_interactive: bool,
    limit: Duration,
) -> io::Result<Option<Output>> {
    if is_interactive {
        command
            .stdin(Stdio::inherit())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        ASKING.fetch_add(1, Ordering::Relaxed);
        let output = child::spawn(command, BUSY).and_then(Child::wait_with_output);
        ASKING.fetch_sub(1, Ordering::Relaxed);
        return output.map(Some);
    }
    child::run(command.stderr(Stdio::null()), b"", limit, BUSY)
}

#[cfg(test)]
mod tests;
