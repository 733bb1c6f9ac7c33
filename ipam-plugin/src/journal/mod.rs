//! The journal of deferred DELs. A DEL that cannot reach its datastore removes the pod's interface and records the
//! remaining cleanup here.
//!
//! The journal has a small file per attachment. The container's interface is already removed when the file is written,
//! so the runtime may consider the container deleted. The addresses and the endpoint are released when a later call, or
//! the agent, reaches the datastore. An ADD of the same attachment replays its own entry first, under the journal's
//! lock. Otherwise a late replay could release the addresses that the ADD has just assigned.

mod debt;
mod identities;

pub use debt::{Creditor, Debt, name_of, short_age};

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::atomic_file::{self, AtomicFileError, is_draft};
use crate::lock::{HostLock, LONGEST_WAIT, LockError};

/// The directory of entries. Tests use another one.
pub const DEFAULT_DIRECTORY: &str = "/var/lib/calico/cni-journal";

/// The extensions of entries: of an attachment's first entry, and of its others. Earlier releases support one entry per
/// attachment and read only files with the first extension.
const EXTENSIONS: [&str; 2] = ["json", "debt"];

/// A failure to write or to read an entry.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or the directory cannot be accessed.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// The attempted action: `create`, `write` …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory or an entry that may contain a deferred DEL of the attachment cannot be read.
    #[error(
        "cannot read {path} of the journal of DELs: {source}; nothing tells what an earlier DEL of this container owes. Make \
         {path} readable; if it is lost, move it away, and `calico-ipam check` finds what its DELs left behind"
    )]
    Unread {
        /// The directory, or the entry.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An entry cannot be written.
    #[error(transparent)]
    Write(#[from] AtomicFileError),
    /// The lock cannot be taken.
    #[error("the journal of DELs that are not finished: {0}")]
    Lock(#[from] LockError),
}

/// The journal of a node.
#[derive(Debug, Clone)]
pub struct Journal {
    directory: PathBuf,
}

/// The journal with its lock taken. Only the process with the lock replays deferred DELs.
#[derive(Debug)]
pub struct Locked<'a> {
    journal: &'a Journal,
    _lock: HostLock,
}

/// An entry of the journal.
#[derive(Debug)]
pub struct Entry {
    /// The file.
    pub path: PathBuf,
    /// Time of the file's last modification. After a failed replay this time moves the entry behind the others.
    pub touched: SystemTime,
    /// The deferred DEL, or the error from reading it.
    pub debt: Result<Debt, io::Error>,
}

impl Journal {
    /// Creates the journal in `directory`, which need not exist.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Journal { directory: directory.into() }
    }

    /// Stores a deferred DEL so that it survives a crash and a power loss, with the identity of the datastore if the
    /// node knows it. Replaces an entry of the same attachment and datastore. An entry for another datastore stays.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn record(&self, debt: &Debt) -> Result<(), JournalError> {
        let mut debt = debt.clone();
        if debt.identity.is_empty() {
            debt.identity = identities::recall(&self.directory, &debt.datastore);
        }
        self.record_by_spelling(&debt)
    }

    /// Stores a deferred DEL as [`Journal::record`] does, but without the identity that the node knows. This is for a
    /// datastore that lost its identity and gets another one when it is set up again.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    pub fn record_by_spelling(&self, debt: &Debt) -> Result<(), JournalError> {
        let at = |action, path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::File { action, path, source }
        };
        fs::create_dir_all(&self.directory).map_err(at("create", &self.directory))?;
        let mut debt = debt.clone();
        // A directory that is writable but not readable gets the entry nevertheless: a second replay is harmless.
        let entries = self.debts_of(&debt.network, &debt.container_id, &debt.ifname).unwrap_or_default();
        let former = entries.into_iter().find(|(_, former)| former.has_creditor_of(&debt));
        let target = match former {
            Some((path, former)) => {
                debt.noted = if former.noted == 0 { debt.noted } else { former.noted };
                path
            }
            None => self.free_file_for(&debt),
        };
        write(&target, &debt)
    }

    /// Returns true if the journal contains a deferred DEL of this attachment, for any datastore.
    ///
    /// # Errors
    /// Returns an error if the journal exists and cannot be read, so that the attachment may have a deferred DEL.
    pub fn owes(&self, network: &str, container_id: &str, ifname: &str) -> Result<bool, JournalError> {
        self.debts_of(network, container_id, ifname).map(|debts| !debts.is_empty())
    }

    /// Returns true if the journal has no entry and no abandoned draft. In the usual case, where the directory is
    /// missing or empty, this takes one system call. An unreadable directory does not count as empty.
    pub fn is_empty(&self) -> bool {
        let is_left = |path: &Path| is_entry(path) || is_draft(path);
        match fs::read_dir(&self.directory) {
            Ok(mut files) => !files.any(|file| file.map_or(true, |file| is_left(&file.path()))),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Returns true if the journal may contain a deferred DEL for the datastore that the configuration names `name`, as
    /// far as the node can determine this without a request. An entry for another datastore thus costs no request. An
    /// unreadable journal may contain such an entry.
    pub fn may_owe(&self, name: &str) -> bool {
        let identity = self.identity_of(name);
        let creditor = Creditor { name: name.to_owned(), identity };
        let may_owe = |debt: &Debt| debt.is_owed_to(&creditor) || creditor.identity.is_empty();
        self.entries().map_or(true, |entries| entries.iter().any(|entry| entry.debt.as_ref().is_ok_and(may_owe)))
    }

    /// Returns all entries, the one with the oldest attempt first.
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
            let debt = match read(&path) {
                // Another process replayed and removed the entry since the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                debt => debt,
            };
            let touched = file.metadata().and_then(|metadata| metadata.modified()).unwrap_or(UNIX_EPOCH);
            entries.push(Entry { path, touched, debt });
        }
        entries.sort_by(|one, other| (one.touched, &one.path).cmp(&(other.touched, &other.path)));
        Ok(entries)
    }

    /// Returns the identity of the datastore that the configuration names `name`; empty if the node does not know it.
    pub fn identity_of(&self, name: &str) -> String {
        identities::recall(&self.directory, name)
    }

    /// Removes the stored identities of datastores, for a journal that is to be removed.
    ///
    /// # Errors
    /// Returns an error if a file cannot be removed.
    pub fn forget_datastores(&self) -> io::Result<()> {
        identities::forget_all(&self.directory)
    }

    /// Takes the lock if no other process replays deferred DELs now.
    ///
    /// # Errors
    /// Returns an error if the lock file cannot be opened.
    pub fn try_lock(&self) -> Result<Option<Locked<'_>>, JournalError> {
        match self.lock_within(Duration::ZERO) {
            Ok(locked) => Ok(Some(locked)),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock, with the same longest wait as for the IPAM lock, so that a stuck process does not block the
    /// node.
    ///
    /// # Errors
    /// Returns an error if another process keeps the lock for longer, or if the lock file cannot be opened.
    pub fn lock(&self) -> Result<Locked<'_>, JournalError> {
        self.lock_within(LONGEST_WAIT).map_err(JournalError::from)
    }

    fn lock_within(&self, wait: Duration) -> Result<Locked<'_>, LockError> {
        let lock = HostLock::acquire_within(&self.directory.join("lock"), wait)?;
        Ok(Locked { journal: self, _lock: lock })
    }

    /// Returns the entries of an attachment, for any datastore.
    ///
    /// # Errors
    /// Returns an error if the journal exists and cannot be read, so that the attachment may have a deferred DEL.
    pub fn debts_of(
        &self,
        network: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<Vec<(PathBuf, Debt)>, JournalError> {
        let entries = match self.entries() {
            // A file in place of the directory contains no entry.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Vec::new(),
            entries => entries.map_err(|source| JournalError::Unread { path: self.directory.clone(), source })?,
        };
        let own = self.first_file_of(network, container_id, ifname);
        let mut debts = Vec::new();
        for Entry { path, debt, .. } in entries {
            match debt {
                Ok(debt) if debt.is_of_attachment(network, container_id, ifname) => debts.push((path, debt)),
                // An entry's file name identifies its attachment. A damaged entry is never replayed. An entry that the
                // disk cannot read now may be replayed later.
                Err(source) if path == own && !is_damage(&source) => return Err(JournalError::Unread { path, source }),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(debts)
    }

    /// Returns the file of an attachment, or a second one if the first is for another datastore or unreadable.
    fn free_file_for(&self, debt: &Debt) -> PathBuf {
        let Debt { network, container_id, ifname, datastore, identity, .. } = debt;
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

    /// Returns the path of an entry. IDs may be longer than a file name, and a name-based UUID is short, stable and
    /// safe.
    fn file_of(&self, text: &str, extension: &str) -> PathBuf {
        let name = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, text.as_bytes());
        self.directory.join(format!("{name}.{extension}"))
    }
}

impl Locked<'_> {
    /// Stores the identity of `creditor`, and adds it to all entries without identity whose configuration named the
    /// datastore in the same way. An entry without identity belongs to the first datastore that is reached under its
    /// name.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be written.
    /// The directory cannot be written.
    pub fn learn(&self, creditor: &Creditor) -> Result<(), JournalError> {
        if creditor.identity.is_empty() {
            return Ok(());
        }
        identities::keep(&self.journal.directory, creditor)?;
        for (path, mut debt) in self.readable() {
            if debt.identity.is_empty() && debt.datastore == creditor.name {
                debt.identity.clone_from(&creditor.identity);
                write(&path, &debt)?;
            }
        }
        Ok(())
    }

    /// Returns the entries for `creditor`, the one with the oldest attempt first. Entries that are unreadable or for
    /// another datastore are logged and stay.
    pub fn debts(&self, creditor: &Creditor) -> Vec<(PathBuf, Debt)> {
        let (owed, others): (Vec<_>, Vec<_>) =
            self.readable().into_iter().partition(|(_, debt)| debt.is_owed_to(creditor));
        if !others.is_empty() {
            tracing::warn!(
                entries = others.len(),
                reached = %creditor.name,
                "journal entries are owed to another datastore than the one that was reached and stay; calico-ipam journal lists them"
            );
        }
        owed
    }

    fn readable(&self) -> Vec<(PathBuf, Debt)> {
        let entries = self.journal.entries().unwrap_or_else(|error| {
            let directory = self.journal.directory.display();
            tracing::warn!(%directory, %error, "the journal cannot be read; its debts stay");
            Vec::new()
        });
        let mut readable = Vec::new();
        for Entry { path, debt, .. } in entries {
            match debt {
                Ok(debt) => readable.push((path, debt)),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "this journal entry cannot be read and stays");
                }
            }
        }
        readable
    }

    /// Assigns this entry to the datastore `creditor`.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be read or written.
    pub fn adopt(&self, entry: &Path, creditor: &Creditor) -> Result<(), JournalError> {
        let unreadable = |source| JournalError::File { action: "read", path: entry.to_owned(), source };
        let debt = read(entry).map_err(unreadable)?;
        write(entry, &Debt { identity: creditor.identity.clone(), datastore: creditor.name.clone(), ..debt })
    }

    /// Moves an entry whose replay failed behind the others.
    ///
    /// # Errors
    /// Returns an error if the entry's time cannot be changed.
    pub fn postpone(&self, entry: &Path) -> Result<(), JournalError> {
        let postponed = File::options().write(true).open(entry).and_then(|file| file.set_modified(SystemTime::now()));
        postponed.map_err(|source| JournalError::File { action: "postpone", path: entry.to_owned(), source })
    }

    /// Removes the drafts of processes that were killed while they wrote an entry.
    pub fn remove_abandoned(&self) {
        atomic_file::sweep(&self.journal.directory);
    }

    /// Removes an entry after its replay.
    ///
    /// # Errors
    /// Returns an error if the entry cannot be removed.
    pub fn settle(&self, entry: &Path) -> Result<(), JournalError> {
        match fs::remove_file(entry) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(JournalError::File { action: "remove", path: entry.to_owned(), source })
            }
            _ => Ok(()),
        }
    }
}

fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

fn read(path: &Path) -> io::Result<Debt> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
}

/// Returns true for the error of a file that was read and is not a valid entry.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn write(path: &Path, content: &impl Serialize) -> Result<(), JournalError> {
    let text = serde_json::to_vec_pretty(content).map_err(|error| JournalError::File {
        action: "encode",
        path: path.to_owned(),
        source: error.into(),
    })?;
    // Entries name pods and containers; only root may read them.
    atomic_file::replace(path, &text, 0o600)?;
    Ok(())
}

#[cfg(test)]
mod tests;
