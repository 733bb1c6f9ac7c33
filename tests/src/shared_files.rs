//! Folders whose files several tests of a process read, such as a release. No test may change them.
//!
//! A process runs no code after its last test, so the folders are below `target/`, and the next
//! process deletes them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::images::in_tree;
use crate::memo::Memo;

/// The folder of this process.
static OWN: Memo<(), PathBuf> = Memo::new();

/// Creates a folder for shared files, with a name that no other files of the process have.
pub fn shared_folder(name: &str) -> Result<PathBuf> {
    let own = OWN.get((), || {
        folder_of(
            std::process::id(),
            Path::new(&in_tree("target/shared-by-tests")),
        )
    })?;
    let folder = own.join(name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Creates the folder of a process in `all`, and deletes those of processes that have ended.
fn folder_of(process: u32, all: &Path) -> Result<PathBuf> {
    fs::create_dir_all(all)?;
    let own = all.join(process.to_string());
    for entry in fs::read_dir(all)? {
        let entry = entry?;
        let runs = Path::new("/proc").join(entry.file_name()).exists();
        if !runs || entry.path() == own {
            // Another process may delete the same folder.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    fs::create_dir(&own).with_context(|| own.display().to_string())?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_folder_replaces_those_of_ended_processes_and_an_earlier_one_of_the_same_process() {
        let all = tempfile::tempdir().unwrap();
        let own = std::process::id();
        for name in ["1", "ended", &own.to_string()] {
            fs::create_dir_all(all.path().join(name).join("release")).unwrap();
        }
        let folder = folder_of(own, all.path()).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        let exists = |name: &str| all.path().join(name).exists();
        assert!(exists("1") && !exists("ended"), "the process 1 runs");
    }
}
