//! The journal of deferred DELs. A DEL that cannot finish its cleanup in the datastore removes the
//! interface and records the remaining cleanup here, in a small file per attachment and datastore.
//!
//! The addresses and the endpoint are released when a later call, or the agent, reaches the
//! datastore. An ADD of the same container replays its own entries first, under the journal's lock.
//! A later replay releases no address that was allocated after the DEL.

mod files;
mod pending_del;
mod second_interfaces;

pub use files::JournalError;
use files::{EXTENSIONS, find_identity, is_damage, is_entry, read, write};
pub use pending_del::{DatastoreIdentity, PendingDel, datastore_name, short_age};
pub use second_interfaces::{InterfaceName, InterfaceRole};

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use os::atomic_file::{self, is_draft};
use os::lock::{HostLock, LONGEST_WAIT, LockError};
use os::node_files::NodeFiles;
use time::OffsetDateTime;

/// The directory of entries. Tests use another one.
pub const DEFAULT_DIRECTORY: &str = "/var/lib/calico/cni-journal";

/// The journal of a node.
#[derive(Debug, Clone)]
pub struct Journal {
    directory: PathBuf,
    files: NodeFiles,
}

/// The journal with its lock taken. Only the process with the lock replays deferred DELs.
#[derive(Debug)]
pub struct LockedJournal<'a> {
    journal: &'a Journal,
    _lock: HostLock,
}

/// An entry of the journal.
#[derive(Debug)]
pub struct Entry {
    /// The file.
    pub path: PathBuf,
    /// Time of the file's last modification. A failed replay sets this time to the present.
    pub modified: SystemTime,
    /// The deferred DEL, or the error from reading it.
    pub pending_del: Result<PendingDel, io::Error>,
}

