//! Reads kernel settings, files and locks of the node, and libcni's cache.
//!
//! The cache has a file for each ADD, which the DEL removes (INST-183).

use std::cmp::Reverse;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use allocation::journal::{Journal, PendingDel, short_age};
use netconf::NetConf;
use nix::sys::stat::{major, minor};
use os::atomic_file::regular_file;
use serde::Deserialize;
use tokio::time::sleep;

use crate::snapshot::{Cache, Lock, LockHolder, Observed, SETTINGS, Unobserved};
use dataplane::host_network::{HostNetwork, pod_interface_prefix};
use installation::layout::Layout;
use installation::mtu;

pub(super) fn read_settings() -> Vec<(&'static str, Option<String>)> {
    let value =
        |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok();
    SETTINGS
        .map(|name| (name, value(name).map(|text| text.trim().to_owned())))
        .into()
}

/// Observes the locks. The IPAM lock is known only with a configuration.
pub(super) async fn observe_locks(conf: Option<&NetConf>, layout: &Layout) -> Vec<Lock> {
    let mut locks = Vec::new();
    if let Some(conf) = conf {
        locks.push(observe_lock("IPAM lock", Path::new(&conf.node.ipam_lock_file)).await);
    }
    locks.push(observe_lock("journal lock", &layout.journal_lock()).await);
    locks
}

pub(super) fn read_nodename_file(path: &str) -> Observed<Option<String>> {
    match regular_file::utf8(Path::new(path)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Unobserved::new(error)),
    }
}

pub(super) fn read_mtu_file(layout: &Layout) -> Observed<Option<String>> {
    match regular_file::contents(&layout.state_dir().join(mtu::NAME)) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Unobserved::new(error)),
    }
}

/// Returns descriptions of the deferred DELs, oldest first, after the entries that cannot be read.
pub(super) fn read_journal(layout: &Layout) -> Observed<Vec<String>> {
    let refused = |error| Unobserved::new(format!("{}: {error}", layout.journal_dir().display()));
    let mut pending_dels = Vec::new();
    for entry in Journal::new(layout.journal_dir())
        .entries()
        .map_err(refused)?
    {
        pending_dels.push(match entry.pending_del {
            Ok(pending_del) => (
                pending_del.age(entry.modified, SystemTime::now()),
                describe(&pending_del, entry.modified),
            ),
            Err(error) => (
                Duration::MAX,
                format!("{} cannot be read: {error}", entry.path.display()),
            ),
        });
    }
    pending_dels.sort_by_key(|(age, _)| Reverse(*age));
    Ok(pending_dels.into_iter().map(|(_, words)| words).collect())
}

fn describe(del: &PendingDel, modified: SystemTime) -> String {
    let age = short_age(del.age(modified, SystemTime::now()));
    let reason = if del.reason.is_empty() {
        String::new()
    } else {
        format!(" because of: {}", del.reason)
    };
    format!("{} in {} for {age}{reason}", del.workload(), del.datastore)
}

/// Returns libcni's cache, or `None` on a node without it.
pub(super) fn read_cache(layout: &Layout, network: &dyn HostNetwork) -> Observed<Option<Cache>> {
    let interfaces = network.interfaces().map_err(Unobserved::new)?;
    let interfaces: Vec<String> = interfaces
        .into_iter()
        .map(|interface| interface.name)
        .collect();
    let directory = layout.path(CACHE);
    let cache = read_results(&directory, &pod_interface_prefix(), &interfaces)?;
    // A container that does not mount the directory cannot see it.
    if cache.is_none() && layout.is_container() {
        return Err(Unobserved::new(format!(
            "{} is not mounted in this container",
            directory.display()
        )));
    }
    Ok(cache)
}

const CACHE: &str = "/var/lib/cni/results";

