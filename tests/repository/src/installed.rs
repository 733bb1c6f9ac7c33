//! Programs that tests/install-go-tools.sh and tests/install-cargo-deny.sh install.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// Returns the folder in which tests/install-go-tools.sh and tests/install-cargo-deny.sh install
/// programs.
pub fn built_programs() -> Result<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    Ok(cache
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("calico-tests"))
}

/// Returns the path of a program that tests/install-go-tools.sh builds.
pub fn built(program: &str) -> Result<PathBuf> {
    let path = built_programs()?.join("bin").join(program);
    ensure!(
        path.is_file(),
        "{program} is not built (tests/install-go-tools.sh {program})"
    );
    Ok(path)
}

/// Returns Go's name of this machine's architecture.
pub fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}
