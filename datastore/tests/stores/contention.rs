//! Many processes on one datastore: no write is lost, and concurrent initialization of a new
//! datastore succeeds.

use std::io::{BufRead, BufReader, Write as _, stdout};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::harness::{Fixture, block_on, marker, pool, worker_arguments};
use datastore::{Datastore, DatastoreConfig, DatastoreSettings};
use libcalico::api::{ClusterInformation, IpPool, ObjectKey, ObjectSelect, Tier};
use libcalico::store::{Store, StoreError, Write};
use libcalico::variables::Variables;

const PROCESSES: usize = 8;
const INCREMENTS: usize = 200;
const KILLS: u64 = 40;
/// The line that a worker prints after its first write.
const FIRST_WRITE: &str = "the first write is done";

fn start(worker: &str, config: &DatastoreConfig) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(worker_arguments(module_path!(), worker))
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    match config {
        DatastoreConfig::Etcd(etcd) => {
            command.env("CALICO_ETCD_ENDPOINTS", etcd.endpoints.join(","))
        }
        DatastoreConfig::Local(local) => command.env("CALICO_DATASTORE_PATH", &local.path),
        DatastoreConfig::Kubernetes(_) => unreachable!("no fixture of this file"),
    };
    command.spawn().unwrap()
}

/// Checks that the worker ran one test. A worker whose name no test has would succeed without doing
/// anything.
fn finish(worker: Child) {
    let output = worker.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && report.contains("1 passed"),
        "{report}"
    );
}

fn open_from_environment() -> Datastore {
    let lookup = |name: &str| std::env::var(name).ok();
    let config =
        DatastoreConfig::new(&DatastoreSettings::default(), Variables::new(&lookup)).unwrap();
    Datastore::open(&config).unwrap()
}

