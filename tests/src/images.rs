//! Tools to build images for this machine's architecture (`deploy/images`).

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::run;
use crate::installed::arch;
use crate::skip::skipped;

/// Variable for the scripts in `deploy`: programs of quick builds exceed the size limit of
/// releases.
pub const ANY_SIZE: &str = "MOST_BYTES=1000000000";

/// Returns the path of a file in the repository.
pub fn in_tree(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
        .join(path)
        .display()
        .to_string()
}

/// Returns true if this machine has the Go programs that are needed to build images; otherwise
/// marks the test as skipped.
pub fn can_be_made() -> Result<bool> {
    for tool in ["images".to_owned(), format!("cni-plugins-{}", arch())] {
        let place = run(&in_tree("tests/install-go-tools.sh"), &["--place", &tool])?;
        if !PathBuf::from(place.trim()).is_dir() {
            skipped(&format!(
                "{tool} is not built (tests/install-go-tools.sh {tool})"
            ));
            return Ok(false);
        }
    }
    Ok(true)
}
