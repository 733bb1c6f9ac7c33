//! The files that an earlier installation wrote into other directories of the node, before
//! `CNI_NET_DIR` or `CNI_BIN_DIR` changed.

use std::cmp::Reverse;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::conflist;
use crate::found::{FoundState, inspect_file};
use crate::layout::{DirectoryRole, Layout};
use crate::settings::Settings;
use crate::state::{FormerDirectory, InstalledFile, State};
use crate::tls_assets;
use os::atomic_file::regular_file;

/// Removes the recorded files from the former directories that the settings name and, in a
/// container, that are mounted, except files that other programs changed, and those of a directory
/// that is still in use under another path. Then removes the records of these directories from
/// `state`, except those of files that cannot be read or removed. The files and records of the
/// other former directories stay, and a warning names them.
pub fn remove_files(state: &mut State, settings: &Settings, layout: &Layout) {
    state.former.sort_by_key(|former| Reverse(former.place));
    for former in &mut state.former {
        let Some(directory) = named_directory(former, settings, layout) else {
            let names: Vec<&str> = former.files.keys().map(String::as_str).collect();
            tracing::warn!(
                directory = former.path,
                files = names.join(", "),
                hint = "mount the directory; name it in CNI_FORMER_NET_DIR or CNI_FORMER_BIN_DIR",
                "keeping the files of an earlier installation in another directory"
            );
            continue;
        };
        if is_in_use(&directory, settings, layout) {
            former.files.clear();
            continue;
        }
        former
            .files
            .retain(|name, installed| !remove(&directory.join(name), installed));
        if former.place == DirectoryRole::Net && former.files.is_empty() {
            remove_tls_files(&directory.join(tls_assets::DIRECTORY));
        }
    }
    state.former.retain(|former| !former.files.is_empty());
}

/// Returns the paths on the node of the recorded files that remain unchanged in former directories.
/// A container may not see these directories, so there the paths of all recorded files are
/// returned.
pub fn remaining(state: &State, layout: &Layout) -> Vec<PathBuf> {
    let is_there = |path: &Path, installed: &InstalledFile| {
        let found = || inspect_file(&layout.path(path), installed);
        layout.is_container() || !matches!(found(), FoundState::Missing | FoundState::Changed(_))
    };
    let present = [&state.net_dir, &state.bin_dir].map(|path| layout.path(path));
    let mut paths = Vec::new();
    let is_former = |former: &&FormerDirectory| {
        let directory = layout.path(&former.path);
        layout.is_container()
            || !present
                .iter()
                .any(|present| is_same_directory(present, &directory))
    };
    for former in state.former.iter().filter(is_former) {
        for (name, installed) in &former.files {
            let path = Path::new(&former.path).join(name);
            if is_there(&path, installed) {
                paths.push(path);
            }
        }
    }
    paths
}

/// Returns this process's path for a former directory, if the settings name it and it is mounted.
fn named_directory(
    former: &FormerDirectory,
    settings: &Settings,
    layout: &Layout,
) -> Option<PathBuf> {
    let named = match former.place {
        DirectoryRole::Net => settings.former_net_dir.as_deref(),
        DirectoryRole::Bin => settings.former_bin_dir.as_deref(),
        DirectoryRole::SecondaryBin | DirectoryRole::State => None,
    };
    named
        .filter(|named| *named == former.path)
        .and_then(|named| layout.former_dir(former.place, named))
}

/// Returns true if `directory` is also a present directory, for example by a symbolic link on the
/// node. Its files are then those that this installation has just written.
fn is_in_use(directory: &Path, settings: &Settings, layout: &Layout) -> bool {
    let mut present: Vec<PathBuf> = layout.bin_paths().collect();
    present.push(layout.net_dir(&settings.net_dir));
    present
        .iter()
        .any(|present| is_same_directory(present, directory))
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        fs::metadata(path)
            .map(|metadata| (metadata.dev(), metadata.ino()))
            .ok()
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Removes a file unless another program changed it. Returns true if its record is no longer
/// needed, and false if the file cannot be read or removed, so that the next installation tries
/// again.
fn remove(path: &Path, installed: &InstalledFile) -> bool {
    let place = path.display();
    match inspect_file(path, installed) {
        FoundState::Missing => return true,
        FoundState::Changed(reason) => {
            tracing::info!("keeping {place} of an earlier installation: {reason}");
            return true;
        }
        FoundState::Unreadable(reason) => {
            tracing::warn!(
                path = %place, %reason,
                "cannot read a file of an earlier installation; keeping the file"
            );
            return false;
        }
        FoundState::Same | FoundState::Renewed => {}
    }
    let text = regular_file::contents(path).unwrap_or_default();
    let foreign = if installed.renderings.is_empty() {
        0
    } else {
        conflist::foreign_entries(&text, installed).len()
    };
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(
            path = %place, %error,
            "cannot remove a file of an earlier installation"
        );
        return false;
    }
    tracing::info!("removed {place} of an earlier installation");
    if foreign > 0 {
        tracing::warn!(
            path = %place, plugins = foreign,
            hint = "these programs have to add them to the new configuration",
            "the removed configuration had plugins of other programs"
        );
    }
    true
}

