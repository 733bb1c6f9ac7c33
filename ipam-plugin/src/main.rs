//! `calico-ipam` as a separate binary, for development. Installations run `calico` under the name
//! `calico-ipam`.

use std::process::ExitCode;

use dataplane::KernelNetwork;

fn main() -> ExitCode {
    ipam_plugin::run::main(&KernelNetwork)
}
