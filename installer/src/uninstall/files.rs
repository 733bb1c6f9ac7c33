//! The files: looked at, and removed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::plan::{Found, FoundState, Task, Verdict};
use super::report::Report;
use crate::layout::{Layout, Place};
use crate::state::{Installed, State};
use crate::{digest, kubeconfig, runtime_choice, template, tls_assets};

/// What a configuration is called while it is being taken back. No runtime reads it (INST-159).
const RETIRED: &str = "removed";

/// What calico-node writes into the first line of its kubeconfig; the rest is the same as ours.
const CALICO_NODE: &str = "Installed by calico/node";

/// Looks at every file that the state notes.
pub(super) fn look(state: &State, layout: &Layout, net_dir: &str) -> Vec<Found> {
    let mut found = Vec::new();
    for (place, files) in &state.files {
        let directory = layout.dir(*place, Path::new(net_dir));
        for (name, installed) in files {
            let path = directory.join(name);
            // A run that was killed after it renamed the file.
            let path = if path.exists() || !retired(&path).exists() { path } else { retired(&path) };
            let state = look_at(&path, installed);
            found.push(Found { place: *place, name: name.clone(), path, state, replaced: installed.replaced });
        }
    }
    found.extend(tls_of(&found, &layout.net_dir(net_dir)));
    found
}

/// The files for TLS with etcd, which are the configuration's: nothing else reads them.
fn tls_of(found: &[Found], net_dir: &Path) -> Vec<Found> {
    let is_ours = |file: &Found| file.place == Place::Net && runtime_choice::is_read(&file.name);
    if !found.iter().any(|file| is_ours(file) && file.state == FoundState::Same) {
        return Vec::new();
    }
    let file = |name: &&str| {
        let path = net_dir.join(tls_assets::DIRECTORY).join(name);
        let state = if path.is_file() { FoundState::Renewed } else { FoundState::Gone };
        Found { place: Place::Net, name: format!("{}/{name}", tls_assets::DIRECTORY), path, state, replaced: false }
    };
    tls_assets::FILES.iter().map(file).collect()
}

fn look_at(path: &Path, installed: &Installed) -> FoundState {
    let there = match digest::of_file(path) {
        Ok(digest) => digest,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return FoundState::Gone;
        }
        Err(error) => return FoundState::Unreadable(error.to_string()),
    };
    match &installed.digest {
        Some(_) if installed.is(&there) => FoundState::Same,
        Some(_) => FoundState::Changed("it is not the file that was installed: somebody changed it since".into()),
        None => renewed(path),
    }
}

fn renewed(path: &Path) -> FoundState {
    let is_kubeconfig = path.file_name().is_some_and(|name| name == kubeconfig::NAME);
    let text = fs::read_to_string(path).unwrap_or_default();
    match is_kubeconfig && text.lines().next().is_some_and(|first| first.contains(CALICO_NODE)) {
        true => FoundState::Changed("calico-node wrote it, and refreshes it".into()),
        false => FoundState::Renewed,
    }
}

/// The programs that configurations name which will stay: whatever is not ours or was changed.
pub(super) fn named_by_others(layout: &Layout, net_dir: &str, found: &[Found]) -> BTreeMap<String, String> {
    let directory = layout.net_dir(net_dir);
    let goes = |name: &str| {
        found.iter().any(|file| file.place == Place::Net && file.name == name && file.state == FoundState::Same)
    };
    let mut named = BTreeMap::new();
    let stay = runtime_choice::candidates(&directory).unwrap_or_default().into_iter().filter(|name| !goes(name));
    for name in stay {
        let text = fs::read_to_string(directory.join(&name)).unwrap_or_default();
        let Ok(conf) = template::parse(&text) else { continue };
        for plugin in template::plugins(&conf) {
            let ipam = plugin.get("ipam").and_then(|ipam| ipam.get("type")).and_then(serde_json::Value::as_str);
            for program in [Some(template::kind(plugin)), ipam].into_iter().flatten().filter(|kind| !kind.is_empty()) {
                named.insert(program.to_owned(), name.clone());
            }
        }
        // containerd runs it with every configuration (INST-171).
        named.insert("loopback".to_owned(), name);
    }
    named
}

/// Renames a configuration away, by which the runtime notices (INST-161). It is removed when all else is.
pub(super) fn retire(task: &Task, acts: bool, report: &mut Report) {
    if task.verdict != Verdict::Remove || !acts || is_retired(&task.path) {
        return;
    }
    if let Err(error) = fs::rename(&task.path, retired(&task.path)) {
        report.fail("remove", task.path.display(), error);
    }
}

/// Removes a file, or says that it would be, or why it stays. Whether it is gone.
pub(super) fn remove(task: &Task, acts: bool, report: &mut Report) -> bool {
    match &task.verdict {
        Verdict::Gone => return true,
        Verdict::Leave(reason) => {
            report.leave(task.path.display(), reason);
            return false;
        }
        Verdict::Remove => {}
    }
    if !acts {
        report.done("remove", task.path.display());
        return false;
    }
    let path = if task.is_configuration() && !is_retired(&task.path) { retired(&task.path) } else { task.path.clone() };
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            report.fail("remove", task.path.display(), error);
            false
        }
        _ => {
            report.done("remove", task.path.display());
            true
        }
    }
}

fn retired(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".");
    name.push(RETIRED);
    path.with_file_name(name)
}

fn is_retired(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == RETIRED)
}