fn remove_tls_files(directory: &Path) {
    for name in tls_assets::FILES {
        let _ = fs::remove_file(directory.join(name));
    }
    let _ = fs::remove_dir(directory);
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;

    use super::*;
    use crate::digest;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Settings::from_environment(Variables::new(&lookup), "n").unwrap()
    }

    /// Returns the records of `calico` and `portmap` with this content, and of the kubeconfig, in
    /// former directories.
    fn records(text: &str) -> State {
        let mut state = State {
            net_dir: "/etc/cni/net.d".into(),
            bin_dir: "/opt/cni/bin".into(),
            ..State::default()
        };
        for name in ["calico", "portmap"] {
            state.record(
                DirectoryRole::Bin,
                name,
                Some(digest::of_bytes(text.as_bytes())),
                false,
            );
        }
        state.record(DirectoryRole::Net, "calico-kubeconfig", None, false);
        state.use_directory(DirectoryRole::Net, "/net");
        state.use_directory(DirectoryRole::Bin, "/bin");
        state
    }

    #[test]
    fn files_of_named_directories_are_removed_except_changed_ones() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path()).with_bin_dir("/bin");
        for (directory, name, text) in [
            ("opt/cni/bin", "calico", "ours"),
            ("opt/cni/bin", "portmap", "another's"),
            ("opt/cni/bin", "bridge", "ours"),
            ("etc/cni/net.d", "calico-kubeconfig", "renewed"),
        ] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
            fs::write(root.path().join(directory).join(name), text).unwrap();
        }
        let mut state = records("ours");
        let paths = ["/opt/cni/bin/calico", "/etc/cni/net.d/calico-kubeconfig"].map(PathBuf::from);
        let mut found = remaining(&state, &layout);
        found.sort_by_key(|path| Reverse(path.clone()));
        assert_eq!(found, paths);

        remove_files(&mut state, &settings(&[]), &layout);
        assert_eq!(
            (state.former.len(), remaining(&state, &layout).len()),
            (2, 2),
            "no directory is named"
        );
        remove_files(
            &mut state,
            &settings(&[("CNI_FORMER_BIN_DIR", "/elsewhere")]),
            &layout,
        );
        assert_eq!(
            remaining(&state, &layout).len(),
            2,
            "another directory is named"
        );
        let both = [
            ("CNI_NET_DIR", "/net"),
            ("CNI_FORMER_BIN_DIR", "/opt/cni/bin"),
            ("CNI_FORMER_NET_DIR", "/etc/cni/net.d"),
        ];
        remove_files(&mut state, &settings(&both), &layout);
        assert_eq!(state.former, Vec::new());
        assert!(paths.iter().all(|path| !layout.path(path).exists()));
        for name in ["portmap", "bridge"] {
            assert!(
                layout.path("/opt/cni/bin").join(name).exists(),
                "{name} is not ours"
            );
        }
    }

    #[test]
    fn files_of_a_directory_that_is_in_use_under_another_path_stay() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path()).with_bin_dir("/bin");
        let settings = settings(&[
            ("CNI_BIN_DIR", "/bin"),
            ("CNI_FORMER_BIN_DIR", "/opt/cni/bin"),
        ]);
        let present = root.path().join("bin");
        fs::create_dir_all(&present).unwrap();
        fs::create_dir_all(root.path().join("opt/cni")).unwrap();
        fs::write(present.join("calico"), "ours").unwrap();
        std::os::unix::fs::symlink(&present, root.path().join("opt/cni/bin")).unwrap();
        let mut state = records("ours");
        remove_files(&mut state, &settings, &layout);
        assert!(present.join("calico").exists());
        assert!(
            state
                .former
                .iter()
                .all(|former| former.place != DirectoryRole::Bin),
            "{:?}",
            state.former
        );
    }

    #[test]
    fn container_names_recorded_files_and_removes_only_mounted_ones() {
        let root = tempfile::tempdir().unwrap();
        let mounted = root.path().join("host/former-bin-dir");
        fs::create_dir_all(root.path().join("host")).unwrap();
        let layout = Layout::below(root.path());
        let mut state = records("ours");
        let named = settings(&[("CNI_FORMER_BIN_DIR", "/opt/cni/bin")]);
        remove_files(&mut state, &named, &layout);
        assert_eq!(remaining(&state, &layout).len(), 3, "it is not mounted");
        fs::create_dir(&mounted).unwrap();
        fs::write(mounted.join("calico"), "ours").unwrap();
        remove_files(&mut state, &named, &layout);
        assert_eq!(
            remaining(&state, &layout),
            [PathBuf::from("/etc/cni/net.d/calico-kubeconfig")]
        );
        assert!(!mounted.join("calico").exists());
    }
}
