//! [`State`]: the records of installed files. They show the next run which files are ours, and
//! `calico uninstall` which files to remove. Upstream keeps no records (INST-40).
//!
//! These files are recorded before they are written, so an interrupted run may leave a record
//! without its file. Therefore a recorded digest is compared before the file is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use libcalico::failure::Failure;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::layout::{DirectoryRole, Layout};
use crate::plugin_chain::Rendering;
use os::atomic_file::{self, AtomicFileError, regular_file};

/// The file name in `/var/lib/calico`.
pub const NAME: &str = "cni-install-state.json";

const MODE: u32 = 0o644;

/// Maximum size of the file in bytes, far above that of any node.
const MAX_SIZE: usize = 16 << 20;

/// The records of the files installed on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// The version of the installer that wrote the records.
    pub version: String,
    /// The configuration directory on the node.
    pub net_dir: String,
    /// The plugin directory on the node; empty in records of older versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bin_dir: String,
    /// The files by directory and name.
    pub files: BTreeMap<DirectoryRole, BTreeMap<String, InstalledFile>>,
    /// The files in other directories of the node, which earlier installations used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerDirectory>,
    /// The addresses behind interfaces that an unfinished uninstallation deleted or was about to
    /// delete.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub torn_down: BTreeSet<IpAddr>,
    /// The records that this version cannot read, which stay in the file.
    #[serde(skip)]
    pub later: LaterRecords,
}

/// The records of directories whose role only a later version knows, as that version wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaterRecords {
    files: Map<String, Value>,
    former: Vec<Value>,
}

/// The records of the files that an earlier installation wrote into another directory of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerDirectory {
    /// The role that the directory had.
    pub place: DirectoryRole,
    /// The path on the node.
    pub path: String,
    /// The files by name.
    pub files: BTreeMap<String, InstalledFile>,
}

/// The record of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstalledFile {
    /// SHA-256 in hexadecimal; `None` for a file whose content changes, such as the kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// SHA-256 of our earlier file, while this one is replacing it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub former: Option<String>,
    /// True if the file replaced one that was not ours.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// SHA-256 of the filled template without the token. Set if the file contains the pod's token,
    /// which changes `digest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The digests of the entries of a network configuration, ours and foreign. There may be two
    /// sets while a new configuration replaces ours.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub renderings: Vec<Rendering>,
}

impl InstalledFile {
    /// Returns true if the digest is that of the installed file, or of our file before it.
    #[must_use]
    pub fn has_digest(&self, digest: &str) -> bool {
        [&self.digest, &self.former]
            .into_iter()
            .flatten()
            .any(|recorded| recorded == digest)
    }
}

impl State {
    /// Loads the records; they are empty if the file is missing.
    ///
    /// # Errors
    /// Returns an error if the file exists and cannot be read or parsed.
    pub fn load(layout: &Layout) -> Result<State, Failure> {
        let path = path(layout);
        match regular_file::contents_up_to(&path, MAX_SIZE) {
            Ok(text) => Self::parse(&text).map_err(|error| damaged(&path, &error)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(Self::default())
            }
            Err(source) => Err(AtomicFileError {
                action: "read",
                path,
                source,
            }
            .into()),
        }
    }

    fn parse(text: &[u8]) -> serde_json::Result<State> {
        let mut records: Value = serde_json::from_slice(text)?;
        let later = LaterRecords::take(&mut records);
        Ok(State {
            later,
            ..serde_json::from_value(records)?
        })
    }

    /// Returns true if files are recorded, also those that only a later version can remove.
    #[must_use]
    pub fn has_files(&self) -> bool {
        !self.files.is_empty() || !self.later.is_empty()
    }

    /// Returns the content of the file without its line break. Serialization of this type cannot
    /// fail.
    fn text(&self) -> String {
        if self.later.is_empty() {
            return serde_json::to_string_pretty(self).unwrap_or_default();
        }
        let mut records = serde_json::to_value(self).unwrap_or_default();
        self.later.put(&mut records);
        serde_json::to_string_pretty(&records).unwrap_or_default()
    }

    /// Saves the records, unless the file is up to date.
    pub fn save(&self, layout: &Layout) -> Result<(), AtomicFileError> {
        let path = path(layout);
        let failed = |source| AtomicFileError {
            action: "create the directory of",
            path: path.clone(),
            source,
        };
        fs::create_dir_all(layout.state_dir()).map_err(failed)?;
        let mut text = self.text();
        text.push('\n');
        atomic_file::replace(&path, text.as_bytes(), MODE).map(drop)
    }

    /// Returns the record of a file.
    #[must_use]
    pub fn get(&self, place: DirectoryRole, name: &str) -> Option<&InstalledFile> {
        self.files.get(&place)?.get(name)
    }

    /// Returns true if the present file, which has this digest, is recorded as ours.
    #[must_use]
    pub fn is_ours(&self, place: DirectoryRole, name: &str, digest: &str) -> bool {
        self.get(place, name)
            .is_some_and(|recorded| recorded.has_digest(digest))
    }

