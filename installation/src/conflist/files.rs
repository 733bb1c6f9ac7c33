//! The files of the runtime's directory: [`Target`], the file to write, and [`FormerConfig`], an
//! earlier configuration of another name, which the new one replaces.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::included::{CILIUM, has_plugin, selected};
use super::{has_calico, is_installed_in, is_read_by_runtimes};
use crate::layout::DirectoryRole;
use crate::plugin_chain::{Chain, read_chain};
use crate::settings::Settings;
use crate::state::{InstalledFile, State};
use os::atomic_file::{ReadFile, regular_file};

/// The extension that Cilium with `cni.exclusive` adds to the configurations of other networks.
pub const CILIUM_BACKUP: &str = "cilium_bak";

/// The file to write, and the state's record of the present one.
#[derive(Debug, Clone)]
pub struct Target {
    /// The directory of the file.
    pub directory: PathBuf,
    /// The file name.
    pub name: String,
    /// The mode that the file has at least.
    pub mode: u32,
    /// The state's record of the file, or of the `.conf` file of which it is the list. Empty
    /// without such a record.
    pub recorded: InstalledFile,
    /// The path of the directory on the node.
    pub(super) net_dir: String,
}

impl Target {
    /// Returns the file that the settings name. An exception is a single plugin in a `.conf` file
    /// that istio-cni or linkerd-cni converted to a list: the list stays in a `.conflist` file,
    /// because runtimes read no list from `.conf`. These programs remove the `.conf` file, so a
    /// list that no record describes does not count beside it.
    pub fn new(directory: &Path, settings: &Settings, state: &State) -> Target {
        let target = |name: String| Target {
            directory: directory.to_owned(),
            mode: settings.conf_mode,
            recorded: state
                .get(DirectoryRole::Net, &name)
                .cloned()
                .unwrap_or_default(),
            name,
            net_dir: settings.net_dir.clone(),
        };
        let named = target(settings.conf_name.clone());
        if !named.name.ends_with(".conf") {
            return named;
        }
        let mut list = target(format!("{}list", named.name));
        if list.recorded == InstalledFile::default() {
            list.recorded = named.recorded.clone();
        }
        if list.recorded == InstalledFile::default() && named.path().exists() {
            return named;
        }
        let is_list = regular_file::contents(&list.path())
            .is_ok_and(|text| is_extended(&text, &list.recorded));
        if is_list { list } else { named }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Returns the path of our configuration: that of the file, or of the file that Cilium renamed.
    pub fn current_path(&self) -> PathBuf {
        if self.renamed_by_cilium().is_some() {
            self.backup_path()
        } else {
            self.path()
        }
    }

    fn backup_path(&self) -> PathBuf {
        self.path().with_added_extension(CILIUM_BACKUP)
    }

    /// Returns our file under the name that Cilium gave it. Returns `None` if a file has our name,
    /// if there is no readable renamed file, or if runtimes do not use a configuration of Cilium's.
    /// Cilium with `cni.exclusive` renames each configuration of another program at once, so it
    /// would also rename a new file of ours.
    pub(super) fn renamed_by_cilium(&self) -> Option<ReadFile> {
        if self.path().symlink_metadata().is_ok() {
            return None;
        }
        let (_, text) = selected(&self.directory)?;
        let renamed = has_plugin(&text, |kind| kind == CILIUM)
            .then(|| ReadFile::read(&self.backup_path()))?;
        renamed
            .ok()
            .flatten()
            .filter(|renamed| read_chain(&renamed.contents).is_some())
    }

    /// Returns true if no other program seems to be writing the file at this moment. `present` is
    /// the content of the file, `None` if it is missing.
    pub(super) fn is_complete(&self, present: Option<&[u8]>) -> bool {
        match present {
            Some(text) => read_chain(text).is_some(),
            None => self.recorded.digest.is_none() || self.renamed_by_cilium().is_some(),
        }
    }
}

/// Returns true if the text is a list with Calico's plugin and entries that other programs added.
fn is_extended(text: &[u8], recorded: &InstalledFile) -> bool {
    let Some(present) = read_chain(text) else {
        return false;
    };
    has_calico(text)
        && present.is_list
        && !present
            .foreign(&Chain::default(), &recorded.renderings)
            .is_empty()
}

/// A configuration to remove once the new one is in place.
#[derive(Debug, Clone)]
pub struct FormerConfig {
    /// The file name, as recorded in the state.
    pub name: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The state's record of the file.
    pub recorded: InstalledFile,
}

impl FormerConfig {
    /// Returns the configurations of other names to remove: the file that `CNI_OLD_CONF_NAME` names
    /// if it has Calico's plugin (INST-31), and files that the state records, unless the
    /// installer's entries in them were changed. Logs a warning about each of these files that is
    /// kept. Removes the records of missing files.
    pub fn find(target: &Target, settings: &Settings, state: &mut State) -> Vec<FormerConfig> {
        let former = |name: &String, state: &State| FormerConfig {
            name: name.clone(),
            path: target.directory.join(name),
            recorded: state
                .get(DirectoryRole::Net, name)
                .cloned()
                .unwrap_or_default(),
        };
        let mut all = Vec::new();
        let old = &settings.old_conf_name;
        if !is_read_by_runtimes(old) && target.directory.join(old).is_file() {
            // Cilium renames the configurations of other networks to such names (`.cilium_bak`).
            tracing::warn!(
                "keeping {old}, which CNI_OLD_CONF_NAME names: runtimes read no file of this name"
            );
        } else if !old.is_empty() && *old != target.name {
            let former = former(old, state);
            let path = former.path.display();
            match regular_file::contents(&former.path) {
                Ok(text) if has_calico(&text) => all.push(former),
                Ok(_) => tracing::warn!(
                    "keeping {path}, which CNI_OLD_CONF_NAME names: the file is not Calico's"
                ),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => warn_unreadable(&former.path, &error),
            }
        }
        for name in other_recorded_names(state, &target.name) {
            let former = former(&name, state);
            let path = former.path.display();
            match regular_file::contents(&former.path) {
                _ if all.iter().any(|listed| listed.name == name) => {}
                Ok(text) if is_installed_in(&text, &former.recorded) => all.push(former),
                Ok(_) => {
                    tracing::warn!(
                        "keeping {path}, which an earlier installation wrote: the file was changed since"
                    )
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    state.remove_record(DirectoryRole::Net, &name)
                }
                Err(error) => warn_unreadable(&former.path, &error),
            }
        }
        all
    }

    /// Returns the present content of the file, or `None` if it cannot be read.
    pub fn text(&self) -> Option<Vec<u8>> {
        regular_file::contents(&self.path).ok()
    }
}

fn warn_unreadable(path: &Path, error: &io::Error) {
    tracing::warn!(
        path = %path.display(), %error, "cannot read an old configuration; keeping the file",
    );
}

/// Returns the names of the recorded configurations, except `name`.
fn other_recorded_names(state: &State, name: &str) -> Vec<String> {
    let recorded = state
        .files
        .get(&DirectoryRole::Net)
        .into_iter()
        .flat_map(|files| files.keys());
    recorded
        .filter(|recorded| *recorded != name && is_read_by_runtimes(recorded))
        .cloned()
        .collect()
}
