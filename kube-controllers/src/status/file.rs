use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use os::atomic_file;
use serde::{Deserialize, Serialize};

/// The variable with the path of the status file. The commands that run in the container see it
/// too.
const STATUS_FILE: &str = "STATUS_FILE";

/// The mode of the status file, which the probes of another user may read.
const MODE: u32 = 0o644;

/// Returns the path of the status file unless an option names one: that of `STATUS_FILE`, or else
/// upstream's.
pub fn default_file() -> PathBuf {
    named_file(std::env::var_os(STATUS_FILE))
}

pub(super) fn named_file(variable: Option<OsString>) -> PathBuf {
    variable
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| "/status/status.json".into())
        .into()
}

/// Content of the status file, in upstream's format (KC-142).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusFile {
    /// The required components, by name.
    #[serde(rename = "Readiness", default)]
    pub readiness: BTreeMap<String, Condition>,
    /// The heartbeat. Not part of upstream's format, and present only if liveness is separate from
    /// readiness.
    #[serde(rename = "Liveness", default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,
}

/// The readiness of one component.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// True if the component is ready.
    #[serde(rename = "Ready", default)]
    pub ready: bool,
    /// The reason why the component is not ready, or a note on a ready component.
    #[serde(rename = "Reason", default)]
    pub reason: String,
}

/// A heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Liveness {
    /// Time of the heartbeat, in seconds since boot. A correction of the wall clock does not affect
    /// it.
    #[serde(rename = "Heartbeat")]
    pub heartbeat: u64,
}

/// A failed read or write of the file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} status file {path}: {source}")]
pub struct FileError {
    /// The action that failed: `read`, `parse` or `write`.
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl StatusFile {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let failed = |action, source| FileError {
            action,
            path: path.into(),
            source,
        };
        let bytes = fs::read(path).map_err(|source| failed("read", source))?;
        serde_json::from_slice(&bytes).map_err(|source| failed("parse", source.into()))
    }

    /// Replaces the file, and creates the directories above it. A reader sees either the old or the
    /// new content, unless the file can only be overwritten in place.
    pub(super) fn write(&self, path: &Path) -> Result<(), FileError> {
        replace(path, self).map_err(|source| FileError {
            action: "write",
            path: path.into(),
            source,
        })
    }

    /// Returns true if at least one component is required and all required components are ready.
    pub fn is_ready(&self) -> bool {
        !self.readiness.is_empty() && self.readiness.values().all(|condition| condition.ready)
    }

    /// Returns the reasons why components are not ready.
    pub fn reasons(&self) -> String {
        let unready = self.readiness.values().filter(|condition| !condition.ready);
        unready
            .map(|condition| condition.reason.as_str())
            .collect::<Vec<_>>()
            .join("; ")
    }
}

fn replace(path: &Path, file: &StatusFile) -> io::Result<()> {
    let bytes = serde_json::to_vec(file)?;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let replaced = atomic_file::replace_unsynced(path, &bytes, MODE).map_err(|error| error.source);
    match replaced.as_ref().map_err(io::Error::kind) {
        // For example, the file itself is a mount point, which cannot be replaced, or its directory
        // is read-only. So the file is overwritten in place.
        Err(
            ErrorKind::ResourceBusy | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem,
        ) => {
            fs::write(path, &bytes)?;
            fs::set_permissions(path, Permissions::from_mode(MODE))
        }
        _ => replaced,
    }
}
