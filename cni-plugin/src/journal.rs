//! What a DEL still owes the datastore when it could not be reached (design decision 7).
//!
//! One small file per attachment. The container's interface is gone by the time it is written, so the runtime may
//! forget the container; the addresses and the endpoint follow at the next invocation that reaches the datastore. An
//! ADD of the same attachment settles its own entry first, under the journal's lock: otherwise a late replay could
//! take back what the ADD has just given.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use installer::atomic_file::{self, AtomicFileError, is_draft};
use ipam_plugin::lock::{HostLock, LONGEST_WAIT, LockError};
use libcalico::ipam::{HandleId, OldHandle};
use libcalico::names::EndpointIdentifiers;
use serde::{Deserialize, Serialize};

/// Where entries live unless a test says otherwise.
pub const DEFAULT_DIRECTORY: &str = "/var/lib/calico/cni-journal";

/// Entries that one invocation tries to settle: a long outage must not make one pod wait for all others.
const ENTRIES_PER_INVOCATION: usize = 16;

/// What is owed for one attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debt {
    /// Network name.
    pub network: String,
    /// Sandbox id.
    pub container_id: String,
    /// Interface inside the container.
    pub ifname: String,
    /// The node the attachment was on; empty where the DEL could not tell: the node whose call pays.
    pub node: String,
    /// Which datastore is owed, as [`datastore::DatastoreConfig`] describes itself; never contains credentials.
    pub datastore: String,
    /// Namespace and name of the WorkloadEndpoint to delete if it is still this container's. The node in the name is of no account.
    pub endpoint: (String, String),
    /// The pod's uid, where endpoints are pods and the runtime said it; empty elsewhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// The container's handles; empty when a foreign plugin keeps the addresses.
    pub handles: Vec<String>,
}

impl Debt {
    /// The handle of before v3, with the pod or container that its allocations must name to be released.
    pub fn old_handle(&self) -> Option<OldHandle> {
        let (namespace, endpoint) = &self.endpoint;
        let ids = EndpointIdentifiers::parse(endpoint).ok()?;
        let old = match ids.orchestrator.as_str() {
            "k8s" => OldHandle::of_pod(namespace, &ids.pod),
            _ => OldHandle::of_container(&self.container_id),
        };
        old.filter(|old| *old.id() != self.own_handle())
    }

    /// Returns the debt with a node, which is `node` where its DEL could not tell.
    #[must_use]
    pub fn or_on_node(mut self, node: &str) -> Self {
        if self.node.is_empty() {
            self.node = node.to_owned();
        }
        self
    }

    /// The handle that holds what this container got.
    pub fn own_handle(&self) -> HandleId {
        HandleId::for_container(&self.network, &self.container_id)
    }
}

/// Why an entry could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file or the directory.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried: `create`, `write` …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An entry that cannot be put in place.
    #[error(transparent)]
    Write(#[from] AtomicFileError),
    /// The lock was not to be had.
    #[error("the journal of DELs that are not finished: {0}")]
    Lock(#[from] LockError),
}

/// The journal of this node.
#[derive(Debug, Clone)]
pub struct Journal {
    directory: PathBuf,
}

/// Holds the journal's lock: only the holder settles entries.
#[derive(Debug)]
pub struct Locked<'a> {
    journal: &'a Journal,
    _lock: HostLock,
}