impl Journal {
    /// Creates the journal in `directory`, which need not exist.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Journal {
            directory: directory.into(),
            files: NodeFiles::of_this_node(),
        }
    }

    /// Creates the journal of the node with these files.
    pub fn of_node(files: &NodeFiles) -> Self {
        Journal {
            directory: files.path(DEFAULT_DIRECTORY),
            files: files.clone(),
        }
    }

    /// Stores a deferred DEL so that it survives a power loss, with the identity of the datastore
    /// if the node knows it. Replaces an entry of the same attachment and datastore.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn record(&self, pending_del: &PendingDel) -> Result<(), JournalError> {
        let mut pending_del = pending_del.clone();
        if pending_del.identity.is_empty() {
            pending_del.identity = find_identity(&self.directory, &pending_del.datastore);
        }
        self.record_without_identity(&pending_del)
    }

    /// Does the same as [`Journal::record`] without the identity, for a datastore that lost its
    /// identity.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn record_without_identity(&self, pending_del: &PendingDel) -> Result<(), JournalError> {
        fs::create_dir_all(&self.directory).map_err(JournalError::at("create", &self.directory))?;
        let mut pending_del = pending_del.clone();
        // A directory that is writable but not readable gets the entry nevertheless, perhaps beside
        // an earlier one.
        let entries = self
            .entries_of(
                &pending_del.network,
                &pending_del.container_id,
                &pending_del.ifname,
            )
            .unwrap_or_default();
        let former = entries
            .into_iter()
            .find(|(_, former)| former.has_same_datastore(&pending_del));
        let target = match former {
            Some((path, former)) => {
                pending_del.noted = if former.noted == 0 {
                    pending_del.noted
                } else {
                    former.noted
                };
                path
            }
            None => self.free_file_for(&pending_del),
        };
        write(&target, &pending_del)
    }

    /// Returns true if the journal contains a deferred DEL of this attachment, for any datastore.
    ///
    /// # Errors
    /// Returns an error if the directory or the attachment's first entry exists and cannot be read.
    /// A damaged entry, and a further entry that cannot be read, are left out.
    pub fn contains(
        &self,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<bool, JournalError> {
        self.entries_of(network, container_id, ifname)
            .map(|pending_dels| !pending_dels.is_empty())
    }

    /// Returns true if the journal has no entry and no draft of an entry. An unreadable directory
    /// does not count as empty.
    pub fn is_empty(&self) -> bool {
        let is_remaining = |path: &Path| is_entry(path) || is_draft(path);
        match fs::read_dir(&self.directory) {
            Ok(mut files) => {
                !files.any(|file| file.map_or(true, |file| is_remaining(&file.path())))
            }
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Returns true if the journal may contain a deferred DEL for the datastore that the
    /// configuration names `name`. Sends no request. While the node does not know the datastore's
    /// identity, any readable entry may be for it.
    pub fn may_contain(&self, name: &str) -> bool {
        let target = DatastoreIdentity {
            name: name.to_owned(),
            identity: find_identity(&self.directory, name),
        };
        let may_contain = |pending_del: &PendingDel| {
            pending_del.belongs_to(&target) || target.identity.is_empty()
        };
        self.entries().map_or(true, |entries| {
            entries
                .iter()
                .any(|entry| entry.pending_del.as_ref().is_ok_and(may_contain))
        })
    }

    /// Returns all entries, the one whose last attempt is the oldest first.
    ///
    /// # Errors
    /// Returns an error if the journal exists and cannot be read.
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let files = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files?,
        };
        let mut entries = Vec::new();
        for file in files {
            let file = file?;
            let path = file.path();
            if !is_entry(&path) {
                continue;
            }
            let pending_del = match read(&path) {
                // Another process removed the entry since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                pending_del => pending_del,
            };
            let modified = file
                .metadata()
                .and_then(|metadata| metadata.modified())
                .unwrap_or(UNIX_EPOCH);
            entries.push(Entry {
                path,
                modified,
                pending_del,
            });
        }
        entries.sort_by(|one, other| (one.modified, &one.path).cmp(&(other.modified, &other.path)));
        Ok(entries)
    }

    /// Removes the stored identities of datastores.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    pub fn remove_identities(&self) -> io::Result<()> {
        files::remove_identities(&self.directory)
    }

    /// Takes the lock. Returns `None` if another process has it.
    ///
    /// # Errors
    /// Returns an error if the lock file cannot be opened or locked.
    pub fn try_lock(&self) -> Result<Option<LockedJournal<'_>>, JournalError> {
        match HostLock::acquire_within(&self.lock_file(), Duration::ZERO) {
            Ok(lock) => Ok(Some(self.locked(lock))),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock. The wait is limited, so that a stuck process does not block the node.
    ///
    /// # Errors
    /// Returns an error if another process keeps the lock for longer, or if the lock file cannot be
    /// opened.
    pub async fn lock(&self) -> Result<LockedJournal<'_>, JournalError> {
        let lock = self.files.lock(&self.lock_file(), LONGEST_WAIT).await?;
        Ok(self.locked(lock))
    }

    fn lock_file(&self) -> PathBuf {
        self.directory.join("lock")
    }

    fn locked(&self, lock: HostLock) -> LockedJournal<'_> {
        LockedJournal {
            journal: self,
            _lock: lock,
        }
    }

    /// Returns the entries of an attachment, for any datastore.
    ///
    /// # Errors
    /// Returns an error if the directory or the attachment's first entry exists and cannot be read.
    /// A damaged entry, and a further entry that cannot be read, are left out.
    pub fn entries_of(
        &self,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<Vec<(PathBuf, PendingDel)>, JournalError> {
        let mut pending_dels = self.entries_of_container(network, container_id, ifname)?;
        pending_dels
            .retain(|(_, pending_del)| pending_del.is_of_attachment(network, container_id, ifname));
        Ok(pending_dels)
    }

    /// Does the same as [`Journal::entries_of`] for all attachments of the container. Of the
    /// entries that cannot be read, only that of the attachment with `ifname` causes an error.
    ///
    /// # Errors
    /// See [`Journal::entries_of`].
    pub fn entries_of_container(
        &self,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<Vec<(PathBuf, PendingDel)>, JournalError> {
        let entries = match self.entries() {
            // A file in place of the directory contains no entry.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Vec::new(),
            entries => entries.map_err(|source| JournalError::Unread {
                path: self.directory.clone(),
                source,
            })?,
        };
        let first_file = self.first_file_of(network, container_id, ifname);
        let mut pending_dels = Vec::new();
        for Entry {
            path, pending_del, ..
        } in entries
        {
            match pending_del {
                Ok(pending_del) if pending_del.is_of_container(network, container_id) => {
                    pending_dels.push((path, pending_del))
                }
                // The name of a first entry's file identifies its attachment. A damaged entry is
                // never replayed, but one that the disk cannot read now may be replayed later.
                Err(source) if path == first_file && !is_damage(&source) => {
                    return Err(JournalError::Unread { path, source });
                }
                Ok(_) | Err(_) => {}
            }
        }
        Ok(pending_dels)
    }

    /// Returns the path for a new entry of an attachment.
    fn free_file_for(&self, pending_del: &PendingDel) -> PathBuf {
        let PendingDel {
            network,
            container_id,
            ifname,
            datastore,
            identity,
            ..
        } = pending_del;
        let first = self.first_file_of(network, container_id, ifname);
        if matches!(first.try_exists(), Ok(false)) {
            return first;
        }
        let text = format!("{network}/{container_id}/{ifname}\n{datastore}\n{identity}");
        self.file_of(&text, EXTENSIONS[1])
    }

    fn first_file_of(&self, network: &str, container_id: &str, ifname: &str) -> PathBuf {
        self.file_of(&format!("{network}/{container_id}/{ifname}"), EXTENSIONS[0])
    }

    /// IDs may be longer than a file name, and a name-based UUID is short, stable and safe.
    fn file_of(&self, text: &str, extension: &str) -> PathBuf {
        let name = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, text.as_bytes());
        self.directory.join(format!("{name}.{extension}"))
    }
}

