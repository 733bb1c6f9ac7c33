//! The CNI calls that run on the node, by the environments of the processes.
//!
//! The runtime starts each plugin of a chain, and Multus each of its delegates, with the ID of the
//! container in the environment. So the calls of all plugins count, also those of an earlier
//! version of this one.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use node_process::process::is_own_netns;

use super::DataplaneError;
use super::processes::has_ended;

/// The environment variable with the container of a call.
const CONTAINER: &[u8] = b"CNI_CONTAINERID=";

/// Returns the IDs of the containers for which a process in `proc` runs as a CNI plugin.
pub(super) fn containers(proc: &Path) -> Result<BTreeSet<String>, DataplaneError> {
    let own_user = fs::metadata("/proc/self")
        .map_err(DataplaneError::Processes)?
        .uid();
    let mut containers = BTreeSet::new();
    for entry in fs::read_dir(proc).map_err(DataplaneError::Processes)? {
        let entry = entry.map_err(DataplaneError::Processes)?;
        if entry
            .file_name()
            .to_str()
            .is_none_or(|name| name.parse::<u32>().is_err())
        {
            continue;
        }
        let process = entry.path();
        match environment(&process, own_user) {
            Ok(environment) => containers.extend(containers_in(&environment)),
            Err(error) if has_ended(&process, &error) => {}
            Err(source) => {
                return Err(DataplaneError::HiddenProcess {
                    path: process,
                    source,
                });
            }
        }
    }
    Ok(containers)
}

/// Returns the environment of a process at its start; empty for a process that runs no plugin. A
/// plugin that creates host interfaces runs as root, in the network namespace of this process. The
/// environment of a process that the kernel shows as another user's is readable only with one more
/// capability. The kernel shows a process that may not be dumped as root's.
fn environment(process: &Path, own_user: u32) -> io::Result<Vec<u8>> {
    let file = process.join("environ");
    let owner = fs::metadata(&file)?.uid();
    if (owner != 0 && owner != own_user) || !is_own_netns(&fs::metadata(process.join("ns/net"))?)? {
        return Ok(Vec::new());
    }
    fs::read(file)
}

fn containers_in(environment: &[u8]) -> impl Iterator<Item = String> {
    let variables = environment.split(|byte| *byte == 0);
    variables.filter_map(|variable| {
        Some(String::from_utf8_lossy(variable.strip_prefix(CONTAINER)?).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// Shows SEC-33.
    #[test]
    fn containers_of_calls_are_those_in_environments_of_processes_on_the_host() {
        let directory = tempfile::tempdir().unwrap();
        let calls = [
            ("12", "c1", true),
            ("13", "c2", true),
            ("14", "in-a-pod", false),
            ("self", "no-process", true),
        ];
        for (name, container, is_on_host) in calls {
            let process = directory.path().join(name);
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(
                process.join("environ"),
                format!("A=CNI_CONTAINERID=no\0CNI_CONTAINERID={container}\0B="),
            )
            .unwrap();
            let netns = process.join("ns/net");
            if is_on_host {
                symlink("/proc/thread-self/ns/net", netns).unwrap()
            } else {
                fs::write(netns, "").unwrap()
            }
        }
        // A process that has ended.
        fs::create_dir(directory.path().join("15")).unwrap();
        assert_eq!(
            containers(directory.path()).unwrap(),
            BTreeSet::from(["c1".to_owned(), "c2".to_owned()])
        );
    }

    #[test]
    fn unreadable_environment_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        // A path below a file is as unreadable for root as for others.
        fs::write(directory.path().join("12"), "").unwrap();
        let error = containers(directory.path()).unwrap_err();
        assert!(
            matches!(error, DataplaneError::HiddenProcess { .. }),
            "{error}"
        );
    }

    #[test]
    fn container_of_a_running_process_is_found_until_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .env("CNI_CONTAINERID", "c1")
            .spawn()
            .unwrap();
        let process = format!("/proc/{}", child.id());
        // Until the new program is loaded, the kernel shows the environment of this process, and
        // then an empty one.
        let is_loaded = || {
            fs::read_to_string(format!("{process}/environ"))
                .unwrap()
                .contains("CNI_CONTAINERID=c1\0")
        };
        while !is_loaded() {
            assert!(child.try_wait().unwrap().is_none(), "the program ended");
            std::thread::yield_now();
        }
        symlink(process, directory.path().join("12")).unwrap();
        let found = containers(directory.path());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.unwrap(), BTreeSet::from(["c1".to_owned()]));
        assert_eq!(containers(directory.path()).unwrap(), BTreeSet::new());
    }
}