impl Journal {
    /// The journal in `directory`, which need not exist.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Journal { directory: directory.into() }
    }

    /// Keeps `debt` so that it survives a crash and a power loss. An entry of the same attachment is replaced.
    pub fn record(&self, debt: &Debt) -> Result<(), JournalError> {
        let at = |action, path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::File { action, path, source }
        };
        fs::create_dir_all(&self.directory).map_err(at("create", &self.directory))?;
        let target = self.file_of(&debt.network, &debt.container_id, &debt.ifname);
        let text = serde_json::to_vec_pretty(debt).map_err(io::Error::from).map_err(at("encode", &target))?;
        // Who was networked with whom is nobody else's business.
        atomic_file::replace(&target, &text, 0o600)?;
        Ok(())
    }

    /// Whether this attachment is owed.
    pub fn owes(&self, network: &str, container_id: &str, ifname: &str) -> bool {
        self.file_of(network, container_id, ifname).exists()
    }

    /// Whether there is anything to do, owed or left behind: one system call on the usual path, where the directory is
    /// absent or empty.
    pub fn is_empty(&self) -> bool {
        match fs::read_dir(&self.directory) {
            Ok(entries) => !entries.flatten().any(|file| is_entry(&file.path()) || is_draft(&file.path())),
            Err(_) => true,
        }
    }

    /// Takes the lock if nobody settles entries now.
    pub fn try_lock(&self) -> Result<Option<Locked<'_>>, JournalError> {
        match self.lock_within(Duration::ZERO) {
            Ok(locked) => Ok(Some(locked)),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the lock, as long as for the one of the addresses: one stuck process must not make a stuck node.
    pub fn lock(&self) -> Result<Locked<'_>, JournalError> {
        self.lock_within(LONGEST_WAIT).map_err(JournalError::from)
    }

    fn lock_within(&self, wait: Duration) -> Result<Locked<'_>, LockError> {
        let lock = HostLock::acquire_within(&self.directory.join("lock"), wait)?;
        Ok(Locked { journal: self, _lock: lock })
    }

    fn file_of(&self, network: &str, container_id: &str, ifname: &str) -> PathBuf {
        // Ids may be longer than a file name: a name-based UUID is short, stable and safe.
        let attachment = format!("{network}/{container_id}/{ifname}");
        let name = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_URL, attachment.as_bytes());
        self.directory.join(format!("{name}.json"))
    }
}