/// Counts the results with an interface of Calico's, and lists those whose interface no longer
/// exists in the kernel.
fn read_results(directory: &Path, prefix: &str, interfaces: &[String]) -> Observed<Option<Cache>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Unobserved::new(format!("{}: {error}", directory.display()))),
    };
    let mut cache = Cache {
        directory: directory.to_owned(),
        results: 0,
        stale: Vec::new(),
    };
    for entry in entries.flatten() {
        let Some(interface) = host_interface(&entry.path()).filter(|name| name.starts_with(prefix))
        else {
            continue;
        };
        cache.results += 1;
        if !interfaces.contains(&interface) {
            cache
                .stale
                .push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    cache.stale.sort();
    Ok(Some(cache))
}

#[derive(Deserialize)]
struct Cached {
    #[serde(default)]
    result: CachedResult,
}

#[derive(Default, Deserialize)]
struct CachedResult {
    #[serde(default)]
    interfaces: Vec<CachedInterface>,
}

#[derive(Deserialize)]
struct CachedInterface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

/// Returns the first interface in a cached result that is not in a sandbox.
fn host_interface(path: &Path) -> Option<String> {
    let cached: Cached = serde_json::from_slice(&regular_file::contents(path).ok()?).ok()?;
    let mut interfaces = cached.result.interfaces.into_iter();
    interfaces
        .find(|interface| interface.sandbox.is_empty())
        .map(|interface| interface.name)
}

/// Time for which a held lock is observed. An ADD holds the IPAM lock while it waits for the
/// datastore.
const OBSERVATION_TIME: Duration = Duration::from_secs(3);
const OBSERVATIONS: u32 = 30;

/// Observes a lock for at most [`OBSERVATION_TIME`].
async fn observe_lock(name: &'static str, path: &Path) -> Lock {
    let holder = wait(path).await.map_err(Unobserved::new);
    Lock {
        name,
        path: path.to_owned(),
        holder,
    }
}

/// Returns the process that held the lock in all observations.
async fn wait(path: &Path) -> io::Result<Option<LockHolder>> {
    let mut holder = observe_once(path)?;
    let first = holder.clone();
    for _ in 0..OBSERVATIONS {
        if holder.is_none() || holder != first {
            return Ok(None);
        }
        sleep(OBSERVATION_TIME / OBSERVATIONS).await;
        holder = observe_once(path)?;
    }
    Ok(holder)
}

/// Returns the holder of the lock, or `None` if the lock is free or its file is missing.
fn observe_once(path: &Path) -> io::Result<Option<LockHolder>> {
    let file = match File::options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock() {
        Ok(()) => return Ok(None),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let found = file.metadata()?;
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let process = find_process(&locks, major(found.dev()), minor(found.dev()), found.ino());
    Ok(Some(LockHolder {
        command: process.map(command).unwrap_or_default(),
        process,
    }))
}

/// Returns the ID of the process that holds a lock, from lines such as
/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF`. A line of a waiting process has an arrow after
/// the first number.
fn find_process(locks: &str, major: u64, minor: u64, inode: u64) -> Option<u32> {
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, "FLOCK", _, _, process, file, ..] = fields[..] else {
            return None;
        };
        let mut file = file.split(':');
        let (at_major, at_minor, at_inode) = (file.next()?, file.next()?, file.next()?);
        let device = (
            u64::from_str_radix(at_major, 16).ok()?,
            u64::from_str_radix(at_minor, 16).ok()?,
        );
        (device == (major, minor) && at_inode.parse() == Ok(inode)).then(|| process.parse().ok())?
    };
    locks.lines().find_map(of)
}

/// Returns the command line of a process, or else its name.
fn command(process: u32) -> String {
    let read = |name: &str| fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
    let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
    let line = if line.trim().is_empty() {
        String::from_utf8_lossy(&read("comm")).into_owned()
    } else {
        line
    };
    line.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use dataplane::host_network::testing::FixedNetwork;

    #[test]
    fn unreadable_node_files_are_not_reported_as_absent() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        assert_eq!(
            (read_mtu_file(&layout), read_journal(&layout)),
            (Ok(None), Ok(Vec::new()))
        );
        fs::create_dir_all(layout.state_dir().join(mtu::NAME)).unwrap();
        fs::write(layout.journal_dir(), "").unwrap();
        assert!(
            read_mtu_file(&layout)
                .unwrap_err()
                .to_string()
                .contains("no regular file")
        );
        assert!(
            read_journal(&layout)
                .unwrap_err()
                .to_string()
                .contains("cni-journal: ")
        );
        let nodename =
            |name: &str| read_nodename_file(layout.state_dir().join(name).to_str().unwrap());
        assert_eq!(nodename("nodename"), Ok(None));
        fs::create_dir(layout.state_dir().join("nodename")).unwrap();
        assert!(
            nodename("nodename")
                .unwrap_err()
                .to_string()
                .contains("no regular file")
        );
    }

    #[test]
    fn unmounted_cni_cache_is_not_reported_as_empty() {
        let root = tempfile::tempdir().unwrap();
        let look = || read_cache(&Layout::below(root.path()), &FixedNetwork::default());
        assert_eq!(look(), Ok(None));
        fs::create_dir(root.path().join("host")).unwrap();
        assert!(
            look()
                .unwrap_err()
                .to_string()
                .contains("/var/lib/cni/results is not mounted in this container")
        );
        fs::create_dir_all(root.path().join("var/lib/cni/results")).unwrap();
        assert!(look().unwrap().is_some());
    }

    #[test]
    fn kernel_settings_of_the_test_host_are_readable() {
        let settings: BTreeMap<_, _> = read_settings().into_iter().collect();
        assert_eq!(settings.len(), SETTINGS.len());
        for (name, value) in &settings {
            let file = Path::new("/proc/sys").join(name.replace('.', "/"));
            assert_eq!(value.is_some(), file.exists(), "{name}");
        }
        let forwarding = fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
        assert_eq!(
            settings["net.ipv4.ip_forward"].as_deref(),
            Some(forwarding.trim_end()),
            "{settings:?}"
        );
    }

    #[test]
    fn stale_results_of_calico_are_found_and_foreign_results_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let keep = |name: &str, interface: &str| {
            let result = json!({ "interfaces": [
                { "name": interface }, { "name": "eth0", "sandbox": "/run/netns/x" },
            ]});
            let text =
                json!({ "kind": "cniCacheV1", "config": "e30=", "result": result }).to_string();
            fs::write(directory.path().join(name), text).unwrap();
        };
        keep("net-a-eth0", "cali1");
        keep("net-b-eth0", "cali2");
        keep("other-c-eth0", "veth3");
        fs::write(directory.path().join("nonsense"), "{").unwrap();
        fs::write(
            directory.path().join("cni-loopback-a-lo"),
            r#"{"result":{"interfaces":[{"name":"lo","sandbox":"/x"}]}}"#,
        )
        .unwrap();
        let cache = read_results(directory.path(), "cali", &["cali2".into()])
            .unwrap()
            .unwrap();
        assert_eq!(
            (cache.results, cache.stale),
            (2, vec!["net-a-eth0".to_owned()])
        );
        assert_eq!(
            read_results(&directory.path().join("gone"), "cali", &[]),
            Ok(None)
        );
        let error = read_results(&directory.path().join("nonsense"), "cali", &[]).unwrap_err();
        assert!(error.to_string().contains("nonsense: "), "{error}");
    }

    #[test]
    fn lock_holder_is_found_by_device_and_inode_ignoring_waiters() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 08:01:1234 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 11 00:1a:1234 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 12 08:01:1234 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 08:01:1234 0 EOF\n";
        assert_eq!(find_process(locks, 8, 1, 1234), Some(13));
        assert_eq!(find_process(locks, 0, 26, 1234), Some(11));
        assert_eq!(find_process(locks, 8, 1, 1), None);
        assert_eq!(find_process("nonsense\n1: FLOCK a b c d\n", 8, 1, 1), None);
    }

    #[test]
    fn locked_file_has_a_holder_and_an_unlocked_file_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ipam.lock");
        assert_eq!(observe_once(&path).unwrap(), None);
        assert!(!path.exists(), "to look for it is not to make it");
        let file = File::create(&path).unwrap();
        assert_eq!(observe_once(&path).unwrap(), None);
        file.lock().unwrap();
        let holder = observe_once(&path).unwrap().unwrap();
        assert_eq!(holder.process, Some(std::process::id()));
        assert!(holder.command.contains("doctor"), "{}", holder.command);
    }

    /// A path through a file cannot be opened, not even by root.
    #[tokio::test]
    async fn unopenable_lock_is_not_reported_as_free() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = observe_lock("x", &file.path().join("lock")).await;
        assert!(
            lock.holder
                .unwrap_err()
                .to_string()
                .contains("Not a directory")
        );
    }
}
