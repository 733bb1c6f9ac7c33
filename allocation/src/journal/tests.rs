use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use datastore::{DatastoreConfig, DatastoreSettings};
use libcalico::variables::Variables;

use super::*;

fn pending_del(container_id: &str, datastore: &str) -> PendingDel {
    PendingDel {
        network: "net".into(),
        container_id: container_id.into(),
        ifname: "eth0".into(),
        node: "node1".into(),
        datastore: datastore.into(),
        endpoint: ("default".into(), format!("node1-cni-{container_id}-eth0")),
        handles: vec![format!("net.{container_id}")],
        ..PendingDel::default()
    }
}

fn target(name: &str, identity: &str) -> DatastoreIdentity {
    DatastoreIdentity {
        name: name.into(),
        identity: identity.into(),
    }
}

fn owed_to(locked: &LockedJournal<'_>, name: &str, identity: &str) -> Vec<String> {
    locked
        .pending(&target(name, identity))
        .into_iter()
        .map(|(_, pending_del)| pending_del.container_id)
        .collect()
}

#[tokio::test]
async fn recorded_entry_is_found_by_datastore_and_removed_after_replay() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path().join("not-there-yet"));
    assert!(journal.is_empty());
    assert!(!journal.contains("net", "a", "eth0").unwrap());

    journal.record(&pending_del("a", "one")).unwrap();
    journal.record(&pending_del("b", "two")).unwrap();
    assert!(!journal.is_empty());
    let owes = |ifname: &str| journal.contains("net", "a", ifname).unwrap();
    assert!(owes("eth0") && !owes("eth1"));

    let locked = journal.lock().await.unwrap();
    let [(path, found)] = &locked.pending(&target("one", ""))[..] else {
        panic!()
    };
    assert_eq!(*found, pending_del("a", "one"));
    locked.remove(path).unwrap();
    locked.remove(path).unwrap();
    assert!(owed_to(&locked, "one", "").is_empty());
    assert_eq!(owed_to(&locked, "two", ""), ["b"]);
}

#[tokio::test]
async fn deferred_del_stays_replayable_after_the_datastore_is_renamed() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    // Recorded before and after the node learned the datastore's identity.
    journal
        .record(&pending_del("before", "etcd http://old:2379"))
        .unwrap();
    journal
        .lock()
        .await
        .unwrap()
        .record_identity(&target("etcd http://old:2379", "etcd 1"))
        .unwrap();
    journal
        .record(&pending_del("after", "etcd http://old:2379"))
        .unwrap();
    let locked = journal.lock().await.unwrap();
    let mut found = owed_to(&locked, "etcd http://new:2379", "etcd 1");
    found.sort();
    assert_eq!(found, ["after", "before"]);
    assert!(
        owed_to(&locked, "etcd http://old:2379", "etcd 2").is_empty(),
        "another datastore at the same place"
    );
    assert!(
        owed_to(&locked, "etcd http://old:2379", "").is_empty(),
        "a datastore that does not tell what it is"
    );
}

#[tokio::test]
async fn entry_without_identity_belongs_to_the_first_datastore_reached_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    journal.record(&pending_del("a", "etcd a")).unwrap();
    let locked = journal.lock().await.unwrap();
    locked.record_identity(&target("etcd b", "etcd 2")).unwrap();
    assert_eq!(owed_to(&locked, "etcd a", "etcd 1"), ["a"]);
    locked.record_identity(&target("etcd a", "etcd 1")).unwrap();
    locked.record_identity(&target("etcd a", "etcd 3")).unwrap();
    assert!(owed_to(&locked, "etcd a", "etcd 3").is_empty());
    assert_eq!(owed_to(&locked, "etcd a", "etcd 1"), ["a"]);
}

#[tokio::test]
async fn datastore_identity_is_requested_only_if_an_entry_may_match() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let may_contain = || [journal.may_contain("etcd a"), journal.may_contain("etcd b")];
    assert_eq!(may_contain(), [false, false]);
    journal.record(&pending_del("a", "etcd a")).unwrap();
    fs::write(directory.path().join("broken.json"), "{").unwrap();
    assert_eq!(
        may_contain(),
        [true, true],
        "the node does not know yet that these are two datastores"
    );
    let locked = journal.lock().await.unwrap();
    locked.record_identity(&target("etcd b", "etcd 2")).unwrap();
    assert_eq!(may_contain(), [true, false]);
    locked.record_identity(&target("etcd a", "etcd 1")).unwrap();
    assert_eq!(may_contain(), [true, false]);
    locked.record_identity(&target("etcd b", "etcd 1")).unwrap();
    assert_eq!(
        may_contain(),
        [true, true],
        "one datastore with two spellings"
    );
}

