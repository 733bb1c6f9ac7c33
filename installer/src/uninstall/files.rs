//! Examines and removes the installed files.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::plan::{FoundFile, RemovalTask, Verdict};
use super::report::UninstallReport;
use installation::found::{FoundState, inspect_file};
use installation::layout::{DirectoryRole, Layout};
use installation::plugin_chain::read_chain;
use installation::state::State;
use installation::{conflist, template, tls_assets};
use os::atomic_file::regular_file;

/// The extension of a configuration during its removal. Runtimes ignore it (INST-159).
const RETIRED: &str = "removed";

/// Examines every file that the state records.
pub(super) fn inspect(state: &State, layout: &Layout, net_dir: &str) -> Vec<FoundFile> {
    let mut found = Vec::new();
    for (place, files) in &state.files {
        let directory = layout.dir(*place, Path::new(net_dir));
        for (name, installed) in files {
            let path = directory.join(name);
            let retired = (*place == DirectoryRole::Net && conflist::is_read_by_runtimes(name))
                .then(|| retired(&path));
            // The renamed file exists if an earlier run renamed the file and ended before its
            // removal.
            let retired = retired.filter(|retired| retired.exists());
            let (path, second) = match (path.exists(), retired) {
                (false, Some(retired)) => (retired, None),
                (_, retired) => (path, retired),
            };
            let state = inspect_file(&path, installed);
            // After such a run, another program may have written a new file under the original
            // name.
            if let Some(path) = second.filter(|_| state != FoundState::Same) {
                let (name, state) = (format!("{name}.{RETIRED}"), inspect_file(&path, installed));
                found.push(FoundFile {
                    place: *place,
                    name,
                    path,
                    state,
                    replaced: false,
                });
            }
            found.push(FoundFile {
                place: *place,
                name: name.clone(),
                path,
                state,
                replaced: installed.replaced,
            });
        }
    }
    found.extend(find_tls_files(&found, &layout.net_dir(net_dir)));
    found
}

/// Returns the TLS files for etcd, to which the configuration refers, if the configuration will be
/// removed.
fn find_tls_files(found: &[FoundFile], net_dir: &Path) -> Vec<FoundFile> {
    if !found
        .iter()
        .any(|file| file.is_configuration() && file.state == FoundState::Same)
    {
        return Vec::new();
    }
    let file = |name: &&str| {
        let path = net_dir.join(tls_assets::DIRECTORY).join(name);
        let name = format!("{}/{name}", tls_assets::DIRECTORY);
        let found = FoundFile {
            place: DirectoryRole::Net,
            name,
            path,
            state: FoundState::Renewed,
            replaced: false,
        };
        found.path.is_file().then_some(found)
    };
    tls_assets::FILES.iter().filter_map(file).collect()
}

/// Returns the programs that the remaining configurations name, each with the name of such a
/// configuration.
pub(super) fn programs_in_use(
    layout: &Layout,
    net_dir: &str,
    found: &[FoundFile],
) -> BTreeMap<String, String> {
    let directory = layout.net_dir(net_dir);
    let is_removed = |name: &str| {
        found.iter().any(|file| {
            file.place == DirectoryRole::Net && file.name == name && file.state == FoundState::Same
        })
    };
    let mut named = BTreeMap::new();
    let kept_names = conflist::candidates(&directory)
        .unwrap_or_default()
        .into_iter()
        .filter(|name| !is_removed(name));
    for name in kept_names {
        let text = regular_file::contents(&directory.join(&name)).unwrap_or_default();
        let Some(conf) = read_chain(&text).map(|chain| chain.to_list()) else {
            continue;
        };
        named.extend(
            programs(&conf)
                .into_iter()
                .map(|program| (program.to_owned(), name.clone())),
        );
        // containerd runs `loopback` beside every configuration (INST-171).
        named.insert("loopback".to_owned(), name);
    }
    named
}

/// Returns the programs that a configuration names: its plugins, the programs that they call, and
/// those of the configurations in `delegates` (Multus).
fn programs(conf: &Map<String, Value>) -> Vec<&str> {
    let mut named = Vec::new();
    for plugin in template::plugins(conf) {
        named.extend(template::program_names(plugin));
        let delegates = plugin
            .get("delegates")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        // The JSON parser limits the depth, and so this recursion.
        named.extend(delegates.filter_map(Value::as_object).flat_map(programs));
    }
    named
}

/// Renames a configuration that is to be removed. containerd reloads its configuration on a rename
/// (INST-161). Returns false only if the rename fails, so that a runtime still reads the file.
pub(super) fn retire(task: &RemovalTask, acts: bool, report: &mut UninstallReport) -> bool {
    if task.verdict != Verdict::Remove || !acts || is_retired(&task.file.path) {
        return true;
    }
    match fs::rename(&task.file.path, retired(&task.file.path)) {
        Ok(()) => true,
        Err(error) => {
            report.add_failure("remove", task.file.path.display(), error);
            false
        }
    }
}

/// Reports a configuration that stays, or that was renamed and is removed by a later run.
pub(super) fn report_retired(task: &RemovalTask, report: &mut UninstallReport) {
    if let Verdict::Keep(reason) = &task.verdict {
        return report.add_remaining(task.file.path.display(), reason);
    }
    let path = if is_retired(&task.file.path) {
        task.file.path.clone()
    } else {
        retired(&task.file.path)
    };
    if path.exists() {
        report.add_remaining(
            path.display(),
            "no runtime reads a file of this name; the next run removes it",
        );
    }
}

