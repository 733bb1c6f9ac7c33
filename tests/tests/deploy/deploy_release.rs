//! `deploy/release.sh`, for this machine's architecture, with the programs in `target/plugin`.

mod files;
mod published;
mod refused;
mod signed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use integration_tests::command::run;
use integration_tests::images::{ANY_SIZE, can_be_made, in_tree};
use integration_tests::kubernetes::program;
use integration_tests::memo::Memo;
use integration_tests::plugin::Plugins;
use integration_tests::shared_files::shared_folder;
use integration_tests::skip::skipped;
use tempfile::TempDir;

/// A variable for `deploy/release.sh`, most of whose processor time is the best compression.
const FAST: &str = "COMPRESSION=--fast";

/// The registry of [`release_for_registry`], on a port of the test's host.
const REGISTRY: &str = "127.0.0.1:5000/me/calico";

/// The folders of the releases that tests share, by name.
static SHARED: Memo<&str, PathBuf> = Memo::new();

/// Returns true if this machine has the programs for a release; otherwise marks the test as
/// skipped.
fn can_release() -> bool {
    can_be_made().unwrap()
        && program("kubectl")
            .map_err(|missing| skipped(&missing.to_string()))
            .is_ok()
}

/// Returns the folder with a release that other tests read, too.
fn shared_release() -> Arc<PathBuf> {
    shared("plain", &[FAST])
}

/// Returns the folder with a release for [`REGISTRY`] that other tests read, too. Its provenance
/// has a source and a builder, and its compression is that of a real release.
fn release_for_registry() -> Arc<PathBuf> {
    let registry = format!("REGISTRY={REGISTRY}");
    shared(
        "registry",
        &[
            &registry,
            "SOURCE_URI=git+https://example.com/calico",
            "BUILDER_ID=https://example.com/ci",
        ],
    )
}

fn shared(name: &'static str, variables: &[&str]) -> Arc<PathBuf> {
    let make = || {
        let folder = shared_folder(name)?;
        release_in(&folder, &[&[ANY_SIZE], variables].concat())?;
        Ok(folder)
    };
    SHARED.get(name, make).unwrap()
}

/// Makes a release that belongs to the calling test.
fn release(variables: &[&str]) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    release_in(directory.path(), variables)?;
    Ok(directory)
}

fn release_in(directory: &Path, variables: &[&str]) -> Result<()> {
    let script = in_tree("deploy/release.sh");
    let programs = Plugins::locate()?.dir().display().to_string();
    let out = directory.join("release").display().to_string();
    let mut words = vec!["SOURCE_DATE_EPOCH=1700000000"];
    words.extend(variables);
    words.extend([script.as_str(), "--programs", &programs, "--out", &out]);
    run("env", &words).map(drop)
}
