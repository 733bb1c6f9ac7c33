//! Reads the proxy variables of this process and of the processes whose environment the plugins
//! inherit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use libcalico::variables::Variables;

use crate::snapshot::ProxySettings;

/// The names of the processes that run the plugins, or that run the container runtime.
const PROCESSES: [&str; 3] = ["containerd", "crio", "kubelet"];
/// The variables that name a proxy, as Go's HTTP client reads them.
const PROXIES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
/// The variables with the servers to connect to without a proxy.
const EXCLUDED: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Returns the settings of this process, whose environment is `own`, and of the processes in
/// `proc`. Processes whose environment cannot be read, for example from a container, are left out.
pub(super) fn read(proc: &Path, own: Variables<'_>) -> Vec<ProxySettings> {
    let mut found: Vec<_> = processes_of_node(proc)
        .iter()
        .filter_map(|process| read_process(process))
        .collect();
    found.extend(settings("calico doctor", own));
    found.sort();
    found.dedup();
    found
}

/// Returns the directories in `proc` of the processes that are in the PID namespace of the node's
/// first process.
pub(super) fn processes_of_node(proc: &Path) -> Vec<PathBuf> {
    let of_node = read_namespace(&proc.join("1"));
    let entries = fs::read_dir(proc)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    entries
        .filter(|process| of_node.is_none() || read_namespace(process) == of_node)
        .collect()
}

/// Returns the PID namespace of a process. A program of a pod may have any name and any
/// environment, but has another namespace than the node's first process. Only a privileged pod can
/// share that namespace.
fn read_namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/pid")).ok()
}

/// Returns `None` for another process than [`PROCESSES`], and for one that is unreadable or without
/// a proxy.
fn read_process(directory: &Path) -> Option<ProxySettings> {
    let name = fs::read_to_string(directory.join("comm")).ok()?;
    let process = PROCESSES
        .into_iter()
        .find(|process| *process == name.trim_end())?;
    let environment = fs::read(directory.join("environ")).ok()?;
    let environment = String::from_utf8_lossy(&environment);
    let variables: BTreeMap<&str, &str> = environment
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let lookup = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    settings(process, Variables::new(&lookup))
}

/// Returns `None` if no variable names a proxy.
fn settings(process: &'static str, environment: Variables<'_>) -> Option<ProxySettings> {
    let variables: Vec<_> = PROXIES
        .into_iter()
        .filter(|name| environment.non_empty(name).is_some())
        .collect();
    let excluded = EXCLUDED
        .into_iter()
        .find_map(|name| environment.non_empty(name))
        .unwrap_or_default();
    (!variables.is_empty()).then_some(ProxySettings {
        process,
        variables,
        excluded,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn process(proc: &Path, number: u32, name: &str, environment: &str) {
        let directory = proc.join(number.to_string());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("comm"), format!("{name}\n")).unwrap();
        fs::write(directory.join("environ"), environment.replace(' ', "\0")).unwrap();
    }

    #[test]
    fn proxies_of_runtimes_kubelet_and_this_process_are_read() {
        let proc = tempfile::tempdir().unwrap();
        let of_runtime = "HOME=/ HTTPS_PROXY=http://me:secret@p:3128 http_proxy=http://p \
                          no_proxy=10.0.0.0/8,.svc ";
        process(proc.path(), 7, "containerd", of_runtime);
        process(proc.path(), 8, "containerd", of_runtime);
        process(proc.path(), 9, "containerd-shim", of_runtime);
        process(proc.path(), 10, "kubelet", "HTTP_PROXY= NO_PROXY=x ");
        process(proc.path(), 11, "sh", "HTTP_PROXY=http://p ");
        fs::create_dir(proc.path().join("sys")).unwrap();
        fs::create_dir(proc.path().join("12")).unwrap();
        fs::write(proc.path().join("12/comm"), "crio\n").unwrap();
        let lookup = |name: &str| (name == "http_proxy").then(|| "http://p".to_owned());
        let found = read(proc.path(), Variables::new(&lookup));
        let expected = [
            ProxySettings {
                process: "calico doctor",
                variables: vec!["http_proxy"],
                excluded: String::new(),
            },
            ProxySettings {
                process: "containerd",
                variables: vec!["HTTPS_PROXY", "http_proxy"],
                excluded: "10.0.0.0/8,.svc".to_owned(),
            },
        ];
        assert_eq!(found, expected);
        assert!(!format!("{found:?}").contains("secret"));
    }

    #[test]
    fn process_of_a_pod_with_the_name_of_a_runtime_is_left_out() {
        let proc = tempfile::tempdir().unwrap();
        for (number, name, namespace) in [
            (1, "init", "pid:[1]"),
            (7, "crio", "pid:[1]"),
            (8, "kubelet", "pid:[2]"),
        ] {
            process(proc.path(), number, name, "HTTPS_PROXY=http://p ");
            let namespaces = proc.path().join(number.to_string()).join("ns");
            fs::create_dir(&namespaces).unwrap();
            symlink(namespace, namespaces.join("pid")).unwrap();
        }
        let found = read(proc.path(), Variables::NONE);
        assert_eq!(
            found
                .iter()
                .map(|settings| settings.process)
                .collect::<Vec<_>>(),
            ["crio"]
        );
    }

    #[test]
    fn missing_proc_leaves_the_settings_of_this_process() {
        assert_eq!(
            read(Path::new("/no/such/proc"), Variables::NONE),
            Vec::new()
        );
        let lookup = |name: &str| (name == "HTTPS_PROXY").then(|| "http://p".to_owned());
        let own = read(Path::new("/no/such/proc"), Variables::new(&lookup));
        assert_eq!(own.len(), 1);
    }
}