    /// Records a file. Once `replaces` was true for a file, its later records keep this.
    pub fn record(
        &mut self,
        place: DirectoryRole,
        name: &str,
        digest: Option<String>,
        replaces: bool,
    ) {
        let files = self.files.entry(place).or_default();
        let replaced = replaces || files.get(name).is_some_and(|recorded| recorded.replaced);
        files.insert(
            name.to_owned(),
            InstalledFile {
                digest,
                replaced,
                ..InstalledFile::default()
            },
        );
    }

    /// Records a file that will replace the present one, whose digest is `present`. If the present
    /// file is ours, both digests count as ours until [`record`](State::record), because a killed
    /// run may leave either.
    pub fn record_replacement(
        &mut self,
        place: DirectoryRole,
        name: &str,
        digest: String,
        present: Option<&str>,
    ) {
        let other = present.filter(|present| *present != digest);
        let former = other
            .filter(|present| self.is_ours(place, name, present))
            .map(str::to_owned);
        self.record(
            place,
            name,
            Some(digest),
            other.is_some() && former.is_none(),
        );
        if let Some(recorded) = self.get_mut(place, name) {
            recorded.former = former;
        }
    }

    /// Returns the record of a file, to add `origin` or `renderings`.
    pub fn get_mut(&mut self, place: DirectoryRole, name: &str) -> Option<&mut InstalledFile> {
        self.files.get_mut(&place)?.get_mut(name)
    }

    /// Records that an installation uses `path`, a path on the node, as its configuration directory
    /// or plugin directory. The files at another recorded path become those of a former directory.
    pub fn use_directory(&mut self, place: DirectoryRole, path: &str) {
        let recorded = match place {
            DirectoryRole::Net => &mut self.net_dir,
            DirectoryRole::Bin => &mut self.bin_dir,
            DirectoryRole::SecondaryBin | DirectoryRole::State => return,
        };
        let before = std::mem::replace(recorded, path.to_owned());
        if before.is_empty() || path.is_empty() || before == path {
            return;
        }
        if let Some(files) = self.files.remove(&place).filter(|files| !files.is_empty()) {
            self.former.push(FormerDirectory {
                place,
                path: before,
                files,
            });
        }
        if let Some(at) = self
            .former
            .iter()
            .position(|former| former.place == place && former.path == path)
        {
            self.files.insert(place, self.former.remove(at).files);
        }
    }

    /// Restores the records of a directory from another state, because the directory was not
    /// changed.
    pub fn restore(&mut self, place: DirectoryRole, before: &State) {
        self.files.remove(&place);
        self.files
            .extend(before.files.get(&place).map(|files| (place, files.clone())));
    }

    /// Removes the record of a file.
    pub fn remove_record(&mut self, place: DirectoryRole, name: &str) {
        if let Some(files) = self.files.get_mut(&place) {
            files.remove(name);
        }
        self.files.retain(|_, files| !files.is_empty());
    }
}

impl LaterRecords {
    /// Removes these records from those of a file.
    fn take(records: &mut Value) -> Self {
        let mut later = LaterRecords::default();
        if let Some(files) = records.get_mut("files").and_then(Value::as_object_mut) {
            let (known, unknown) = std::mem::take(files)
                .into_iter()
                .partition(|(role, _)| is_known_role(role));
            (*files, later.files) = (known, unknown);
        }
        if let Some(former) = records.get_mut("former").and_then(Value::as_array_mut) {
            let is_known =
                |directory: &Value| directory["place"].as_str().is_none_or(is_known_role);
            let (known, unknown) = std::mem::take(former).into_iter().partition(is_known);
            (*former, later.former) = (known, unknown);
        }
        later
    }

    fn put(&self, records: &mut Value) {
        if let Some(files) = records["files"].as_object_mut() {
            files.extend(self.files.clone());
        }
        if !self.former.is_empty() {
            let mut former = records["former"].as_array().cloned().unwrap_or_default();
            former.extend(self.former.iter().cloned());
            records["former"] = former.into();
        }
    }

    /// Returns true if this version can read all records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.former.is_empty()
    }

    /// Returns the roles that this version does not know.
    #[must_use]
    pub fn roles(&self) -> BTreeSet<&str> {
        let former = self
            .former
            .iter()
            .filter_map(|directory| directory["place"].as_str());
        self.files
            .keys()
            .map(String::as_str)
            .chain(former)
            .collect()
    }
}

fn damaged(path: &Path, error: &serde_json::Error) -> Failure {
    Failure::new(format_args!("{} is damaged ({error})", path.display())).way_out(
        "remove the file; files installed earlier are then treated as not installed by Calico",
    )
}

fn is_known_role(role: &str) -> bool {
    DirectoryRole::deserialize(Value::from(role)).is_ok()
}

/// Returns the path of the file with the records.
#[must_use]
pub fn path(layout: &Layout) -> PathBuf {
    layout.state_dir().join(Path::new(NAME))
}

#[cfg(test)]
mod tests;
