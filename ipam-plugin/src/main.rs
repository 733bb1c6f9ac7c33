//! `calico-ipam` as a binary of its own, for development; what is installed is `calico` under this name.

use std::process::ExitCode;

use ipam_plugin::host_link::NoHostLinks;

fn main() -> ExitCode {
    ipam_plugin::run::main(&NoHostLinks)
}
