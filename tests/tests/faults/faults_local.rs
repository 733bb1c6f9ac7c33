//! The plugin on the embedded datastore, with SIGKILL at its system calls, and on failing file
//! systems.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use integration_tests::cluster::{Cluster, Pod, on};
use integration_tests::command::present;
use integration_tests::content::Content;
use integration_tests::journal::journal_entries;
use integration_tests::kernel;
use integration_tests::plugin::CniError;
use integration_tests::skip::skipped;
use integration_tests::store::{Local, Store};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

/// System calls with which SQLite and the journal change files.
const STORAGE: &str = "pwrite64,fsync,fdatasync,ftruncate,unlink,rename,renameat2";
/// System calls with which the dataplane sends netlink messages.
const NETLINK: &str = "sendto,sendmsg";
/// System calls that write sysctls and the result on stdout.
const WRITES: &str = "write";

fn conf(cluster: &Cluster<'_>) -> Value {
    let ipam = json!({ "type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" });
    cluster.conf("node1", json!({ "ipam": ipam }))
}

fn local<'a>(cluster: &'a Cluster<'_>) -> &'a Local {
    match &cluster.store {
        Store::Local(local) => local,
        Store::Etcd(_) | Store::Kubernetes(_) => panic!("not on the embedded datastore"),
    }
}

fn calls(cluster: &Cluster<'_>, verb: &str, pod: &Pod, set: &str) -> usize {
    let trace = cluster.host.dir("strace").join("trace");
    let wrapper = format!(
        "strace -f -qq -o {} -e trace={set} -e signal=none",
        trace.display()
    );
    cluster
        .verb(verb, pod, &conf(cluster))
        .under(&wrapper)
        .run()
        .success();
    let mut by_thread: BTreeMap<String, usize> = BTreeMap::new();
    for line in fs::read_to_string(&trace)
        .unwrap()
        .lines()
        .filter(|line| !line.contains(" resumed>"))
    {
        *by_thread
            .entry(line.split(' ').next().unwrap().to_owned())
            .or_default() += 1;
    }
    let most = by_thread.into_values().max().unwrap_or(0);
    assert!(most > 0, "{verb} makes none of {set}");
    most
}

/// Makes the calls of a runtime after an ADD or DEL, and asserts that no address is leaked and the
/// file is intact.
fn recover(cluster: &Cluster<'_>, pods: &mut usize, pod: &Pod) {
    assert_eq!(local(cluster).integrity().unwrap(), "ok");
    cluster.assert_listed_is_held();
    cluster.delete(pod, &conf(cluster));
    cluster.assert_nothing_left();
    *pods += 1;
    let again = cluster.pod(*pods);
    cluster.add(&again, &conf(cluster));
    assert_eq!(
        cluster.accounts().held.len(),
        2,
        "an address of each family"
    );
    cluster.assert_in_order();
    cluster.delete(&again, &conf(cluster));
    cluster.assert_nothing_left();
    for pod in [pod, &again] {
        cluster.host.delete_pod(&pod.name).unwrap();
    }
}

fn killed_at_each(cluster: &Cluster<'_>, verb: &str, set: &str) {
    if !present("strace") {
        return skipped("strace is not installed");
    }
    cluster.load(&Content::dual_stack());
    // The first ADD makes more calls than later ones, because it creates the block.
    let mut pods = 1;
    let first = cluster.pod(pods);
    recover(cluster, &mut pods, &first);
    pods += 1;
    let pod = cluster.pod(pods);
    if verb == "DEL" {
        cluster.add(&pod, &conf(cluster));
    }
    let most = calls(cluster, verb, &pod, set);
    recover(cluster, &mut pods, &pod);
    let mut killed = 0;
    for n in 1..=most {
        pods += 1;
        let pod = cluster.pod(pods);
        if verb == "DEL" {
            cluster.add(&pod, &conf(cluster));
        }
        let wrapper = format!(
            "strace -f -qq -o /dev/null -e trace={set} -e inject={set}:signal=KILL:when={n}"
        );
        let outcome = cluster
            .verb(verb, &pod, &conf(cluster))
            .under(&wrapper)
            .run();
        killed += usize::from(outcome.exit.is_none());
        recover(cluster, &mut pods, &pod);
    }
    // Not each run makes as many calls.
    assert!(
        killed * 2 >= most,
        "only {killed} of {most} calls were reached"
    );
}

#[on(local)]
fn add_killed_at_each_write_to_the_database_leaks_no_address(cluster: &Cluster<'_>) {
    killed_at_each(cluster, "ADD", STORAGE);
}

#[on(local)]
fn add_killed_at_each_netlink_message_leaks_no_address(cluster: &Cluster<'_>) {
    killed_at_each(cluster, "ADD", NETLINK);
}

#[on(local)]
fn add_killed_at_each_remaining_write_leaks_no_address(cluster: &Cluster<'_>) {
    killed_at_each(cluster, "ADD", WRITES);
}

#[on(local)]
fn del_killed_at_each_write_to_the_database_leaks_no_address(cluster: &Cluster<'_>) {
    killed_at_each(cluster, "DEL", STORAGE);
}

#[on(local)]
fn del_killed_at_each_netlink_message_leaks_no_address(cluster: &Cluster<'_>) {
    killed_at_each(cluster, "DEL", NETLINK);
}

/// Gives a cluster an embedded datastore on a small file system. Returns its directory.
fn small_disk(cluster: &mut Cluster<'_>) -> PathBuf {
    let disk = cluster.host.dir("disk");
    mount(
        Some("tmpfs"),
        &disk,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=2m"),
    )
    .unwrap();
    cluster.store = Store::local_in(disk.clone(), &cluster.plugins);
    cluster.load(&Content::dual_stack());
    disk
}

