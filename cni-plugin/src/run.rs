//! Runs `calico` from the start of the process to its exit status.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use ipam_plugin::process;
use netconf::invocation::{Invocation, Plugin};
use netconf::{Call, CallError, CniError, Command};

use crate::cni_error::not_available;
use crate::context::Context;
use crate::timings::Timings;
use crate::{add, check, del, gc, status, test_connection};

/// The first part of the source in each log line.
const COMPONENT: &str = "cni-plugin";

/// Runs `calico`.
pub fn main() -> ExitCode {
    let timings = Timings::start();
    process::report_panics();
    match process::invocation(Plugin::Calico) {
        Ok(Invocation::Print(printed)) => process::print(&printed),
        Ok(Invocation::Call(call)) => serve(call, timings),
        Ok(Invocation::TestConnection) => process::finish(test_connection::run()),
        // The parser accepts -upgrade for `calico-ipam` only.
        Ok(Invocation::Upgrade) => process::finish(Err(CniError::internal("-upgrade belongs to calico-ipam").into())),
        Err(error) => process::refuse(error, COMPONENT),
    }
}

fn serve(call: Box<Call>, mut timings: Timings) -> ! {
    process::start_call_log(&call, COMPONENT);
    timings.stage("parse");
    let (version, command) = (call.version, call.command);
    process::run(async move {
        operate(call, timings).await.map_err(|error| {
            tracing::error!(%error, "{} failed", command.as_str());
            CallError { version: Some(version), ..error.into() }
        })
    })
}

/// Runs one verb, and returns the text for stdout.
async fn operate(call: Box<Call>, timings: Timings) -> Result<String, CniError> {
    let (result_version, command) = (call.result_version(), call.command);
    let request_timeout = (command == Command::Status).then_some(status::DEADLINE);
    let cx = match (Context::open(call, request_timeout), command) {
        (Err(error), Command::Status) => return Err(not_available(&error)),
        (cx, _) => cx?,
    };
    // Dropping it would only cost time: the process ends with the verb.
    let (cx, mut timings) = (ManuallyDrop::new(cx), timings);
    let printed = match command {
        Command::Add => add::add(&cx, &mut timings).await.and_then(|result| result.to_json(result_version)),
        Command::Del => del::del(&cx, &mut timings).await.map(|()| String::new()),
        Command::Check => check::check(&cx, &mut timings).await.map(|()| String::new()),
        Command::Status => status::status(&cx).await.map(|()| String::new()),
        Command::Gc => gc::gc(&cx).await.map(|()| String::new()),
        Command::Version => Ok(String::new()),
    };
    timings.report(command.as_str(), cx.store.requests() + cx.api.requests());
    printed
}