#[test]
fn deferred_dels_to_two_datastores_are_separate_entries() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let noted = |datastore: &str, reason: &str| PendingDel {
        reason: reason.into(),
        ..pending_del("a", datastore)
    };
    journal.record(&noted("one", "first")).unwrap();
    journal.record(&noted("two", "first")).unwrap();
    journal.record(&noted("one", "second")).unwrap();
    let entries = journal.entries().unwrap();
    let mut found: Vec<_> = entries
        .iter()
        .map(|entry| entry.pending_del.as_ref().unwrap())
        .collect();
    found.sort_by_key(|pending_del| &pending_del.datastore);
    let pending: Vec<_> = found
        .iter()
        .map(|pending_del| (pending_del.datastore.as_str(), pending_del.reason.as_str()))
        .collect();
    assert_eq!(pending, [("one", "second"), ("two", "first")]);
    assert!(journal.contains("net", "a", "eth0").unwrap());
}

#[test]
fn re_recorded_deferred_del_retains_its_first_time() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    for noted in [100, 200] {
        journal
            .record(&PendingDel {
                noted,
                ..pending_del("a", "one")
            })
            .unwrap();
    }
    assert_eq!(
        journal.entries().unwrap()[0]
            .pending_del
            .as_ref()
            .unwrap()
            .noted,
        100
    );
}

#[tokio::test]
async fn adopted_deferred_del_belongs_to_the_new_datastore() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    journal
        .record(&PendingDel {
            identity: "etcd 1".into(),
            ..pending_del("a", "etcd a")
        })
        .unwrap();
    let locked = journal.lock().await.unwrap();
    let entry = journal.entries().unwrap().remove(0).path;
    locked.adopt(&entry, &target("etcd b", "etcd 2")).unwrap();
    assert_eq!(owed_to(&locked, "etcd c", "etcd 2"), ["a"]);
    assert!(owed_to(&locked, "etcd a", "etcd 1").is_empty());
    let error = locked
        .adopt(
            &directory.path().join("none.json"),
            &target("etcd b", "etcd 2"),
        )
        .unwrap_err();
    assert!(error.to_string().contains("none.json"), "{error}");
}

#[tokio::test]
async fn postponed_deferred_del_is_tried_last() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for number in 0..3 {
        journal
            .record(&pending_del(&format!("c{number}"), "one"))
            .unwrap();
    }
    for entry in journal.entries().unwrap() {
        let number = entry.pending_del.unwrap().container_id[1..]
            .parse()
            .unwrap();
        let file = File::options().write(true).open(entry.path).unwrap();
        file.set_modified(long_ago + Duration::from_secs(number))
            .unwrap();
    }
    let locked = journal.lock().await.unwrap();
    assert_eq!(owed_to(&locked, "one", ""), ["c0", "c1", "c2"]);
    locked
        .postpone(
            &journal.entries().unwrap()[0].path,
            OffsetDateTime::now_utc(),
        )
        .unwrap();
    assert_eq!(owed_to(&locked, "one", ""), ["c1", "c2", "c0"]);
}

#[tokio::test]
async fn journal_lock_admits_a_single_process() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let held = journal.lock().await.unwrap();
    assert!(journal.try_lock().unwrap().is_none());
    drop(held);
    assert!(journal.try_lock().unwrap().is_some());
}

#[tokio::test]
async fn journal_lock_wait_ends_with_a_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let held = journal.lock().await.unwrap();
    let short = Duration::from_millis(30);
    let error = HostLock::acquire_within(&journal.lock_file(), short).unwrap_err();
    assert!(
        error.to_string().contains("lock stayed locked for 30ms"),
        "{error}"
    );
    drop(held);
    journal.lock().await.unwrap();
}

