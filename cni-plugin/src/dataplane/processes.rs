//! The network namespaces that processes are in, from `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::netns::{NetnsError, NetnsFd};

const PROC: &str = "/proc";

/// Returns one process for each network namespace but that of this process.
///
/// A process that ends meanwhile is in no namespace. A process that this one may not look at is left out: it has more rights than
/// the plugin, and a container of the runtime that calls the plugin has not.
pub(super) fn by_netns() -> io::Result<Vec<(u32, NetnsFd)>> {
    by_netns_in(Path::new(PROC))
}

fn by_netns_in(proc: &Path) -> io::Result<Vec<(u32, NetnsFd)>> {
    let (mut processes, mut seen) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let path = entry.path().join("ns/net");
        let Ok(found) = fs::metadata(&path) else { continue };
        if !seen.insert((found.dev(), found.ino())) {
            continue;
        }
        match NetnsFd::open(&path) {
            Ok(netns) => processes.push((process, netns)),
            // The process ended between the two, and another one may be in its namespace.
            Err(NetnsError::NotFound { .. }) => _ = seen.remove(&(found.dev(), found.ino())),
            Err(_) => {}
        }
    }
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn processes_of_a_directory_that_is_no_proc_are_an_error_or_none() {
        assert!(by_netns_in(Path::new("/nonexistent")).is_err());
        let directory = tempfile::tempdir().unwrap();
        for name in ["self", "12", "cpuinfo"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert!(by_netns_in(directory.path()).unwrap().is_empty(), "12 ended meanwhile");
    }

    #[test]
    fn processes_of_another_network_namespace_are_found_once_for_each_namespace() {
        let mut unshare = Command::new("unshare");
        let child = unshare.args(["--map-root-user", "--net", "sh", "-c", "echo ready; exec sleep 60"]);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let processes = by_netns().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes.iter().any(|(process, _)| *process == child.id()));
        assert!(processes.iter().all(|(process, _)| *process != std::process::id()));
    }
}
