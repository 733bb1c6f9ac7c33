//! Rejects programs that are older than the sources of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use crate::PROGRAM_CRATES;

const BUILD_FILES: [&str; 3] = ["Cargo.toml", "Cargo.lock", ".cargo/config.toml"];

/// Checks that each of `programs` was built after the last change of the sources in `workspace`.
pub(super) fn require_fresh(workspace: &Path, programs: &[PathBuf]) -> Result<()> {
    let mut newest = (SystemTime::UNIX_EPOCH, PathBuf::new());
    for source in PROGRAM_CRATES.iter().chain(&BUILD_FILES) {
        visit(&workspace.join(source), &mut newest)?;
    }
    let (changed, source) = newest;
    for program in programs {
        let built = modified(program)?;
        ensure!(
            built >= changed,
            "{} is older than {}: run `make build-test`, or set CALICO_BIN_DIR",
            program.display(),
            source.display()
        );
    }
    Ok(())
}

/// Visits a file, or the sources below a directory, and keeps the newest in `newest`.
fn visit(path: &Path, newest: &mut (SystemTime, PathBuf)) -> Result<()> {
    if path.is_dir() {
        // Tests and benchmarks are no part of the programs.
        if ["tests", "benches"]
            .iter()
            .any(|folder| path.ends_with(folder))
        {
            return Ok(());
        }
        for entry in
            fs::read_dir(path).with_context(|| format!("cannot list {}", path.display()))?
        {
            visit(&entry?.path(), newest)?;
        }
    } else if path.extension().is_some_and(|extension| {
        ["rs", "toml", "lock", "proto"]
            .iter()
            .any(|known| extension == *known)
    }) {
        let changed = modified(path)?;
        if changed > newest.0 {
            *newest = (changed, path.to_owned());
        }
    }
    Ok(())
}

fn modified(path: &Path) -> Result<SystemTime> {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    fn write(path: &Path, seconds: u64) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
            .unwrap();
    }

    #[test]
    fn program_older_than_a_source_is_refused_with_both_names() {
        let workspace = tempfile::tempdir().unwrap();
        let (root, program) = (
            workspace.path(),
            workspace.path().join("target/plugin/calico"),
        );
        PROGRAM_CRATES
            .iter()
            .for_each(|name| write(&root.join(name).join("src/lib.rs"), 100));
        BUILD_FILES
            .iter()
            .for_each(|file| write(&root.join(file), 100));
        write(&program, 200);
        require_fresh(root, std::slice::from_ref(&program)).unwrap();
        write(&root.join("README.md"), 300);
        write(&root.join("netconf/notes.txt"), 300);
        require_fresh(root, std::slice::from_ref(&program)).unwrap();

        write(&root.join("libcalico/src/ipam/block.rs"), 300);
        let error = require_fresh(root, &[program]).unwrap_err().to_string();
        assert!(
            error.contains("target/plugin/calico is older than") && error.contains("ipam/block.rs"),
            "{error}"
        );
    }
}