#[tokio::test]
async fn only_drafts_of_ended_processes_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let being_written = atomic_file::Draft::beside(&directory.path().join("b.json")).unwrap();
    let name = being_written
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .replace(".b.json.", ".a.json.");
    let abandoned = directory.path().join(name);
    fs::write(&abandoned, "{").unwrap();
    assert!(!journal.is_empty(), "or nobody would look");
    journal.record(&pending_del("a", "one")).unwrap();

    let locked = journal.lock().await.unwrap();
    locked.remove_abandoned();
    assert!(!abandoned.exists() && being_written.path().exists());
    assert_eq!(owed_to(&locked, "one", "").len(), 1);
}

#[test]
fn journal_entry_is_readable_by_the_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    journal.record(&pending_del("a", "one")).unwrap();
    let file = &journal.entries().unwrap()[0].path;
    assert_eq!(
        fs::metadata(file).unwrap().permissions().mode() & 0o7777,
        0o600
    );
}

#[test]
fn container_id_longer_than_a_file_name_is_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    let long = "c".repeat(1000);
    journal.record(&pending_del(&long, "one")).unwrap();
    assert!(journal.contains("net", &long, "eth0").unwrap());
}

#[tokio::test]
async fn invalid_journal_entry_does_not_hide_other_entries() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    journal.record(&pending_del("a", "one")).unwrap();
    fs::write(directory.path().join("broken.json"), "{").unwrap();
    assert_eq!(owed_to(&journal.lock().await.unwrap(), "one", ""), ["a"]);
}

/// A symbolic link to itself stands for a failing disk, because root can read a file of any mode.
#[test]
fn unreadable_journal_directory_is_not_mistaken_for_an_empty_journal() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let journal = Journal::new(&path);
    assert!(!journal.is_empty() && journal.may_contain("one"));
    let error = journal
        .contains("net", "a", "eth0")
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!(
            "cannot read {} of the journal of DELs: ",
            path.display()
        )),
        "{error}"
    );
    assert!(
        error.contains("symbolic link") && error.ends_with("finds the addresses of its DELs"),
        "{error}"
    );
    assert!(journal.entries().is_err());
}

#[test]
fn unreadable_entry_is_an_error_for_its_attachment_only() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    journal.record(&pending_del("a", "one")).unwrap();
    let path = journal.entries().unwrap().remove(0).path;
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    let error = journal
        .contains("net", "a", "eth0")
        .unwrap_err()
        .to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
    assert!(!journal.contains("net", "b", "eth0").unwrap());
    for text in ["", "{", "[]"] {
        fs::remove_file(&path).unwrap();
        fs::write(&path, text).unwrap();
        assert!(!journal.contains("net", "a", "eth0").unwrap(), "{text}");
    }
}

#[test]
fn file_at_the_journal_path_is_an_error_and_contains_no_entries() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    fs::write(&path, "").unwrap();
    let journal = Journal::new(&path);
    assert!(
        !journal.is_empty(),
        "or nobody would say that it is in the way"
    );
    assert!(!journal.contains("net", "a", "eth0").unwrap());
    assert!(journal.entries().is_err() && journal.try_lock().is_err());
}

#[test]
fn unwritable_journal_directory_is_an_error_with_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Journal::new(file.join("journal"))
        .record(&pending_del("a", "one"))
        .unwrap_err();
    assert!(error.to_string().contains("file/journal"), "{error}");
}

#[test]
fn special_file_in_the_journal_is_an_unreadable_entry() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo.json");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    std::os::unix::fs::symlink("/dev/zero", directory.path().join("endless.debt")).unwrap();
    let entries = Journal::new(directory.path()).entries().unwrap();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        let error = entry.pending_del.unwrap_err();
        assert!(
            error.to_string().contains("no regular file") && !files::is_damage(&error),
            "{error}"
        );
    }
}

#[tokio::test]
async fn damaged_journal_entry_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    journal.record(&pending_del("a", "one")).unwrap();
    let damaged = journal.entries().unwrap().remove(0).path;
    fs::write(&damaged, "{").unwrap();
    journal.record(&pending_del("a", "one")).unwrap();
    assert_eq!(fs::read_to_string(damaged).unwrap(), "{");
    assert_eq!(owed_to(&journal.lock().await.unwrap(), "one", ""), ["a"]);
}

/// Returns the contents of the files of a directory by name.
fn files_of(directory: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap());
    files
        .map(|file| {
            let name = file.file_name().into_string().unwrap();
            (name, fs::read_to_string(file.path()).unwrap())
        })
        .collect()
}

