//! The network namespaces of the node's processes.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::errno::Errno;

use super::{DataplaneError, NetnsError, NetnsFd};

/// The processes whose namespaces count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Examined {
    /// The main thread of each process. A process that this process may not inspect is skipped: it has more rights than
    /// the plugin, so it is not in a container of the runtime that runs the plugin.
    Processes,
    /// Each thread of each process. One that this process may not inspect is an error.
    Threads,
}

/// Calls `visit` with one process in `proc` of each network namespace except that of this process, and with the
/// namespace. Each namespace is open only during its call, because a host may have more namespaces than a process may
/// have open files.
pub(super) fn each_netns(
    proc: &Path,
    examined: Examined,
    mut visit: impl FnMut(u32, &NetnsFd) -> Result<(), DataplaneError>,
) -> Result<(), DataplaneError> {
    let mut visited_namespaces = BTreeSet::new();
    for entry in fs::read_dir(proc).map_err(DataplaneError::Processes)? {
        let entry = entry.map_err(DataplaneError::Processes)?;
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        for path in namespaces(&entry.path(), examined)? {
            let metadata = match fs::metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if examined == Examined::Processes || has_ended(&error) => continue,
                Err(source) => return Err(DataplaneError::HiddenProcess { path, source }),
            };
            let namespace = (metadata.dev(), metadata.ino());
            if !visited_namespaces.insert(namespace) {
                continue;
            }
            match NetnsFd::open(&path) {
                Ok(netns) => visit(process, &netns)?,
                // The process exited after the lookup. Another process may be in the same namespace.
                Err(NetnsError::NotFound { .. }) => _ = visited_namespaces.remove(&namespace),
                Err(NetnsError::Io { source, .. })
                    if examined == Examined::Processes && source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    visited_namespaces.remove(&namespace);
                }
                Err(NetnsError::Io { source, .. }) if has_ended(&source) => _ = visited_namespaces.remove(&namespace),
                Err(NetnsError::SameNamespace { .. } | NetnsError::NotANamespace { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Returns the paths of the network namespaces of a process, whose directory in /proc is `process`.
fn namespaces(process: &Path, examined: Examined) -> Result<Vec<PathBuf>, DataplaneError> {
    if examined == Examined::Processes {
        return Ok(vec![process.join("ns/net")]);
    }
    let tasks = process.join("task");
    let listed = fs::read_dir(&tasks).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    match listed {
        Ok(listed) => Ok(listed.iter().map(|task| task.path().join("ns/net")).collect()),
        Err(error) if has_ended(&error) => Ok(Vec::new()),
        Err(source) => Err(DataplaneError::HiddenProcess { path: tasks, source }),
    }
}

/// Returns true if the error shows that the process does not exist any more.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn directory_other_than_proc_yields_an_error_or_no_process() {
        let none = |_, _: &NetnsFd| panic!("a namespace");
        assert!(each_netns(Path::new("/nonexistent"), Examined::Processes, none).is_err());
        let directory = tempfile::tempdir().unwrap();
        for name in ["self", "12", "cpuinfo"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        for examined in [Examined::Processes, Examined::Threads] {
            each_netns(directory.path(), examined, none).unwrap();
        }
    }

    #[test]
    fn unreadable_thread_is_an_error_and_an_unreadable_process_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        // A path below a file is as unreadable for root as for others.
        for file in ["12/ns", "13/task/13/ns"] {
            let file = directory.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let none = |_, _: &NetnsFd| panic!("a namespace");
        each_netns(directory.path(), Examined::Processes, none).unwrap();
        let error = each_netns(directory.path(), Examined::Threads, none).unwrap_err();
        assert!(error.to_string().contains("13/task/13/ns/net"), "{error}");
    }

    #[test]
    fn each_other_network_namespace_is_visited_once() {
        let mut unshare = Command::new("unshare");
        let child = unshare.args(["--map-root-user", "--net", "sh", "-c", "echo ready; exec sleep 60"]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let mut processes = Vec::new();
        let visited = each_netns(Path::new("/proc"), Examined::Processes, |process, _| {
            processes.push(process);
            Ok(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        visited.unwrap();
        assert!(processes.contains(&child.id()) && !processes.contains(&std::process::id()), "{processes:?}");
    }
}
