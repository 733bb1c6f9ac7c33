//! `make image`, for this machine's architecture.

mod bills;
mod content;
mod layout;
mod run;

use integration_tests::command;
use integration_tests::images::{ANY_SIZE, arch, can_be_made, in_tree};
use integration_tests::plugin::Plugins;
use tempfile::TempDir;

/// Builds both images in a new folder. Returns `None`, and marks the test as skipped, if a program is missing.
fn images() -> Option<TempDir> {
    if !can_be_made().unwrap() {
        return None;
    }
    Some(images_of(&Plugins::locate().unwrap().dir().display().to_string()))
}

fn images_of(programs: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().display().to_string();
    let build = in_tree("deploy/images/build.sh");
    command::run("env", &["SOURCE_DATE_EPOCH=1700000000", ANY_SIZE, &build, "--programs", programs, "--out", &out])
        .unwrap();
    directory
}
