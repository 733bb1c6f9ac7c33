//! The repository as its tests see it: the crates of the programs, the programs that scripts
//! install for tests, and the mark of a skipped test.
//!
//! The rules for sources, documents and dependencies are in `tests/repository/tests/`. They only
//! read files, so this crate depends on no crate of the programs.

pub mod effort;
pub mod installed;
pub mod skip;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

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

/// Returns the folder of the workspace: that of the crate whose test runs, so that a test program
/// built in one checkout reads the checkout in which it is started.
///
/// # Panics
/// Without the variable with which cargo and `tests/run.sh` start each test, or outside of a
/// workspace.
pub fn workspace() -> &'static Path {
    static WORKSPACE: LazyLock<PathBuf> = LazyLock::new(|| {
        let crate_folder = PathBuf::from(
            std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"),
        );
        crate_folder
            .ancestors()
            .find(|folder| folder.join("Cargo.lock").exists())
            .expect("a crate of the workspace has Cargo.lock above it")
            .to_path_buf()
    });
    &WORKSPACE
}
