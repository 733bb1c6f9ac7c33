//! The embedded datastore with full disks, read-only directories, foreign files, and other
//! processes that block it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{Fixture, block_on, local_config, marker, pool, worker_arguments};
use datastore::config::LocalConfig;
use datastore::{Datastore, DatastoreConfig};
use libcalico::api::{IpPool, ObjectKey, ObjectSelect};
use libcalico::store::{Store, StoreError};

fn open(path: &Path) -> Datastore {
    Datastore::open(&local_config(path.into())).unwrap()
}

fn database_path(fixture: &Fixture) -> PathBuf {
    match &fixture.config {
        DatastoreConfig::Local(local) => local.path.clone(),
        _ => unreachable!("fixtures of this file are files"),
    }
}

fn create(store: &Datastore, name: &str) -> Result<(), StoreError> {
    let (key, value) = pool(name, &"x".repeat(3000));
    block_on(store.create(&key, &value)).map(|_| ())
}

/// Runs the `#[ignore]`d test `worker` in its own mount namespace, with a temporary file system of
/// `size` at `$DIRECTORY`.
fn on_tmpfs(worker: &str, size: &str) {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-ec",
            r#"mount -t tmpfs -o "size=$SIZE" none "$DIRECTORY"; exec "$0" "$@""#,
        ])
        .arg(std::env::current_exe().unwrap())
        .args(worker_arguments(module_path!(), worker))
        .env("DIRECTORY", directory.path())
        .env("SIZE", size)
        .output()
        .expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

fn directory() -> PathBuf {
    std::env::var_os("DIRECTORY")
        .expect("run by another test")
        .into()
}

#[test]
fn full_disk_is_reported_and_corrupts_no_data() {
    on_tmpfs("worker_fills_the_disk_and_loses_no_committed_write", "512k");
}

