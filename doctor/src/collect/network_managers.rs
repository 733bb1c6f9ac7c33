//! Reads the configurations of the running programs that manage interfaces.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use os::atomic_file::regular_file;

use super::proxies::processes_of_node;
use crate::network_managers::{ConfigFile, ManagingProgram, NetworkManager};
use dataplane::host_network::pod_interface_prefix;
use installation::layout::Layout;

/// The programs with the names of their processes, which the kernel cuts after 15 bytes.
const PROCESSES: [(&str, ManagingProgram); 2] = [
    ("NetworkManager", ManagingProgram::NetworkManager),
    ("systemd-network", ManagingProgram::Networkd),
];
/// The directories of networkd. A file replaces those of the same name in the directories before
/// it.
const NETWORKD: [&str; 5] = [
    "/lib/systemd/network",
    "/usr/lib/systemd/network",
    "/usr/local/lib/systemd/network",
    "/run/systemd/network",
    "/etc/systemd/network",
];
/// The directories of NetworkManager, in the order in which it reads them. A file prevents the
/// reading of those of the same name in the directories before it.
const NETWORK_MANAGER: [&str; 3] = [
    "/usr/lib/NetworkManager/conf.d",
    "/run/NetworkManager/conf.d",
    "/etc/NetworkManager/conf.d",
];
/// The main file, which NetworkManager reads before the files in `/etc`.
const NETWORK_MANAGER_CONF: &str = "/etc/NetworkManager/NetworkManager.conf";

/// Returns the running programs whose processes and configuration this process sees. A container
/// sees neither, unless its pod mounts the directories.
pub(super) fn read(layout: &Layout) -> Vec<NetworkManager> {
    let names: Vec<String> = processes_of_node(&layout.path("/proc"))
        .iter()
        .filter_map(|process| regular_file::text(&process.join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .collect();
    let running = PROCESSES
        .into_iter()
        .filter(|(name, _)| names.iter().any(|process| process == name));
    let observed = running.filter_map(|(_, program)| {
        let (directory, files) = match program {
            ManagingProgram::NetworkManager => {
                ("/etc/NetworkManager", network_manager_files(layout))
            }
            ManagingProgram::Networkd => ("/etc/systemd/network", networkd_files(layout)),
        };
        let is_visible = layout.is_on_node(&layout.path(directory));
        is_visible.then(|| NetworkManager {
            program,
            prefix: pod_interface_prefix(),
            files,
        })
    });
    observed.collect()
}

fn network_manager_files(layout: &Layout) -> Vec<ConfigFile> {
    let counting = replacing(layout, &NETWORK_MANAGER, ".conf");
    let mut files = Vec::new();
    for directory in NETWORK_MANAGER {
        if directory.starts_with("/etc/") {
            files.push(config_file(layout, NETWORK_MANAGER_CONF.into()));
        }
        let here = counting
            .values()
            .filter(|path| path.parent() == Some(Path::new(directory)));
        files.extend(here.map(|path| config_file(layout, path.clone())));
    }
    files
}

fn networkd_files(layout: &Layout) -> Vec<ConfigFile> {
    let with_drop_ins = |(name, path): (String, PathBuf)| {
        let mut file = config_file(layout, path);
        let directories = NETWORKD.map(|directory| format!("{directory}/{name}.d"));
        let directories: Vec<&str> = directories.iter().map(String::as_str).collect();
        for drop_in in replacing(layout, &directories, ".conf").into_values() {
            file.text += "\n";
            file.text += &config_file(layout, drop_in).text;
        }
        file
    };
    replacing(layout, &NETWORKD, ".network")
        .into_iter()
        .map(with_drop_ins)
        .collect()
}

/// Returns the files that count, by name.
fn replacing(layout: &Layout, directories: &[&str], extension: &str) -> BTreeMap<String, PathBuf> {
    let mut files = BTreeMap::new();
    for directory in directories {
        for entry in fs::read_dir(layout.path(directory))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(extension) {
                files.insert(name.clone(), Path::new(directory).join(name));
            }
        }
    }
    files
}

/// Reads a file. A missing one counts as empty, and so does a link to `/dev/null`, which hides a
/// file of that name.
fn config_file(layout: &Layout, path: PathBuf) -> ConfigFile {
    ConfigFile {
        text: regular_file::text(&layout.path(&path)).unwrap_or_default(),
        path,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::network_managers::Claim;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn claims(root: &Path) -> Vec<(ManagingProgram, Option<Claim>)> {
        let found = read(&Layout::below(root));
        found
            .into_iter()
            .map(|manager| (manager.program, manager.claim()))
            .collect()
    }

    #[test]
    fn running_network_manager_needs_an_exception() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "proc/7/comm", "NetworkManager-x\n");
        assert_eq!(claims(root), Vec::new());
        write(root, "proc/8/comm", "NetworkManager\n");
        assert_eq!(
            claims(root),
            [(ManagingProgram::NetworkManager, Some(Claim::NoException))]
        );
        let exception = "[keyfile]\nunmanaged-devices=interface-name:cali*\n";
        write(
            root,
            "usr/lib/NetworkManager/conf.d/50-calico.conf",
            exception,
        );
        assert_eq!(claims(root), [(ManagingProgram::NetworkManager, None)]);
        write(
            root,
            "etc/NetworkManager/NetworkManager.conf",
            "[keyfile]\nunmanaged-devices=interface-name:x*\n",
        );
        assert_eq!(
            claims(root),
            [(ManagingProgram::NetworkManager, Some(Claim::NoException))]
        );
        write(root, "etc/NetworkManager/conf.d/50-calico.conf", exception);
        assert_eq!(claims(root), [(ManagingProgram::NetworkManager, None)]);
        write(root, "etc/NetworkManager/conf.d/50-calico.conf", "");
        assert_eq!(
            claims(root),
            [(ManagingProgram::NetworkManager, Some(Claim::NoException))]
        );
    }

    #[test]
    fn running_networkd_needs_an_exception_only_beside_a_file_for_all_interfaces() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "proc/8/comm", "systemd-network\n");
        assert_eq!(claims(root), [(ManagingProgram::Networkd, None)]);
        write(
            root,
            "usr/lib/systemd/network/80-all.network",
            "[Match]\nName=*\n",
        );
        let claim = Claim::File("/usr/lib/systemd/network/80-all.network".into());
        assert_eq!(
            claims(root),
            [(ManagingProgram::Networkd, Some(claim.clone()))]
        );
        write(
            root,
            "run/systemd/network/80-all.network.d/calico.conf",
            "[Match]\nName=\nName=eth*\n",
        );
        assert_eq!(claims(root), [(ManagingProgram::Networkd, None)]);
        fs::remove_dir_all(root.join("run/systemd")).unwrap();
        write(
            root,
            "etc/systemd/network/10-calico.network",
            "[Match]\nName=cali*\n[Link]\nUnmanaged=yes\n",
        );
        assert_eq!(claims(root), [(ManagingProgram::Networkd, None)]);
        fs::remove_file(root.join("etc/systemd/network/10-calico.network")).unwrap();
        assert_eq!(claims(root), [(ManagingProgram::Networkd, Some(claim))]);
        symlink("/dev/null", root.join("etc/systemd/network/80-all.network")).unwrap();
        assert_eq!(claims(root), [(ManagingProgram::Networkd, None)]);
    }
}
