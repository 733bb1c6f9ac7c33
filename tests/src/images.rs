//! What images of this machine's architecture are made with (`deploy/images`).

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::run;
use crate::skip::skipped;

/// For `deploy/images/build.sh` and `deploy/release.sh`: programs of quick builds are larger than what may be handed out.
pub const ANY_SIZE: &str = "MOST_BYTES=1000000000";

/// Go's name of this machine's architecture.
pub fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// A file of the tree.
pub fn in_tree(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).join(path).display().to_string()
}

/// Whether this machine has the programs in Go that images are made with; the test is skipped otherwise.
///
/// # Errors
/// The script that builds them cannot be run.
pub fn can_be_made() -> Result<bool> {
    for tool in ["images".to_owned(), format!("cni-plugins-{}", arch())] {
        let place = run(&in_tree("tests/install-go-tools.sh"), &["--place", &tool])?;
        if !PathBuf::from(place.trim()).is_dir() {
            skipped(&format!("{tool} is not built (tests/install-go-tools.sh {tool})"));
            return Ok(false);
        }
    }
    Ok(true)
}