impl Locked<'_> {
    /// Entries owed to `datastore`, first those not tried for longest. An entry that cannot be read is reported and left for a person.
    pub fn debts(&self, datastore: &str) -> Vec<Debt> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.journal.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if !is_entry(&path) {
                continue;
            }
            match read(&path) {
                Ok(debt) if debt.datastore == datastore => {
                    found.push((entry.metadata().and_then(|m| m.modified()).ok(), debt));
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "journal entry cannot be read"),
            }
        }
        found.sort_by_key(|(written, _)| *written);
        found.into_iter().map(|(_, debt)| debt).collect()
    }

    /// What one invocation tries to pay of them.
    pub fn due(&self, datastore: &str) -> Vec<Debt> {
        let mut debts = self.debts(datastore);
        debts.truncate(ENTRIES_PER_INVOCATION);
        debts
    }

    /// Puts a debt that could not be paid behind the others.
    pub fn postpone(&self, debt: &Debt) -> Result<(), JournalError> {
        let path = self.journal.file_of(&debt.network, &debt.container_id, &debt.ifname);
        let postponed = File::options().write(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        postponed.map_err(|source| JournalError::File { action: "postpone", path, source })
    }

    /// Removes what processes left that were killed while they wrote an entry.
    pub fn remove_abandoned(&self) {
        atomic_file::sweep(&self.journal.directory);
    }

    /// Forgets a debt that was paid.
    pub fn settle(&self, debt: &Debt) -> Result<(), JournalError> {
        let path = self.journal.file_of(&debt.network, &debt.container_id, &debt.ifname);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(JournalError::File { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }
}

fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

fn read(path: &Path) -> io::Result<Debt> {
    serde_json::from_slice(&fs::read(path)?).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn debt(container_id: &str, datastore: &str) -> Debt {
        Debt {
            network: "net".into(),
            container_id: container_id.into(),
            ifname: "eth0".into(),
            node: "node1".into(),
            datastore: datastore.into(),
            endpoint: ("default".into(), format!("node1-cni-{container_id}-eth0")),
            pod_uid: String::new(),
            handles: vec![format!("net.{container_id}")],
        }
    }

    #[test]
    fn an_entry_is_kept_found_by_its_datastore_and_forgotten_when_settled() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().join("not-there-yet"));
        assert!(journal.is_empty());
        assert!(!journal.owes("net", "a", "eth0"));

        journal.record(&debt("a", "one")).unwrap();
        journal.record(&debt("b", "two")).unwrap();
        assert!(!journal.is_empty());
        assert!(journal.owes("net", "a", "eth0") && !journal.owes("net", "a", "eth1"));

        let locked = journal.lock().unwrap();
        assert_eq!(locked.debts("one"), [debt("a", "one")]);
        locked.settle(&debt("a", "one")).unwrap();
        locked.settle(&debt("a", "one")).unwrap();
        assert!(locked.debts("one").is_empty());
        assert_eq!(locked.debts("two"), [debt("b", "two")]);
    }

    #[test]
    fn entries_that_cannot_be_paid_stand_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        for number in 0..=ENTRIES_PER_INVOCATION {
            let debt = debt(&format!("c{number}"), "one");
            journal.record(&debt).unwrap();
            let file = File::options().write(true).open(journal.file_of("net", &debt.container_id, "eth0")).unwrap();
            file.set_modified(long_ago + Duration::from_secs(number as u64)).unwrap();
        }
        let locked = journal.lock().unwrap();
        let due = locked.due("one");
        assert_eq!(due.len(), ENTRIES_PER_INVOCATION);
        due.iter().for_each(|debt| locked.postpone(debt).unwrap());
        let first: Vec<_> = locked.due("one").into_iter().map(|debt| debt.container_id).take(2).collect();
        assert_eq!(first, [format!("c{ENTRIES_PER_INVOCATION}"), "c0".into()]);
    }

    /// The text is as every version has written it.
    #[test]
    fn a_debt_names_the_pod_that_its_old_handle_must_be_noted_for() {
        let noted = |endpoint: [&str; 2]| {
            let id = "c".repeat(64);
            let text = format!(
                r#"{{"network": "net", "container_id": "{id}", "ifname": "eth0", "node": "node1", "datastore": "one",
                    "endpoint": ["{}", "{}"], "handles": ["net.{id}", "x"]}}"#,
                endpoint[0], endpoint[1]
            );
            serde_json::from_str::<Debt>(&text).unwrap().old_handle()
        };
        assert_eq!(noted(["ns", "node--1-k8s-my--web.x-eth0"]), OldHandle::of_pod("ns", "my-web.x"));
        assert_eq!(
            noted(["default", &format!("node1-cni-{}-eth0", "c".repeat(64))]),
            OldHandle::of_container(&"c".repeat(64))
        );
        // A machine's handle, the container's own, and an endpoint without a name.
        assert_eq!(noted(["net", "node1-k8s-vmi.prod.db-eth0"]), None);
        assert_eq!(noted(["net", &format!("node1-k8s-{}-eth0", "c".repeat(64))]), None);
        assert_eq!(noted(["", ""]), None);
    }

    #[test]
    fn doctor_looks_where_entries_are() {
        assert!(Path::new(DEFAULT_DIRECTORY).ends_with(installer::layout::JOURNAL));
    }

    #[test]
    fn only_one_process_settles_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let held = journal.lock().unwrap();
        assert!(journal.try_lock().unwrap().is_none());
        drop(held);
        assert!(journal.try_lock().unwrap().is_some());
    }

    #[test]
    fn waiting_for_the_lock_ends() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let held = journal.lock().unwrap();
        let error = journal.lock_within(Duration::from_millis(30)).unwrap_err();
        assert!(error.to_string().contains("lock stayed locked for 30ms"), "{error}");
        drop(held);
        journal.lock().unwrap();
    }

    #[test]
    fn what_a_killed_process_was_writing_is_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let being_written = atomic_file::Draft::beside(&directory.path().join("b.json")).unwrap();
        // As one is called whose process is gone.
        let name = being_written.path().file_name().unwrap().to_str().unwrap().replace(".b.json.", ".a.json.");
        let abandoned = directory.path().join(name);
        fs::write(&abandoned, "{").unwrap();
        assert!(!journal.is_empty(), "or nobody would look");
        journal.record(&debt("a", "one")).unwrap();

        let locked = journal.lock().unwrap();
        locked.remove_abandoned();
        assert!(!abandoned.exists() && being_written.path().exists());
        assert_eq!(locked.debts("one").len(), 1);
    }

    #[test]
    fn an_entry_is_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        journal.record(&debt("a", "one")).unwrap();
        let file = journal.file_of("net", "a", "eth0");
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_container_id_longer_than_a_file_name_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        let long = "c".repeat(1000);
        journal.record(&debt(&long, "one")).unwrap();
        assert!(journal.owes("net", &long, "eth0"));
    }

    #[test]
    fn an_unreadable_entry_does_not_hide_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path());
        journal.record(&debt("a", "one")).unwrap();
        fs::write(directory.path().join("broken.json"), "{").unwrap();
        assert_eq!(journal.lock().unwrap().debts("one").len(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Journal::new(file.join("journal")).record(&debt("a", "one")).unwrap_err();
        assert!(error.to_string().contains("file/journal"), "{error}");
    }
}
