//! `make image`, for this machine's architecture.

mod bills;
mod content;
mod layout;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use integration_tests::command;
use integration_tests::images::{ANY_SIZE, can_be_made, in_tree};
use integration_tests::installed::arch;
use integration_tests::memo::Memo;
use integration_tests::plugin::Plugins;
use integration_tests::shared_files::shared_folder;

/// The folder of [`images`].
static SHARED: Memo<(), PathBuf> = Memo::new();

/// Returns a folder with both images, which other tests read, too. Returns `None`, and marks the
/// test as skipped, if a program is missing.
fn images() -> Option<Arc<PathBuf>> {
    if !can_be_made().unwrap() {
        return None;
    }
    let build = || {
        let folder = shared_folder("images")?;
        build_images(&programs(), &folder);
        Ok(folder)
    };
    Some(SHARED.get((), build).unwrap())
}

/// Returns the folder of the programs under test.
fn programs() -> String {
    Plugins::locate().unwrap().dir().display().to_string()
}

/// Builds both images with the programs in a folder.
fn build_images(programs: &str, into: &Path) {
    let out = into.display().to_string();
    let build = in_tree("deploy/images/build.sh");
    command::run(
        "env",
        &[
            "SOURCE_DATE_EPOCH=1700000000",
            ANY_SIZE,
            &build,
            "--programs",
            programs,
            "--out",
            &out,
        ],
    )
    .unwrap();
}
