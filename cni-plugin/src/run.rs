//! Runs `calico` from the start of the process to its exit status.

use std::mem::ManuallyDrop;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use allocation::cluster_state;
use datastore::{ClusterStore as _, Datastore};
use ipam_plugin::datastore_settings;
use netconf::invocation::{Invocation, Plugin};
use netconf::{Call, CallError, CniError, Code, Command, NetConf};
use node_process::process;
use os::node_files::NodeFiles;

use crate::context::Context;
use crate::timings::Timings;
use crate::{add, check, del, gc, status};

/// The first part of the source in each log line.
const COMPONENT: &str = "cni-plugin";

/// The time limit of the request of `-t` to the datastore.
const CONNECTION_TEST_DEADLINE: Duration = Duration::from_secs(2);

/// Runs `calico`.
pub fn main() -> ExitCode {
    let started = Instant::now();
    process::report_panics();
    match process::invocation(Plugin::Calico) {
        Ok(Invocation::Print(printed)) => process::print(&printed),
        Ok(Invocation::Call(call)) => serve(call, started),
        Ok(Invocation::TestConnection) => process::finish(test_connection()),
        // The parser accepts -upgrade for `calico-ipam` only.
        Ok(Invocation::Upgrade) => process::finish(Err(CniError::internal(
            "-upgrade belongs to calico-ipam",
        )
        .into())),
        Err(error) => process::refuse(error, COMPONENT),
    }
}

fn serve(call: Box<Call>, started: Instant) -> ! {
    let stages = process::start_call_log(&call, COMPONENT);
    let timings = Timings::of_parsed_call(started, stages);
    let (version, command) = (call.version, call.command);
    process::run(async move {
        run_verb(call, timings).await.map_err(|error| {
            tracing::error!(%error, "{} failed", command.as_str());
            CallError {
                version: Some(version),
                ..error.into()
            }
        })
    })
}

async fn run_verb(call: Box<Call>, timings: Timings) -> Result<String, CniError> {
    let (result_version, command) = (call.result_version(), call.command);
    let request_timeout = (command == Command::Status).then_some(status::DEADLINE);
    let cx = match (
        Context::open(call, NodeFiles::of_this_node(), request_timeout),
        command,
    ) {
        (Err(error), Command::Status) => return Err(status::not_available(&error)),
        (cx, _) => cx?,
    };
    // Dropping the context would only cost time: the process ends with the verb.
    let cx = ManuallyDrop::new(cx);
    let output = match command {
        Command::Add => add::add(&cx)
            .await
            .and_then(|result| result.to_json(result_version)),
        Command::Del => del::del(&cx).await.map(|()| String::new()),
        Command::Check => check::check(&cx).await.map(|()| String::new()),
        Command::Status => status::status(&cx).await.map(|()| String::new()),
        Command::Gc => gc::gc(&cx).await.map(|()| String::new()),
        Command::Version => Ok(String::new()),
    };
    timings.report(command.as_str(), cx.store.requests() + cx.api.requests());
    output
}

/// Tests that the datastore of the configuration on stdin is reachable and ready (`-t`).
fn test_connection() -> Result<String, CallError> {
    check_datastore().map(|()| String::new()).map_err(|cause| {
        CniError::new(Code::CONNECTION_TEST, "data store connection failed")
            .with_details(cause.to_string())
            .into()
    })
}

fn check_datastore() -> Result<(), CniError> {
    let raw = process::read_stdin()
        .map_err(|error| CniError::new(Code::IO, format!("error reading from stdin: {error}")))?;
    let conf = NetConf::parse(&raw)?;
    let config = datastore_settings::from_conf(&conf, Some(CONNECTION_TEST_DEADLINE))?;
    let store = Datastore::open(&config)
        .map_err(|error| CniError::new(Code::INVALID_CONFIG, error.to_string()))?;
    process::block_on(cluster_state::ensure_ready(&store))?;
    Ok(())
}