async fn increment(store: &Datastore, key: &ObjectKey) {
    loop {
        let entry = store.get::<IpPool>(key).await.unwrap();
        let next: u64 = marker(&entry.value).parse::<u64>().unwrap() + 1;
        match store
            .update(key, &pool(&key.name, &next.to_string()).1, &entry.revision)
            .await
        {
            Ok(_) => return,
            Err(StoreError::Conflict { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
#[ignore = "run by increments_are_not_lost as a process of its own"]
fn worker_increments_the_counter() {
    block_on(async {
        let store = open_from_environment();
        for _ in 0..INCREMENTS {
            increment(&store, &ObjectKey::global("counter")).await;
        }
    });
}

fn increments_are_not_lost(fixture: &Fixture) {
    let (key, zero) = pool("counter", "0");
    block_on(fixture.open().create(&key, &zero)).unwrap();
    let workers: Vec<Child> = (0..PROCESSES)
        .map(|_| start("worker_increments_the_counter", &fixture.config))
        .collect();
    workers.into_iter().for_each(finish);
    let end = block_on(fixture.open().get::<IpPool>(&key)).unwrap();
    assert_eq!(marker(&end.value), (PROCESSES * INCREMENTS).to_string());
}

#[test]
fn concurrent_increments_on_etcd_are_not_lost() {
    increments_are_not_lost(&Fixture::own_etcd());
}

#[test]
fn concurrent_increments_on_local_are_not_lost() {
    increments_are_not_lost(&Fixture::local());
}

#[test]
#[ignore = "run by concurrent_first_opens_initialize_the_datastore_once as a process of its own"]
fn worker_opens_an_initialized_datastore() {
    block_on(async {
        let store = open_from_environment();
        let cluster = store
            .get::<ClusterInformation>(&ObjectKey::global("default"))
            .await
            .unwrap();
        assert_eq!(cluster.value.spec.datastore_ready, Some(true));
        assert_eq!(
            store
                .list::<Tier>(&ObjectSelect::default())
                .await
                .unwrap()
                .len(),
            3
        );
    });
}

#[test]
fn concurrent_first_opens_initialize_the_datastore_once() {
    for _ in 0..10 {
        let fixture = Fixture::local();
        let workers: Vec<Child> = (0..PROCESSES)
            .map(|_| start("worker_opens_an_initialized_datastore", &fixture.config))
            .collect();
        workers.into_iter().for_each(finish);
        let tiers = block_on(fixture.open().scan("/calico/")).unwrap();
        assert!(
            tiers.iter().all(|pair| pair.revision.0 == "1"),
            "filled once: {tiers:?}"
        );
    }
}

#[test]
#[ignore = "run by killed_writer_leaves_complete_transactions_only as a process of its own"]
fn worker_writes_pairs_until_killed() {
    block_on(async {
        let store = open_from_environment();
        increment_both(&store, 0).await;
        writeln!(stdout(), "{FIRST_WRITE}").unwrap();
        for n in 1.. {
            increment_both(&store, n).await;
        }
    });
}

async fn increment_both(store: &Datastore, round: u64) {
    let left = store
        .get::<IpPool>(&ObjectKey::global("left"))
        .await
        .unwrap();
    let right = store
        .get::<IpPool>(&ObjectKey::global("right"))
        .await
        .unwrap();
    let value = format!("{round}-{}", "x".repeat(3000));
    let writes = [
        Write::update(&left.key, &pool("left", &value).1, &left.revision).unwrap(),
        Write::update(&right.key, &pool("right", &value).1, &right.revision).unwrap(),
    ];
    store.write(&writes).await.unwrap();
}

fn await_first_write(worker: &mut Child) {
    let mut lines = BufReader::new(worker.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(
        lines.any(|line| line.ends_with(FIRST_WRITE)),
        "the writer ended before its first write"
    );
}

#[test]
fn killed_writer_leaves_complete_transactions_only() {
    let fixture = Fixture::local();
    let DatastoreConfig::Local(local) = &fixture.config else {
        unreachable!()
    };
    let pair = ["left", "right"]
        .map(|name| pool(name, "start"))
        .map(|(key, value)| Write::create(&key, &value).unwrap());
    block_on(fixture.open().write(&pair)).unwrap();
    let mut revisions = std::collections::HashSet::new();
    for round in 0..KILLS {
        let mut worker = start("worker_writes_pairs_until_killed", &fixture.config);
        // Half of the processes are killed in their loop. The others are killed anywhere from their
        // start, which on a slow machine is before their first write.
        if round % 2 == 0 {
            await_first_write(&mut worker);
        }
        sleep(Duration::from_micros(3_000 + round * 1_370));
        worker.kill().unwrap();
        worker.wait().unwrap();
        let store = fixture.open();
        let pools = block_on(store.list::<IpPool>(&ObjectSelect::default())).unwrap();
        assert_eq!(marker(&pools[0].value), marker(&pools[1].value));
        assert_eq!(pools[0].revision, pools[1].revision);
        revisions.insert(pools[0].revision.clone());
    }
    assert!(
        revisions.len() as u64 >= KILLS / 2,
        "the writers did not get to write: {}",
        revisions.len()
    );
    assert_eq!(integrity(&local.path), "ok");
}

fn integrity(path: &Path) -> String {
    let output = Command::new("sqlite3")
        .arg(path)
        .arg("PRAGMA integrity_check")
        .output()
        .expect("sqlite3 runs");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn local_file_is_readable_with_sqlite3_and_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::local();
    let DatastoreConfig::Local(local) = &fixture.config else {
        unreachable!()
    };
    let store = fixture.open();
    let (key, value) = pool("readable", "x");
    block_on(store.create(&key, &value)).unwrap();
    let query = "SELECT json_extract(value, '$.metadata.name') FROM kv WHERE path LIKE \
                 '%/ippools/readable'";
    let output = Command::new("sqlite3")
        .arg(&local.path)
        .arg(query)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "readable\n");
    for suffix in ["", "-wal", "-shm"] {
        let file = format!("{}{suffix}", local.path.display());
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{file}");
    }
}
