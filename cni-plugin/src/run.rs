//! From the start of the process to its exit status.

use std::mem::ManuallyDrop;
use std::process::ExitCode;

use ipam_plugin::process;
use netconf::invocation::{Invocation, Plugin};
use netconf::{Call, CallError, CniError, Command};

use crate::session::Session;
use crate::timings::Timings;
use crate::{add, check, del, gc, status, test_connection};

/// First part of the source in each line of the log.
const COMPONENT: &str = "cni-plugin";

/// Runs `calico`.
pub fn main() -> ExitCode {
    let timings = Timings::start();
    process::report_panics();
    match process::invocation(Plugin::Calico) {
        Ok(Invocation::Print(printed)) => process::print(&printed),
        Ok(Invocation::Call(call)) => serve(call, timings),
        Ok(Invocation::TestConnection) => process::finish(test_connection::run()),
        // The parser gives -upgrade to `calico-ipam` only.
        Ok(Invocation::Upgrade) => process::fail(CniError::internal("-upgrade belongs to calico-ipam").into()),
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

/// Serves one operation; what it answers is for stdout.
async fn operate(call: Box<Call>, timings: Timings) -> Result<String, CniError> {
    let (result_version, command) = (call.result_version(), call.command);
    let session = match (Session::open(call, timings), command) {
        (Err(error), Command::Status) => return Err(status::not_available(&error)),
        (session, _) => session?,
    };
    // Not taken down: the process ends with the operation.
    let mut session = ManuallyDrop::new(session);
    let printed = match command {
        Command::Add => add::add(&mut session).await.and_then(|result| result.to_json(result_version)),
        Command::Del => del::del(&mut session).await.map(|()| String::new()),
        Command::Check => check::check(&mut session).await.map(|()| String::new()),
        Command::Status => status::status(&mut session).await.map(|()| String::new()),
        Command::Gc => gc::gc(&mut session).await.map(|()| String::new()),
        Command::Version => Ok(String::new()),
    };
    session.timings.report(command.as_str(), session.store.requests() + session.api.requests());
    printed
}
