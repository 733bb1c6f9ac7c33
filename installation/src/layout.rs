//! [`Layout`]: the paths of files as this process sees them.
//!
//! In the container the node's directories are mounted below `/host`, but `/var/lib/calico` and
//! `/var/run/calico` at their own paths. On a node all paths are those of the node. Every path is
//! relative to a root, which is `/` unless `--root` gives another.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The default configuration directory of container runtimes on the node (INST-151).
pub const NET_DIR: &str = "/etc/cni/net.d";
/// The default plugin directory of container runtimes on the node (INST-151).
pub const BIN_DIR: &str = "/opt/cni/bin";
/// The mount point of a second plugin directory in the container.
const SECONDARY_BIN_DIR: &str = "/host/secondary-bin-dir";

/// The mount point of the configuration directory that an earlier installation used.
const FORMER_NET_DIR: &str = "/host/former-net-dir";
/// The mount point of the plugin directory that an earlier installation used.
const FORMER_BIN_DIR: &str = "/host/former-bin-dir";

/// The name of the directory of deferred DELs in `/var/lib/calico`.
pub const JOURNAL: &str = "cni-journal";

/// The file name of the plugin.
pub const CALICO: &str = "calico";
/// The file name of the IPAM plugin, which is the same program.
pub const CALICO_IPAM: &str = "calico-ipam";

/// The paths of this process's files and of the node's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
    /// True if the node's directories are mounted below `host`.
    is_container: bool,
    /// A path on the node.
    bin_dir: PathBuf,
    /// A path on the node.
    secondary_bin_dir: Option<PathBuf>,
}

/// The role of a directory on the node. Files are recorded by role, because a container may not
/// know the path on the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DirectoryRole {
    /// The plugin directory.
    Bin,
    /// The second plugin directory, which some clusters have (INST-15).
    SecondaryBin,
    /// The configuration directory.
    Net,
    /// `/var/lib/calico`.
    State,
}

impl Layout {
    /// Returns the layout of a node, without a container.
    #[must_use]
    pub fn node() -> Self {
        Layout {
            root: "/".into(),
            is_container: false,
            bin_dir: BIN_DIR.into(),
            secondary_bin_dir: None,
        }
    }

    /// Returns the layout of the container, with the node below `/host`.
    #[must_use]
    pub fn container() -> Self {
        Layout {
            is_container: true,
            ..Layout::node()
        }
    }

