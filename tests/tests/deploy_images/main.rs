//! `make image`: two images as OCI image layouts, of this machine's architecture and of the programs that `make build` has made.

mod content;
mod layout;
mod run;

use std::path::{Path, PathBuf};

use integration_tests::command;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use tempfile::TempDir;

/// What is built by Go before an image can be.
const TOOLS: [&str; 2] = ["images", "cni-plugins-ARCH"];

/// Go's name of this machine's architecture.
fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is a folder of the workspace")
}

/// Both images, freshly made in a folder of their own; nothing where this machine lacks what that takes, and then the test is
/// skipped.
fn images() -> Option<TempDir> {
    let script = workspace().join("tests/install-go-tools.sh").display().to_string();
    for tool in TOOLS.map(|tool| tool.replace("ARCH", arch())) {
        let place = PathBuf::from(command::run(&script, &["--place", &tool]).unwrap().trim());
        if !place.is_dir() {
            skipped(&format!("{tool} is not built (tests/install-go-tools.sh {tool})"));
            return None;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let programs = Plugins::locate().unwrap().dir().display().to_string();
    let out = directory.path().display().to_string();
    let build = workspace().join("deploy/images/build.sh").display().to_string();
    command::run("env", &["SOURCE_DATE_EPOCH=1700000000", &build, "--programs", &programs, "--out", &out]).unwrap();
    Some(directory)
}
