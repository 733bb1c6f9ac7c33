//! The repository as its tests see it: the crates of the programs, the programs that scripts
//! install for tests, and the mark of a skipped test.
//!
//! The rules for sources, documents and dependencies are in `tests/repository/tests/`. They only
//! read files, so this crate depends on no crate of the programs.

pub mod installed;
pub mod skip;

use std::path::Path;

/// The crates of the programs, each a folder of the workspace.
pub const PROGRAM_CRATES: [&str; 17] = [
    "netconf",
    "libcalico",
    "os",
    "node-process",
    "datastore",
    "dataplane",
    "allocation",
    "ipam-plugin",
    "installation",
    "installer",
    "node-agent",
    "doctor",
    "node-commands",
    "cni-plugin",
    "kube-controllers",
    "migration",
    "kube-controllers-program",
];

/// Returns the folder of the workspace.
///
/// # Panics
/// Never: this crate is two folders below it.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate is two folders below the workspace")
}