    /// Returns the layout below `root`: a container's if the directory `host` exists there, else a
    /// node's.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Layout {
            root: root.into(),
            is_container: root.join("host").is_dir(),
            ..Layout::node()
        }
    }

    /// Returns the layout with `on_node` as the plugin directory. In a container the mount point
    /// stays the same.
    #[must_use]
    pub fn with_bin_dir(self, on_node: impl Into<PathBuf>) -> Self {
        Layout {
            bin_dir: on_node.into(),
            ..self
        }
    }

    /// Returns the layout with `on_node` as the second plugin directory. In a container this has no
    /// effect.
    #[must_use]
    pub fn with_secondary_bin_dir(self, on_node: impl Into<PathBuf>) -> Self {
        Layout {
            secondary_bin_dir: Some(on_node.into()),
            ..self
        }
    }

    /// Returns the path of this process for an absolute path that is meant relative to the root.
    #[must_use]
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root
            .join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// Returns the configuration directory. `on_node` is its path on the node, `CNI_NET_DIR`. In
    /// the container the mount point is fixed (INST-8).
    #[must_use]
    pub fn net_dir(&self, on_node: impl AsRef<Path>) -> PathBuf {
        if self.is_container {
            self.path("/host/etc/cni/net.d")
        } else {
            self.path(on_node)
        }
    }

    /// Returns the paths of [`Self::bin_dirs`].
    pub fn bin_paths(&self) -> impl Iterator<Item = PathBuf> {
        self.bin_dirs().into_iter().map(|(_, directory)| directory)
    }

    /// Returns the plugin directories, in the order in which the installer searches them for a
    /// program.
    #[must_use]
    pub fn bin_dirs(&self) -> Vec<(DirectoryRole, PathBuf)> {
        if self.is_container {
            let secondary = (DirectoryRole::SecondaryBin, self.path(SECONDARY_BIN_DIR));
            vec![
                (DirectoryRole::Bin, self.path("/host/opt/cni/bin")),
                secondary,
            ]
        } else {
            let secondary = self
                .secondary_bin_dir
                .iter()
                .map(|dir| (DirectoryRole::SecondaryBin, self.path(dir)));
            [(DirectoryRole::Bin, self.path(&self.bin_dir))]
                .into_iter()
                .chain(secondary)
                .collect()
        }
    }

    /// Returns this process's path for a directory of an earlier installation, whose path on the
    /// node is `on_node`. Returns `None` in a container that does not mount the directory.
    #[must_use]
    pub fn former_dir(&self, place: DirectoryRole, on_node: &str) -> Option<PathBuf> {
        if !self.is_container {
            return Some(self.path(on_node));
        }
        let mount_point = match place {
            DirectoryRole::Net => FORMER_NET_DIR,
            DirectoryRole::Bin => FORMER_BIN_DIR,
            DirectoryRole::SecondaryBin | DirectoryRole::State => return None,
        };
        Some(self.path(mount_point)).filter(|directory| directory.is_dir())
    }

    /// Returns the directory of the plugins that this container brings; `None` outside of a
    /// container.
    #[must_use]
    pub fn own_plugins(&self) -> Option<PathBuf> {
        self.is_container.then(|| self.path(BIN_DIR))
    }

    /// Returns `/var/lib/calico`, which has the same path in the container.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.path("/var/lib/calico")
    }

    /// Returns `/var/run/calico`, which has the same path in the container. Its files do not
    /// survive a reboot.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.path("/var/run/calico")
    }

    /// Returns the directory of the journal of deferred DELs.
    #[must_use]
    pub fn journal_dir(&self) -> PathBuf {
        self.state_dir().join(JOURNAL)
    }

    /// Returns the path of the lock that a process holds while it replays deferred DELs.
    #[must_use]
    pub fn journal_lock(&self) -> PathBuf {
        self.journal_dir().join("lock")
    }

    /// Returns true if the node's directories are mounted below `host`.
    #[must_use]
    pub fn is_container(&self) -> bool {
        self.is_container
    }

    /// Returns true if this process runs directly on the node: the root is `/`, without node
    /// directories below `host`.
    #[must_use]
    pub fn is_this_machine(&self) -> bool {
        !self.is_container && self.root == Path::new("/")
    }

    /// Returns false if files in [`state_dir`](Layout::state_dir) end with this container, because
    /// the directory is not mounted.
    #[must_use]
    pub fn has_persistent_state(&self) -> bool {
        self.is_on_node(&self.state_dir())
    }

    /// Returns false if a path of this process is in the container's own file system, where the
    /// node's processes do not see it. The file may be missing.
    #[must_use]
    pub fn is_on_node(&self, path: &Path) -> bool {
        if !self.is_container || self.root != Path::new("/") {
            return true;
        }
        // The kernel lists mount points without symbolic links, and /var/run may be a link to /run.
        let Some(existing) = path
            .ancestors()
            .find_map(|path| fs::canonicalize(path).ok())
        else {
            return false;
        };
        fs::read_to_string("/proc/self/mountinfo")
            .ok()
            .is_none_or(|mounts| is_mounted(&mounts, &existing))
    }

    /// Returns the mount point of the pod's service account.
    #[must_use]
    pub fn service_account_dir(&self) -> PathBuf {
        self.path("/var/run/secrets/kubernetes.io/serviceaccount")
    }

    /// Translates a path on the node to a path of this process. `net_dir_on_node` is the
    /// configuration directory.
    #[must_use]
    pub fn translate(&self, on_node: &Path, net_dir_on_node: &Path) -> PathBuf {
        match on_node.strip_prefix(net_dir_on_node) {
            Ok(inside) => self.net_dir(net_dir_on_node).join(inside),
            Err(_) => self.path(on_node),
        }
    }

    /// Returns the directory of a role.
    #[must_use]
    pub fn dir(&self, place: DirectoryRole, net_dir_on_node: &Path) -> PathBuf {
        match place {
            DirectoryRole::Net => self.net_dir(net_dir_on_node),
            DirectoryRole::State => self.state_dir(),
            DirectoryRole::Bin | DirectoryRole::SecondaryBin => {
                let known = self
                    .bin_dirs()
                    .into_iter()
                    .find(|(known, _)| *known == place);
                known.map_or_else(|| self.path(SECONDARY_BIN_DIR), |(_, dir)| dir)
            }
        }
    }
}

/// Returns true if `/proc/self/mountinfo` lists a mount at the directory or above it, other than
/// the root.
fn is_mounted(mounts: &str, directory: &Path) -> bool {
    let points = mounts
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(4));
    points
        .filter(|point| *point != "/")
        .any(|point| directory.starts_with(point))
}

#[cfg(test)]
mod tests {
    use allocation::journal::DEFAULT_DIRECTORY;

    use super::*;

