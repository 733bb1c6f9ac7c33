//! The `calico` binary. It contains both plugins and the installer, and selects the program by the
//! name it is run as (`calico`, `calico-ipam`, `install`), by its arguments and by `CNI_COMMAND`.

use std::alloc::System;
use std::path::Path;
use std::process::ExitCode;

use cni_plugin::agent_replay;
use cni_plugin::dispatch::{Program, dispatch};
use dataplane::KernelNetwork;
use node_process::process;
use spinning_top::RawSpinlock;
use talc::TalcLock;
use talc::source::GlobalAllocSource;

/// The allocator of the process. musl's own allocator requests memory from the kernel and returns
/// it several hundred times in one ADD. A spin lock is sufficient, because two threads rarely work
/// at the same time.
#[global_allocator]
static ALLOCATOR: TalcLock<RawSpinlock, GlobalAllocSource<System>> =
    TalcLock::new(GlobalAllocSource::new(System));

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called_as = arguments.next().unwrap_or_default();
    let name = Path::new(&called_as)
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cni_command = process::lossy_variables().get("CNI_COMMAND");
    match dispatch(name, &words, cni_command.as_deref()) {
        Program::Plugin => cni_plugin::run::main(),
        Program::Ipam => ipam_plugin::run::main(&KernelNetwork),
        Program::Install(options) => {
            node_commands::install(options, &KernelNetwork, agent_replay::replay)
        }
        Program::RefreshToken(options) => {
            node_commands::refresh_token(options, &KernelNetwork, agent_replay::replay)
        }
        Program::Uninstall(options) => node_commands::uninstall(options, &KernelNetwork),
        Program::Doctor(options) => node_commands::doctor(options, &KernelNetwork),
        Program::Health(options) => node_commands::health(options),
        Program::Version => node_commands::version(),
        Program::Help => node_commands::help(),
        Program::Unknown => node_commands::refuse(name, &words),
    }
}