/// Returns the deferred DELs in `tests/formats/0.1.0/journal`: one with all fields, one of the same
/// attachment for another datastore, and one without any optional field.
fn stored_pending_dels() -> [PendingDel; 3] {
    let name = |settings: DatastoreSettings| {
        datastore_name(&DatastoreConfig::new(&settings, Variables::NONE).unwrap())
    };
    let container_id = "c0ffee01".repeat(8);
    let all_fields = PendingDel {
        network: "k8s-pod-network".into(),
        container_id: container_id.clone(),
        ifname: "eth0".into(),
        node: "node1".into(),
        datastore: name(DatastoreSettings {
            datastore_type: "kubernetes".into(),
            kubeconfig: "/etc/cni/net.d/calico-kubeconfig".into(),
            ..DatastoreSettings::default()
        }),
        identity: "kubernetes 5d9d35d2-9a1c-4d0e-8a37-0f6a1c1f7f10".into(),
        endpoint: ("team-a".into(), "node1-k8s-web--0-eth0".into()),
        pod_uid: "1e7a1c8e-4f0b-4c0e-9c55-0a3d2f6b7c11".into(),
        handles: vec![format!("k8s-pod-network.{container_id}")],
        addresses: ["10.244.0.5", "fd00:10:244::5"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        noted: 1_787_360_523,
        allocated_before: 1_787_360_523_123_456_789,
        reason: "datastore API server https://10.96.0.1:443 is unavailable: no answer".into(),
    };
    let in_etcd = PendingDel {
        datastore: name(DatastoreSettings {
            etcd_endpoints: "http://10.0.0.2:2379,http://10.0.0.1:2379".into(),
            ..DatastoreSettings::default()
        }),
        identity: "etcd 0123456789abcdef0123456789abcdef".into(),
        pod_uid: String::new(),
        addresses: Vec::new(),
        noted: 0,
        allocated_before: 0,
        reason: String::new(),
        ..all_fields.clone()
    };
    let minimal = PendingDel {
        network: "k8s-pod-network".into(),
        container_id: "c2".into(),
        ifname: "eth0".into(),
        datastore: name(DatastoreSettings {
            datastore_type: "local".into(),
            ..DatastoreSettings::default()
        }),
        endpoint: ("default".into(), "node1-cni-c2-eth0".into()),
        ..PendingDel::default()
    };
    [all_fields, in_etcd, minimal]
}

#[test]
fn journal_of_0_1_0_is_read_and_written_unchanged() {
    let stored = files_of(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/formats/0.1.0/journal"
    )));
    let pending_dels = stored_pending_dels();
    let [PendingDel { container_id, .. }, in_etcd, _] = &pending_dels;
    let etcd = target(&in_etcd.datastore, &in_etcd.identity);
    let interfaces = [
        (InterfaceRole::First, "eth0"),
        (InterfaceRole::Second, "eth1"),
    ]
    .map(|(role, ifname)| {
        let name = InterfaceName {
            network: "k8s-pod-network",
            container_id,
            ifname,
        };
        (role, name)
    });

    let directory = tempfile::tempdir().unwrap();
    for (name, text) in &stored {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let journal = Journal::new(directory.path());
    for pending_del in &pending_dels {
        let PendingDel {
            network,
            container_id,
            ifname,
            ..
        } = pending_del;
        let read = journal.entries_of(network, container_id, ifname).unwrap();
        assert!(
            read.iter().any(|(_, read)| read == pending_del),
            "{pending_del:?} {read:?}"
        );
    }
    assert_eq!(journal.entries().unwrap().len(), pending_dels.len());
    let identity = files::find_identity(directory.path(), &etcd.name);
    assert_eq!(identity, etcd.identity);
    for (role, name) in interfaces {
        assert!(journal.has_interface(role, name).unwrap());
    }
    // The contents of the records decide which ones GC keeps.
    let valid = [container_id.clone()].into();
    journal
        .retain_interfaces("k8s-pod-network", &valid)
        .unwrap();
    assert_eq!(files_of(directory.path()), stored);

    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path());
    for pending_del in &pending_dels {
        journal.record(pending_del).unwrap();
    }
    files::record_identity(directory.path(), &etcd).unwrap();
    for (role, name) in interfaces {
        journal.record_interface(role, name).unwrap();
    }
    assert_eq!(files_of(directory.path()), stored);
}
