//! Finds the network namespaces of processes in `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DataplaneError;
use super::netns::{NetnsError, NetnsFd};

const PROC: &str = "/proc";

/// Calls `visit` with one process of each network namespace except that of this process, and with the namespace. Each
/// namespace is open only during its call, because a host may have more namespaces than a process may have open files.
///
/// A process that exits meanwhile is skipped. A process that this process may not inspect is skipped, too: it has more
/// rights than the plugin, so it is not in a container of the runtime that runs the plugin.
///
/// # Errors
/// Returns an error if the processes cannot be listed, a namespace cannot be opened, or `visit` fails.
pub(super) fn each_netns(visit: impl FnMut(u32, &NetnsFd) -> Result<(), DataplaneError>) -> Result<(), DataplaneError> {
    each_netns_in(Path::new(PROC), visit)
}

fn each_netns_in(
    proc: &Path,
    mut visit: impl FnMut(u32, &NetnsFd) -> Result<(), DataplaneError>,
) -> Result<(), DataplaneError> {
    let unlisted = |source| DataplaneError::Processes { source };
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(proc).map_err(unlisted)? {
        let entry = entry.map_err(unlisted)?;
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let path = entry.path().join("ns/net");
        let Ok(found) = fs::metadata(&path) else { continue };
        if !seen.insert((found.dev(), found.ino())) {
            continue;
        }
        match NetnsFd::open(&path) {
            Ok(netns) => visit(process, &netns)?,
            // The process exited meanwhile, or has more rights. Another process may be in the same namespace.
            Err(NetnsError::NotFound { .. }) => _ = seen.remove(&(found.dev(), found.ino())),
            Err(NetnsError::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                seen.remove(&(found.dev(), found.ino()));
            }
            Err(NetnsError::SameNamespace { .. } | NetnsError::NotANamespace { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn processes_of_a_directory_that_is_no_proc_are_an_error_or_none() {
        let none = |_, _: &NetnsFd| panic!("a namespace");
        assert!(each_netns_in(Path::new("/nonexistent"), none).is_err());
        let directory = tempfile::tempdir().unwrap();
        for name in ["self", "12", "cpuinfo"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        each_netns_in(directory.path(), none).unwrap();
    }

    #[test]
    fn processes_of_another_network_namespace_are_found_once_for_each_namespace() {
        let mut unshare = Command::new("unshare");
        let child = unshare.args(["--map-root-user", "--net", "sh", "-c", "echo ready; exec sleep 60"]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let mut processes = Vec::new();
        let visited = each_netns(|process, _| {
            processes.push(process);
            Ok(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        visited.unwrap();
        assert!(processes.contains(&child.id()) && !processes.contains(&std::process::id()), "{processes:?}");
    }
}