/// Removes a file, or reports the plan or the reason for keeping it. Returns false if the file
/// stays.
pub(super) fn remove(task: &RemovalTask, acts: bool, report: &mut UninstallReport) -> bool {
    match &task.verdict {
        Verdict::Missing => {
            report.add_missing(task.file.path.display());
            return true;
        }
        Verdict::Keep(reason) => {
            report.add_remaining(task.file.path.display(), reason);
            return false;
        }
        Verdict::Remove => {}
    }
    if !acts {
        report.add_success("remove", task.file.path.display());
        return false;
    }
    let was_retired = task.file.is_configuration() && !is_retired(&task.file.path);
    let path = if was_retired {
        retired(&task.file.path)
    } else {
        task.file.path.clone()
    };
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            report.add_failure("remove", task.file.path.display(), error);
            false
        }
        _ if was_retired && task.file.path.exists() => {
            let reason = "another program restored the file; delete the DaemonSet, whose agent \
                          restores files, then run this command again";
            report.add_failure("remove", task.file.path.display(), reason);
            false
        }
        _ => {
            report.add_success("remove", task.file.path.display());
            true
        }
    }
}

pub(super) fn retired(path: &Path) -> PathBuf {
    path.with_added_extension(RETIRED)
}

pub(super) fn is_retired(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == RETIRED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use installation::kubeconfig;

    #[test]
    fn programs_of_multus_delegates_are_found() {
        let conf = serde_json::json!({ "type": "multus", "name": "multus", "delegates": [
            { "type": "macvlan", "ipam": { "type": "host-local" } },
            { "name": "k8s-pod-network", "plugins": [
                { "type": "calico", "ipam": { "type": "calico-ipam" } }, { "type": "portmap" },
            ] },
        ] });
        let named = programs(conf.as_object().unwrap());
        assert_eq!(
            named,
            [
                "multus",
                "macvlan",
                "host-local",
                "calico",
                "calico-ipam",
                "portmap"
            ]
        );
    }

    #[test]
    fn programs_of_a_flannel_delegate_are_found() {
        let delegate = serde_json::json!({ "type": "calico", "ipam": { "type": "host-local" } });
        let conf = serde_json::json!({
            "plugins": [{ "type": "flannel", "delegate": delegate }, { "type": "portmap" }]
        });
        assert_eq!(
            programs(conf.as_object().unwrap()),
            ["flannel", "calico", "host-local", "portmap"]
        );
    }

    /// An agent whose DaemonSet was not deleted restores the file.
    #[test]
    fn recreated_configuration_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("10-calico.conflist");
        let name = "10-calico.conflist".to_owned();
        let file = FoundFile {
            place: DirectoryRole::Net,
            name,
            path,
            state: FoundState::Same,
            replaced: false,
        };
        let task = RemovalTask {
            file,
            verdict: Verdict::Remove,
        };
        let mut report = UninstallReport::default();
        for is_put_back in [false, true] {
            fs::write(&task.file.path, "{}").unwrap();
            assert!(retire(&task, true, &mut report));
            assert!(!task.file.path.exists() && retired(&task.file.path).exists());
            if is_put_back {
                fs::write(&task.file.path, "{}").unwrap();
            }
            assert_eq!(remove(&task, true, &mut report), !is_put_back);
            assert_eq!(
                (task.file.path.exists(), retired(&task.file.path).exists()),
                (is_put_back, false)
            );
            assert_eq!(
                report
                    .to_string()
                    .contains("another program restored the file; delete the DaemonSet"),
                is_put_back
            );
        }
    }

    #[test]
    fn special_files_are_reported_as_unreadable() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let net_dir = layout.net_dir("/etc/cni/net.d");
        fs::create_dir_all(&net_dir).unwrap();
        let mut state = State::default();
        for (name, digest) in [
            ("10-calico.conflist", Some("aa".to_owned())),
            (kubeconfig::NAME, None),
        ] {
            nix::unistd::mkfifo(&net_dir.join(name), nix::sys::stat::Mode::S_IRUSR).unwrap();
            state.record(DirectoryRole::Net, name, digest, false);
        }
        let found = inspect(&state, &layout, "/etc/cni/net.d");
        let unreadable = |found: &FoundFile| {
            matches!(
                &found.state, FoundState::Unreadable(why) if why.contains("no regular file"),
            )
        };
        assert!(
            found.len() == 2 && found.iter().all(unreadable),
            "{found:?}"
        );
        assert!(programs_in_use(&layout, "/etc/cni/net.d", &found).is_empty());
    }

    #[test]
    fn programs_of_a_configuration_with_unrepresentable_values_are_found() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let net_dir = layout.net_dir("/etc/cni/net.d");
        fs::create_dir_all(&net_dir).unwrap();
        let odd = r#"{"name": "n", "plugins": [{"type": "bridge", "s": "\ud800", "n": 1e400}]}"#;
        fs::write(net_dir.join("05-other.conflist"), odd).unwrap();
        let named = programs_in_use(&layout, "/etc/cni/net.d", &[]);
        assert!(named.keys().eq(["bridge", "loopback"]), "{named:?}");
    }
}