    #[test]
    fn container_state_is_persistent_only_below_a_mount() {
        let root = "21 1 0:30 / / rw,relatime - overlay overlay rw\n";
        let is_mounted = |points: &[&str]| {
            let line = |point: &&str| {
                format!("22 21 8:1 /var/lib {point} rw,relatime - ext4 /dev/sda1 rw\n")
            };
            let mounts = format!("{root}{}", points.iter().map(line).collect::<String>());
            super::is_mounted(&mounts, Path::new("/var/lib/calico"))
        };
        assert!(!is_mounted(&[]));
        assert!(!is_mounted(&[
            "/host/opt/cni/bin",
            "/var/lib/calico-other",
            "/var/lib/calico/inside"
        ]));
        assert!(is_mounted(&["/proc", "/var/lib/calico"]) && is_mounted(&["/var/lib"]));
    }

    #[test]
    fn state_is_persistent_on_a_node_and_below_another_root() {
        assert!(Layout::node().has_persistent_state());
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("host")).unwrap();
        let layout = Layout::below(root.path());
        assert!(layout.is_container() && layout.has_persistent_state());
    }

    #[test]
    fn path_outside_of_the_mounts_of_a_container_is_not_on_the_node() {
        let path = Path::new("/no-such-directory/ipam.lock");
        assert!(!Layout::container().is_on_node(path) && Layout::node().is_on_node(path));
        assert!(!Layout::container().is_on_node(Path::new("relative.lock")));
        // The kernel's file systems are mounted in each container, here behind a symbolic link.
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(Layout::container().is_on_node(&link.join("missing")));
    }

    #[test]
    fn container_layout_maps_node_paths_below_host() {
        let layout = Layout::container();
        assert_eq!(
            layout.net_dir("/var/run/multus/cni/net.d"),
            Path::new("/host/etc/cni/net.d")
        );
        let bin_dirs: Vec<_> = layout.bin_paths().collect();
        assert_eq!(
            bin_dirs,
            [
                Path::new("/host/opt/cni/bin"),
                Path::new("/host/secondary-bin-dir")
            ]
        );
        assert_eq!(layout.own_plugins().unwrap(), Path::new("/opt/cni/bin"));
        assert_eq!(layout.state_dir(), Path::new("/var/lib/calico"));
        let kubeconfig = Path::new("/etc/cni/net.d/calico-kubeconfig");
        assert_eq!(
            layout.translate(kubeconfig, Path::new(NET_DIR)),
            Path::new("/host/etc/cni/net.d/calico-kubeconfig")
        );
    }

    #[test]
    fn node_and_container_layouts_have_different_paths() {
        let layout = Layout::node();
        assert_eq!(
            layout.net_dir("/var/run/multus/cni/net.d"),
            Path::new("/var/run/multus/cni/net.d")
        );
        assert_eq!(
            layout.dir(DirectoryRole::Bin, Path::new(NET_DIR)),
            Path::new("/opt/cni/bin")
        );
        assert_eq!(layout.own_plugins(), None);

        let elsewhere = layout.with_bin_dir("/home/kubernetes/bin");
        assert_eq!(
            elsewhere.bin_dirs(),
            [(DirectoryRole::Bin, "/home/kubernetes/bin".into())]
        );
        assert_eq!(
            Layout::container().with_bin_dir("/x").bin_dirs(),
            Layout::container().bin_dirs()
        );
        let second = |layout: &Layout| layout.dir(DirectoryRole::SecondaryBin, Path::new(NET_DIR));
        assert_ne!(
            second(&elsewhere),
            elsewhere.dir(DirectoryRole::Bin, Path::new(NET_DIR)),
            "what is in one is not in the other"
        );
        assert_eq!(
            second(&elsewhere.with_secondary_bin_dir("/second")),
            Path::new("/second")
        );

        let root = tempfile::tempdir().unwrap();
        let image = Layout::below(root.path());
        assert_eq!(image.net_dir(NET_DIR), root.path().join("etc/cni/net.d"));
        std::fs::create_dir(root.path().join("host")).unwrap();
        let container = Layout::below(root.path());
        assert_eq!(
            container.net_dir(NET_DIR),
            root.path().join("host/etc/cni/net.d")
        );
        assert_eq!(
            container.service_account_dir(),
            root.path()
                .join("var/run/secrets/kubernetes.io/serviceaccount")
        );
    }

    #[test]
    fn journal_directory_matches_the_plugins_default() {
        assert_eq!(
            Layout::node().journal_dir(),
            PathBuf::from(DEFAULT_DIRECTORY)
        );
    }
}
