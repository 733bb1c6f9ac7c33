//! The files of host-local: one per address, with the address as its name and the container ID in
//! the first line.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::assign::UpgradeError;
use os::atomic_file::regular_file;
use os::lock::{HostLock, LONGEST_WAIT};

const LOCK: &str = "lock";
/// Part of the names of files that store the last assigned address.
const LAST: &str = "last";

#[derive(Debug)]
pub(super) struct Leases {
    directory: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ip: IpAddr,
    pub(super) container_id: String,
    pub(super) file: PathBuf,
}

impl Leases {
    /// Returns `None` if the directory is missing.
    pub(super) fn open(directory: &Path) -> Result<Option<Self>, UpgradeError> {
        match fs::metadata(directory) {
            Ok(_) => Ok(Some(Leases {
                directory: directory.to_owned(),
            })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(file_error(directory, cause)),
        }
    }

    /// Takes host-local's lock. As long as this process has the lock, host-local assigns no
    /// addresses.
    pub(super) fn lock(&self) -> Result<HostLock, UpgradeError> {
        Ok(HostLock::acquire_within(
            &self.directory.join(LOCK),
            LONGEST_WAIT,
        )?)
    }

    /// Returns the addresses, ordered by file name. Files of other names are not read.
    pub(super) fn read(&self) -> Result<Vec<Lease>, UpgradeError> {
        let mut leases = Vec::new();
        for file in self.files()? {
            let name = file
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            if name == LOCK || name.contains(LAST) {
                continue;
            }
            let Ok(ip) = name.parse() else {
                let file = file.display();
                tracing::warn!(
                    %file,
                    "ignoring a file of host-local whose name is not an address",
                );
                continue;
            };
            let text = regular_file::utf8(&file).map_err(|cause| file_error(&file, cause))?;
            // host-local ends lines with CR and LF.
            let container_id = text.lines().next().unwrap_or_default().trim().to_owned();
            if container_id.is_empty() {
                // A power loss may have truncated the file, and an error here would stop every
                // migration of this node.
                tracing::warn!(
                    file = %file.display(),
                    "not migrating an address whose file names no container"
                );
                continue;
            }
            leases.push(Lease {
                ip,
                container_id,
                file,
            });
        }
        Ok(leases)
    }

    pub(super) fn remove(&self) -> Result<(), UpgradeError> {
        fs::remove_dir_all(&self.directory).map_err(|cause| file_error(&self.directory, cause))
    }

    pub(super) fn files(&self) -> Result<Vec<PathBuf>, UpgradeError> {
        let read = || {
            fs::read_dir(&self.directory)?
                .map(|entry| Ok(entry?.path()))
                .collect::<io::Result<Vec<_>>>()
        };
        let mut files = read().map_err(|cause| file_error(&self.directory, cause))?;
        files.sort();
        Ok(files)
    }
}

pub(super) fn remove_file(file: &Path) -> Result<(), UpgradeError> {
    match fs::remove_file(file) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(file_error(file, cause)),
        _ => Ok(()),
    }
}

fn file_error(path: &Path, cause: io::Error) -> UpgradeError {
    UpgradeError::File {
        path: path.display().to_string(),
        cause,
    }
}
