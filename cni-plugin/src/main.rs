//! The one binary of the plugins: `calico`, and `calico-ipam` by the name it is called by (CNI-1, IPAM-1).

use std::path::Path;
use std::process::ExitCode;

/// musl's own allocator asks the kernel for memory, and gives it back, some hundred times in one ADD.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let called_as = arguments.next().unwrap_or_default();
    match Path::new(&called_as).file_name().and_then(|name| name.to_str()) {
        Some("calico-ipam") => ipam_plugin::run::main(),
        _ => cni_plugin::run::main(),
    }
}
