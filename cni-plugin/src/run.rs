//! From the start of the process to its exit status.

use std::process::ExitCode;

use ipam_plugin::process::{self, build_version};
use netconf::invocation::{Invocation, Plugin};
use netconf::{Call, CallError, Command};

use crate::session::Session;
use crate::timings::Timings;
use crate::{add, check, del, gc, status, test_connection};

/// Runs `calico`.
pub fn main() -> ExitCode {
    let timings = Timings::start();
    process::report_panics();
    match process::invocation(Plugin::Calico) {
        Ok(Invocation::Print(printed)) => process::print(&printed),
        Ok(Invocation::Call(call)) => serve(*call, timings),
        Ok(Invocation::TestConnection) => process::finish(test_connection::run()),
        Ok(Invocation::Upgrade) => unreachable_flag(),
        Err(error) => process::fail(&error),
    }
}

/// `-upgrade` is a flag of `calico-ipam` only; the parser never gives it here.
fn unreachable_flag() -> ExitCode {
    process::print(&netconf::invocation::Printed {
        stderr: format!("calico {}: -upgrade belongs to calico-ipam\n", build_version()),
        status: 2,
        ..Default::default()
    })
}

fn serve(call: Call, mut timings: Timings) -> ExitCode {
    process::start_log(&call.conf.log, "cni-plugin");
    timings.stage("parse");
    let (version, result_version, command) = (call.version, call.result_version(), call.command);
    let outcome = process::block_on(async {
        let mut session = match (Session::open(call, timings), command) {
            (Err(error), Command::Status) => return Err(status::not_available(&error)),
            (session, _) => session?,
        };
        let printed = match command {
            Command::Add => add::add(&mut session).await.and_then(|result| result.to_json(result_version)),
            Command::Del => del::del(&mut session).await.map(|()| String::new()),
            Command::Check => check::check(&mut session).await.map(|()| String::new()),
            Command::Status => status::status(&mut session).await.map(|()| String::new()),
            Command::Gc => gc::gc(&mut session).await.map(|()| String::new()),
            Command::Version => Ok(String::new()),
        };
        session.timings.report(command.as_str(), session.store.requests());
        printed
    });
    process::finish(outcome.map_err(|error| {
        tracing::error!(%error, "{} failed", command.as_str());
        CallError { error, version: Some(version) }
    }))
}
