//! The file between the process and `check-status`.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Its content (KC-142).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusFile {
    /// What must be ready, by name.
    #[serde(rename = "Readiness", default)]
    pub readiness: BTreeMap<String, Condition>,
    /// Not upstream's: there only when liveness is judged apart from readiness (B-16).
    #[serde(rename = "Liveness", default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,
}

/// Whether one component is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// It is.
    #[serde(rename = "Ready", default)]
    pub ready: bool,
    /// Why not.
    #[serde(rename = "Reason", default)]
    pub reason: String,
}

/// A sign of life.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Liveness {
    /// When it was given, in seconds since the machine was started: no correction of the wall clock makes it look old.
    #[serde(rename = "Heartbeat")]
    pub heartbeat: u64,
}

/// Why the file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Is it there, and may this user read it?
    #[error("cannot read status file {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Not what the process writes.
    #[error("cannot parse status file {path}: {source}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// Is its directory a volume that may be written?
    #[error("cannot write status file {path}: {source}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl StatusFile {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let bytes = fs::read(path).map_err(|source| FileError::Read { path: path.into(), source })?;
        serde_json::from_slice(&bytes).map_err(|source| FileError::Parse { path: path.into(), source })
    }

    /// Replaces the file, and makes the directories above it. A reader sees the old content or the new one.
    pub(super) fn write(&self, path: &Path) -> Result<(), FileError> {
        replace(path, self).map_err(|source| FileError::Write { path: path.into(), source })
    }

    /// Whether at least one component is required and all that are, are ready.
    pub fn is_ready(&self) -> bool {
        !self.readiness.is_empty() && self.readiness.values().all(|condition| condition.ready)
    }

    /// Why it is not ready.
    pub fn reasons(&self) -> String {
        let unready = self.readiness.values().filter(|condition| !condition.ready);
        unready.map(|condition| condition.reason.as_str()).collect::<Vec<_>>().join("; ")
    }
}

fn replace(path: &Path, file: &StatusFile) -> io::Result<()> {
    let bytes = serde_json::to_vec(file)?;
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let renamed = fs::write(&new, &bytes)
        .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&new, path));
    match renamed {
        Ok(()) => Ok(()),
        // The file itself is mounted: it cannot be replaced, nor may there be another beside it.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::ResourceBusy | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            fs::write(path, &bytes)?;
            fs::set_permissions(path, Permissions::from_mode(0o644))
        }
        Err(error) => Err(error),
    }
}