#[test]
#[ignore = "run by full_disk_is_reported_and_corrupts_no_data in mounts of its own"]
fn worker_fills_the_disk_and_loses_no_committed_write() {
    let path = directory().join("calico.db");
    let store = open(&path);
    let mut names = (0..).map(|n| format!("pool-{n:04}"));
    let mut written = 0;
    let error = loop {
        match create(&store, &names.next().unwrap()) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(
        error,
        StoreError::DiskFull {
            path: path.display().to_string()
        }
    );
    assert!(written >= 10, "{written}");
    for store in [store, open(&path)] {
        let pools = block_on(store.list::<IpPool>(&ObjectSelect::default())).unwrap();
        assert_eq!(pools.len(), written);
    }
}

#[test]
fn missing_space_for_a_new_file_is_reported() {
    on_tmpfs("worker_without_space_for_a_new_file_gets_disk_full", "16k");
}

#[test]
#[ignore = "run by missing_space_for_a_new_file_is_reported in mounts of its own"]
fn worker_without_space_for_a_new_file_gets_disk_full() {
    let path = directory().join("calico.db");
    // The write is bounded in case that the file system of 16 KiB is not there.
    let filled = std::fs::write(directory().join("filler"), vec![0; 64 * 1024]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(
        create(&open(&path), "p"),
        Err(StoreError::DiskFull {
            path: path.display().to_string()
        })
    );
    let files: Vec<_> = std::fs::read_dir(directory())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(files, ["filler"], "no half-made file stays");
    std::fs::remove_file(directory().join("filler")).unwrap();
    Command::new("mount")
        .args(["-o", "remount,size=1m"])
        .arg(directory())
        .status()
        .unwrap();
    create(&open(&path), "p").unwrap();
}

#[test]
fn read_only_directory_is_reported() {
    on_tmpfs("worker_on_a_read_only_directory_can_only_read", "1m");
}

#[test]
#[ignore = "run by read_only_directory_is_reported in mounts of its own"]
fn worker_on_a_read_only_directory_can_only_read() {
    let path = directory().join("calico.db");
    create(&open(&path), "p").unwrap();
    assert!(
        Command::new("mount")
            .args(["-o", "remount,ro"])
            .arg(directory())
            .status()
            .unwrap()
            .success()
    );
    let named = |error: StoreError| {
        let text = error.to_string();
        assert!(
            error.is_unavailable() && text.contains(path.to_str().unwrap()),
            "{error:?}"
        );
        text
    };
    let text = named(create(&open(&path), "q").unwrap_err());
    assert!(
        text.contains("read-only") || text.contains("Read-only"),
        "{text}"
    );
    let elsewhere = directory().join("other/calico.db");
    let text = open_error(&elsewhere);
    assert!(
        text.contains("cannot create directory") && text.contains("datastore_path"),
        "{text}"
    );
}

fn open_error(path: &Path) -> String {
    create(&open(path), "p").unwrap_err().to_string()
}

#[test]
fn foreign_files_are_rejected_and_left_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("calico.db");
    std::fs::write(
        &path,
        "not a database, just text that somebody needs\n".repeat(100),
    )
    .unwrap();
    let before = std::fs::read(&path).unwrap();
    let text = open_error(&path);
    assert!(
        text.contains("is not a SQLite database") && text.contains("datastore_path"),
        "{text}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);

    std::fs::write(&path, "").unwrap();
    assert!(open_error(&path).contains("is not a Calico datastore"));

    std::fs::remove_file(&path).unwrap();
    let sql = |text: &str| {
        assert!(
            Command::new("sqlite3")
                .arg(&path)
                .arg(text)
                .status()
                .unwrap()
                .success()
        )
    };
    sql("CREATE TABLE somebodys (x)");
    assert!(open_error(&path).contains("belongs to another program"));

    std::fs::remove_file(&path).unwrap();
    create(&open(&path), "p").unwrap();
    sql("PRAGMA user_version = 7");
    let text = open_error(&path);
    assert!(
        text.contains("schema version 7 and this build supports version 1; upgrade"),
        "{text}"
    );

    let text = open_error(directory.path());
    assert!(text.contains("cannot open the file"), "{text}");
}

#[test]
fn damaged_file_is_reported_with_a_remedy() {
    let fixture = Fixture::local();
    let path = database_path(&fixture);
    let store = fixture.open();
    for n in 0..200 {
        create(&store, &format!("pool-{n:04}")).unwrap();
    }
    drop(store);
    // Copies the log into the database file, then overwrites most of the file with noise.
    let checkpoint = Command::new("sqlite3")
        .arg(&path)
        .arg("PRAGMA wal_checkpoint(TRUNCATE)")
        .output()
        .unwrap();
    assert!(checkpoint.status.success());
    let mut bytes = std::fs::read(&path).unwrap();
    let end = bytes.len();
    for (n, byte) in bytes[4096..end].iter_mut().enumerate() {
        *byte = (n * 7 % 251) as u8;
    }
    std::fs::write(&path, bytes).unwrap();
    let error = block_on(fixture.open().list::<IpPool>(&ObjectSelect::default()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is damaged (") && error.contains("calico-ipam import"),
        "{error}"
    );
}

#[test]
fn every_schema_damage_is_reported_with_a_remedy() {
    for (description, damage) in [
        ("a table is gone", "DROP TABLE kv"),
        ("the counter is gone", "DROP TABLE counter"),
        ("the counter is empty", "DELETE FROM counter"),
        (
            "a column has another name",
            "ALTER TABLE kv RENAME COLUMN value TO valve",
        ),
        ("a revision is no number", "UPDATE kv SET revision = 'x'"),
    ] {
        let fixture = Fixture::local();
        let path = database_path(&fixture);
        create(&fixture.open(), "p").unwrap();
        assert!(
            Command::new("sqlite3")
                .arg(&path)
                .arg(damage)
                .status()
                .unwrap()
                .success(),
            "{description}"
        );
        let store = fixture.open();
        let read = block_on(store.list::<IpPool>(&ObjectSelect::default())).err();
        let error = read
            .unwrap_or_else(|| create(&store, "q").expect_err(description))
            .to_string();
        assert!(
            error.contains("is damaged (") && error.contains("calico-ipam import"),
            "{description}: {error}"
        );
    }
}

#[test]
fn invalid_utf8_value_fails_only_its_entry() {
    let fixture = Fixture::local();
    let path = database_path(&fixture);
    let store = fixture.open();
    for name in ["p", "q"] {
        create(&store, name).unwrap();
    }
    let damage = "UPDATE kv SET value = CAST(x'7b22ff227d' AS TEXT) WHERE path LIKE '%/ippools/p'";
    assert!(
        Command::new("sqlite3")
            .arg(&path)
            .arg(damage)
            .status()
            .unwrap()
            .success()
    );
    let error = block_on(store.get::<IpPool>(&ObjectKey::global("p"))).unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { key, .. } if key.ends_with("/ippools/p")),
        "{error:?}"
    );
    let listed = block_on(store.list::<IpPool>(&ObjectSelect::default())).unwrap();
    assert_eq!(
        listed
            .iter()
            .map(|entry| entry.key.name.as_str())
            .collect::<Vec<_>>(),
        ["q"]
    );
}

#[test]
fn locked_file_is_awaited_and_the_lock_reported_at_the_deadline() {
    let fixture = Fixture::local();
    let path = database_path(&fixture);
    create(&fixture.open(), "p").unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("BEGIN IMMEDIATE; UPDATE counter SET revision = revision")
        .unwrap();

    let patient = LocalConfig {
        path: path.clone(),
        deadline: Duration::from_millis(300),
    };
    let store = Datastore::open(&DatastoreConfig::Local(patient)).unwrap();
    let error = create(&store, "q").unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Unavailable {
                outcome_unknown: false,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("kept the file locked for 0.3 s"),
        "{error}"
    );
    assert!(block_on(store.get::<IpPool>(&ObjectKey::global("p"))).is_ok());

    // The waiting write has a long time limit, because a slow machine may wake this thread late.
    let store = fixture.open();
    let waiting = std::thread::spawn(move || create(&store, "q"));
    std::thread::sleep(Duration::from_millis(100));
    other.execute_batch("ROLLBACK").unwrap();
    waiting.join().unwrap().unwrap();
}

#[test]
fn parent_directories_are_created_and_reopening_writes_no_bytes() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("var/lib/calico.db");
    create(&open(&path), "p").unwrap();
    let mode = path
        .parent()
        .unwrap()
        .metadata()
        .unwrap()
        .permissions()
        .mode()
        & 0o777;
    assert_eq!(mode, 0o755);
    let stamp = || {
        let of = |p: PathBuf| {
            p.metadata()
                .map(|m| (m.size(), m.mtime(), m.mtime_nsec()))
                .unwrap()
        };
        (of(path.clone()), of(path.with_extension("db-wal")))
    };
    let before = stamp();
    let pool = block_on(open(&path).get::<IpPool>(&ObjectKey::global("p"))).unwrap();
    assert_eq!(marker(&pool.value).len(), 3000);
    assert_eq!(stamp(), before);
    let files: Vec<_> = std::fs::read_dir(path.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(files.len(), 3, "{files:?}");
}