impl LockedJournal<'_> {
    /// Stores the identity of `target`, if it has one, and adds it to all readable entries without
    /// identity under its name: these belong to the first datastore that is reached under the name.
    ///
    /// # Errors
    /// Returns an error if a file of the journal cannot be written.
    pub fn record_identity(&self, target: &DatastoreIdentity) -> Result<(), JournalError> {
        if target.identity.is_empty() {
            return Ok(());
        }
        files::record_identity(&self.journal.directory, target)?;
        for (path, mut pending_del) in self.readable() {
            if pending_del.identity.is_empty() && pending_del.datastore == target.name {
                pending_del.identity.clone_from(&target.identity);
                write(&path, &pending_del)?;
            }
        }
        Ok(())
    }

    /// Returns the entries for `target`, the one whose last attempt is the oldest first. All other
    /// entries stay, and are logged.
    pub fn pending(&self, target: &DatastoreIdentity) -> Vec<(PathBuf, PendingDel)> {
        let (pending, others): (Vec<_>, Vec<_>) = self
            .readable()
            .into_iter()
            .partition(|(_, pending_del)| pending_del.belongs_to(target));
        if !others.is_empty() {
            tracing::warn!(
                entries = others.len(), reached = %target.name,
                hint = "`calico-ipam journal` lists the entries",
                "keeping journal entries of other or unknown datastores"
            );
        }
        pending
    }

    fn readable(&self) -> Vec<(PathBuf, PendingDel)> {
        let entries = self.journal.entries().unwrap_or_else(|error| {
            let directory = self.journal.directory.display();
            tracing::warn!(%directory, %error, "cannot read the journal; its deferred DELs stay");
            Vec::new()
        });
        let readable = entries
            .into_iter()
            .filter_map(|entry| match entry.pending_del {
                Ok(pending_del) => Some((entry.path, pending_del)),
                Err(error) => {
                    let path = entry.path.display();
                    tracing::warn!(%path, %error, "keeping a journal entry that cannot be read");
                    None
                }
            });
        readable.collect()
    }

    /// Assigns this entry to the datastore `target`.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be read or written.
    pub fn adopt(&self, entry: &Path, target: &DatastoreIdentity) -> Result<(), JournalError> {
        let pending_del = read(entry).map_err(JournalError::at("read", entry))?;
        write(
            entry,
            &PendingDel {
                identity: target.identity.clone(),
                datastore: target.name.clone(),
                ..pending_del
            },
        )
    }

    /// Moves an entry whose replay failed at `now` behind the others.
    ///
    /// # Errors
    /// Returns an error if the entry's time cannot be changed.
    pub fn postpone(&self, entry: &Path, now: OffsetDateTime) -> Result<(), JournalError> {
        let postponed = File::options()
            .write(true)
            .open(entry)
            .and_then(|file| file.set_modified(now.into()));
        postponed.map_err(JournalError::at("postpone", entry))
    }

    /// Removes the drafts of processes that were killed while they wrote an entry.
    pub fn remove_abandoned(&self) {
        atomic_file::sweep(&self.journal.directory);
    }

    /// Removes an entry. An entry that is already removed is no error.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be removed.
    pub fn remove(&self, entry: &Path) -> Result<(), JournalError> {
        match fs::remove_file(entry) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(JournalError::at("remove", entry)),
        }
    }
}

#[cfg(test)]
mod tests;
