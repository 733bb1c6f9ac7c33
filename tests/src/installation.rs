//! The installer's container, as a directory: its own files, and the node's directories mounted
//! below `host`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use serde_json::Value;

use crate::namespaces::Host;
use crate::plugin::{Call, Outcome, Plugins};

/// Mount point of the node's plugin directory.
pub const BIN: &str = "host/opt/cni/bin";

/// Mount point of the node's second plugin directory, if it has one.
pub const SECONDARY_BIN: &str = "host/secondary-bin-dir";

/// Mount point of the node's configuration directory.
pub const NET: &str = "host/etc/cni/net.d";

/// Plugin directory of the image.
pub const OWN_BIN: &str = "opt/cni/bin";

/// Mount point of the pod's service account.
pub const SERVICE_ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";

/// A command that starts a program with the rights of the container in deploy/base.
pub const WITHOUT_CAPABILITIES: &str = "setpriv --bounding-set=-all --inh-caps=-all";

/// The user ID of `kube`, to whom the runtime's directories belong on nodes of Kubespray.
pub const KUBE: u32 = 997;

/// An argument for [`Container::program`]: the program then answers VERSION with old versions.
pub const OLD: &str = r#"'{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}'"#;

/// A container of the installer, and the node on which it installs.
#[derive(Debug)]
pub struct Container {
    root: PathBuf,
    program: PathBuf,
}

impl Container {
    /// Creates a container on an empty node. The image has `portmap` and `loopback`, which are
    /// scripts.
    pub fn new(host: &Host, name: &str) -> Result<Container> {
        let root = host.dir(name);
        let program = Plugins::locate()?.dir().join("calico");
        let container = Container { root, program };
        for directory in [BIN, NET, OWN_BIN] {
            fs::create_dir_all(container.path(directory))?;
        }
        for plugin in ["portmap", "loopback"] {
            container.program(&format!("{OWN_BIN}/{plugin}"), "first")?;
        }
        Ok(container)
    }

    /// Returns a path below the container's root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Writes a script that prints `word`.
    pub fn program(&self, path: &str, word: &str) -> Result<()> {
        self.script(path, &format!("#!/bin/sh\necho {word}\n"))
    }

    /// Writes an executable script. The rename is needed because the old script may be running.
    pub fn script(&self, path: &str, text: &str) -> Result<()> {
        let (path, new) = (self.path(path), self.path("new-program"));
        fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        fs::write(&new, text)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, path)?)
    }

    /// Writes a file.
    pub fn file(&self, path: &str, text: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Returns a container with another version of the same program: the kernel ignores the added
    /// bytes.
    pub fn other_version(&self) -> Result<Container> {
        let program = self.path("calico-other");
        let mut bytes = fs::read(&self.program)?;
        bytes.extend_from_slice(b"another version");
        fs::write(&program, bytes)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Container {
            root: self.root.clone(),
            program,
        })
    }

    /// Returns the path of the program that installs itself.
    pub fn installer(&self) -> &Path {
        &self.program
    }

    /// Prepares a call of `calico install` for a node called `my-node`. The program exits after the
    /// installation (`SLEEP=false`).
    pub fn install(&self) -> Call {
        let plugins = Plugins::locate().expect("it was located before");
        let root = self.root.display().to_string();
        plugins
            .call("calico")
            .program(&self.program)
            .args(["install", "--root", root.as_str()])
            .env("SLEEP", "false")
            .env("KUBERNETES_NODE_NAME", "my-node")
    }

    /// Installs with additional variables.
    pub fn run(&self, variables: &[(&str, &str)]) -> Result<Outcome> {
        variables
            .iter()
            .fold(self.install(), |call, (name, value)| call.env(name, *value))
            .try_run()
    }

    /// Reads a file in the node's configuration directory.
    pub fn conf(&self, name: &str) -> Result<String> {
        let path = self.path(NET).join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Returns the sorted names in a directory, hidden ones included.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Returns the sorted names that the state file lists as installed in a place.
    pub fn noted(&self, place: &str) -> Vec<String> {
        let text = fs::read(self.path("var/lib/calico/cni-install-state.json")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        state["files"][place]
            .as_object()
            .into_iter()
            .flat_map(|files| files.keys().cloned())
            .collect()
    }

    /// Returns metadata of every file of the node. A write to a file usually changes them.
    pub fn fingerprint(&self) -> BTreeMap<PathBuf, (u64, u32, i64, i64, u64)> {
        let mut found = BTreeMap::new();
        for directory in ["host", "var/lib"] {
            walk(&self.path(directory), &mut found);
        }
        found
    }

    /// Mounts a directory on itself with additional flags, for this host alone.
    pub fn remount(&self, directory: &str, flags: MsFlags) -> Result<()> {
        let (path, nothing) = (self.path(directory), None::<&str>);
        fs::create_dir_all(&path)?;
        mount(Some(&path), &path, nothing, MsFlags::MS_BIND, nothing)?;
        Ok(mount(
            nothing,
            &path,
            nothing,
            MsFlags::MS_BIND | MsFlags::MS_REMOUNT | flags,
            nothing,
        )?)
    }
}

fn walk(path: &Path, found: &mut BTreeMap<PathBuf, (u64, u32, i64, i64, u64)>) {
    let Ok(seen) = fs::symlink_metadata(path) else {
        return;
    };
    found.insert(
        path.to_owned(),
        (
            seen.ino(),
            seen.mode(),
            seen.mtime(),
            seen.mtime_nsec(),
            seen.len(),
        ),
    );
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        walk(&entry.path(), found);
    }
}
