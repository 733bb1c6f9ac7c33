//! `deploy/release.sh`, for this machine's architecture, with the programs in `target/plugin`.

mod files;
mod published;
mod refused;
mod signed;

use anyhow::Result;
use integration_tests::command::run;
use integration_tests::images::{can_be_made, in_tree};
use integration_tests::kubernetes::program;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use tempfile::TempDir;

/// Returns true if this machine has the programs for a release; otherwise marks the test as skipped.
fn can_release() -> bool {
    can_be_made().unwrap() && program("kubectl").map_err(|missing| skipped(&missing.to_string())).is_ok()
}

fn release(variables: &[&str]) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let script = in_tree("deploy/release.sh");
    let programs = Plugins::locate()?.dir().display().to_string();
    let out = directory.path().join("release").display().to_string();
    let mut words = vec!["SOURCE_DATE_EPOCH=1700000000"];
    words.extend(variables);
    words.extend([script.as_str(), "--programs", &programs, "--out", &out]);
    run("env", &words)?;
    Ok(directory)
}