/// Fills the disk except for `pages` pages.
fn fill(disk: &Path, pages: u64) -> PathBuf {
    let file = disk.join("filler");
    let stat = nix::sys::statvfs::statvfs(disk).unwrap();
    let free = stat.blocks_available().saturating_sub(pages);
    fs::write(
        &file,
        vec![0; usize::try_from(free * stat.fragment_size()).unwrap()],
    )
    .unwrap();
    file
}

#[on(local)]
fn add_on_a_full_disk_names_the_cause_and_leaves_no_interface(cluster: &mut Cluster<'_>) {
    let disk = &small_disk(cluster);
    let mut pods = 0;
    let mut refused = 0;
    for pages in 0..24 {
        let filler = fill(disk, pages);
        pods += 1;
        let pod = cluster.pod(pods);
        let outcome = cluster.verb("ADD", &pod, &conf(cluster)).run();
        if outcome.exit != Some(0) {
            let error: CniError = outcome.error();
            assert!(
                error.msg.contains("disk full"),
                "{pages} free pages: {error:?}"
            );
            assert_eq!(
                kernel::host().unwrap()["links"],
                json!({}),
                "{pages} free pages"
            );
            refused += 1;
        }
        fs::remove_file(filler).unwrap();
        recover(cluster, &mut pods, &pod);
    }
    assert!(
        (1..24).contains(&refused),
        "{refused} of 24 sizes were too small"
    );
}

#[on(local)]
fn del_on_a_full_disk_is_deferred(cluster: &mut Cluster<'_>) {
    let disk = &small_disk(cluster);
    let (mut pods, mut deferred) = (0, 0);
    for pages in [0, 1, 2, 4, 8] {
        pods += 1;
        let pod = cluster.pod(pods);
        cluster.add(&pod, &conf(cluster));
        // The next write needs space for a new log.
        local(cluster).checkpoint().unwrap();
        let filler = fill(disk, pages);
        cluster.verb("DEL", &pod, &conf(cluster)).run().success();
        for entry in journal_entries() {
            let pending_del = fs::read_to_string(entry).unwrap();
            assert!(
                pending_del.contains("disk full"),
                "{pages} free pages: {pending_del}"
            );
            deferred += 1;
        }
        fs::remove_file(filler).unwrap();
        recover(cluster, &mut pods, &pod);
    }
    assert!(deferred > 0, "no size was too small");
}

#[on(local)]
fn add_on_a_read_only_disk_names_the_file(cluster: &mut Cluster<'_>) {
    let disk = &small_disk(cluster);
    let (there, newcomer) = (cluster.pod(1), cluster.pod(2));
    cluster.add(&there, &conf(cluster));
    let remount = |flags| {
        mount(
            None::<&str>,
            disk,
            None::<&str>,
            MsFlags::MS_REMOUNT | flags,
            None::<&str>,
        )
        .unwrap();
    };
    remount(MsFlags::MS_RDONLY);
    let error = cluster.verb("ADD", &newcomer, &conf(cluster)).run().error();
    let said = format!("{} {}", error.msg, error.details);
    assert!(
        said.contains("read-only") && said.contains(&disk.display().to_string()),
        "{error:?}"
    );
    cluster.verb("DEL", &there, &conf(cluster)).run().success();
    assert_eq!(
        (&kernel::host().unwrap()["links"], journal_entries().len()),
        (&json!({}), 1)
    );
    remount(MsFlags::empty());
    let mut pods = 2;
    recover(cluster, &mut pods, &there);
    assert_eq!(journal_entries().len(), 0);
}

#[on(local)]
fn damaged_database_is_named_and_not_overwritten(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    local(cluster).checkpoint().unwrap();
    let path = local(cluster).path().clone();
    let intact = fs::read(&path).unwrap();
    let pod = cluster.pod(1);
    let mut torn = intact.clone();
    torn[100..4096].fill(0xa5);
    let damages: [(&str, Vec<u8>); 3] = [
        (
            "another format",
            b"this is not a database, it is a letter to a friend".repeat(100),
        ),
        ("a first page overwritten", torn),
        ("a file cut short", intact[..intact.len() / 2].to_vec()),
    ];
    for (damage, bytes) in damages {
        for beside in ["-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{beside}", path.display()));
        }
        fs::write(&path, &bytes).unwrap();
        let error = cluster.verb("ADD", &pod, &conf(cluster)).run().error();
        let said = format!("{} {}", error.msg, error.details);
        assert!(
            said.contains(&path.display().to_string()),
            "{damage}: {error:?}"
        );
        assert!(
            said.contains("import") || said.contains("move"),
            "{damage}: no way out in {error:?}"
        );
        assert_eq!(
            fs::read(&path).unwrap(),
            bytes,
            "{damage}: the file was changed"
        );
        assert_eq!(kernel::host().unwrap()["links"], json!({}), "{damage}");
    }
    fs::write(&path, &intact).unwrap();
    cluster.add(&pod, &conf(cluster));
    cluster.delete(&pod, &conf(cluster));
    cluster.assert_nothing_left();
}

#[on(local)]
fn embedded_datastore_file_has_mode_0600(cluster: &Cluster<'_>) {
    cluster.load(&Content::dual_stack());
    let pod = cluster.pod(1);
    cluster.add(&pod, &conf(cluster));
    let directory = local(cluster).path().parent().unwrap();
    let mut files = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with("calico.db") {
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{:?}", entry.file_name());
            files += 1;
        }
    }
    assert!(files > 0, "{}", directory.display());
}
