//! The one binary of the plugins and of what installs them: `calico`, and `calico-ipam` and `install` by the names it
//! is called by (CNI-1, IPAM-1, INST-3).

use std::alloc::System;
use std::path::Path;
use std::process::ExitCode;

use cni_plugin::agent_debts;
use cni_plugin::dataplane::KernelNetwork;
use installer::dispatch::{Command, Program, dispatch};
use installer::{command_line, commands};
use spinning_top::RawSpinlock;
use talc::TalcLock;
use talc::source::GlobalAllocSource;

/// musl's own allocator asks the kernel for memory, and gives it back, some hundred times in one ADD. A lock of the
/// kernel's kind around each of 8,000 calls would be a sixth of the work. One that spins is enough: hardly ever do two
/// threads work at a time, and then for as long as another plugin is fed and listened to.
#[global_allocator]
static ALLOCATOR: TalcLock<RawSpinlock, GlobalAllocSource<System>> = TalcLock::new(GlobalAllocSource::new(System));

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let called_as = arguments.next().unwrap_or_default();
    let name = Path::new(&called_as).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cni_command = std::env::var_os("CNI_COMMAND").map(|command| command.to_string_lossy().into_owned());
    match dispatch(name, &words, cni_command.as_deref()) {
        Program::Ipam => ipam_plugin::run::main(&KernelNetwork),
        Program::Plugin => cni_plugin::run::main(),
        Program::Command(command, count) => {
            let rest = arguments.iter().skip(count).cloned();
            match command {
                Command::Install => command_line::install(rest, &KernelNetwork, agent_debts::pay),
                Command::RefreshToken => command_line::refresh_token(rest, &KernelNetwork, agent_debts::pay),
                Command::Uninstall => command_line::uninstall(rest, &KernelNetwork),
                Command::Doctor => command_line::doctor(rest, &KernelNetwork),
                Command::Health => command_line::health(rest),
                Command::Version => command_line::version(),
                Command::Help => commands::help(),
                Command::Unknown => commands::refuse(name, &words),
            }
        }
        Program::Ctl | Program::FlexVolume => commands::refuse(name, &words),
    }
}
