//! Reads kernel settings and files of the node.

use std::cmp::Reverse;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use ipam_plugin::journal::{Journal, PendingDel, short_age};
use libcalico::names::interface_prefix;
use netconf::NetConf;

use super::{cache, locks};
use crate::doctor::snapshot::{Cache, Lock, Observed, SETTINGS, Setting, Unobserved};
use crate::host_network::HostNetwork;
use crate::layout::Layout;
use crate::mtu;

/// Reads the relevant kernel settings.
pub(super) fn read_settings() -> Vec<Setting> {
    let value = |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok();
    SETTINGS.map(|name| Setting { name, value: value(name).map(|text| text.trim().to_owned()) }).into()
}

/// Observes the IPAM lock and the lock of the journal.
pub(super) async fn observe_locks(conf: Option<&NetConf>, layout: &Layout) -> Vec<Lock> {
    let mut locks = Vec::new();
    if let Some(conf) = conf {
        locks.push(locks::observe("IPAM lock", Path::new(&conf.node.ipam_lock_file)).await);
    }
    locks.push(locks::observe("journal lock", &layout.journal_lock()).await);
    locks
}

/// Reads the MTU file. Returns `None` if it is missing.
pub(super) fn read_mtu_file(layout: &Layout) -> Observed<Option<String>> {
    match fs::read(layout.state_dir().join(mtu::NAME)) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Unobserved::new(error)),
    }
}

/// Returns descriptions of the deferred DELs, oldest first.
pub(super) fn read_journal(layout: &Layout) -> Observed<Vec<String>> {
    let refused = |error| Unobserved::new(format!("{}: {error}", layout.journal_dir().display()));
    let mut pending_dels = Vec::new();
    for entry in Journal::new(layout.journal_dir()).entries().map_err(refused)? {
        match entry.pending_del {
            Ok(pending_del) => {
                pending_dels.push((pending_del.age(entry.touched), describe(&pending_del, entry.touched)))
            }
            Err(error) => {
                pending_dels.push((Duration::MAX, format!("{} cannot be read: {error}", entry.path.display())))
            }
        }
    }
    pending_dels.sort_by_key(|(age, _)| Reverse(*age));
    Ok(pending_dels.into_iter().map(|(_, words)| words).collect())
}

fn describe(pending_del: &PendingDel, touched: SystemTime) -> String {
    let age = short_age(pending_del.age(touched));
    let reason =
        if pending_del.reason.is_empty() { String::new() } else { format!(" because of: {}", pending_del.reason) };
    format!("{} owes {} for {age}{reason}", pending_del.workload(), pending_del.datastore)
}

/// Reads libcni's cache and compares it with the kernel's interfaces.
pub(super) fn read_cache(layout: &Layout, network: &dyn HostNetwork) -> Observed<Option<Cache>> {
    let interfaces: Vec<String> = network.interfaces()?.into_iter().map(|interface| interface.name).collect();
    let prefixes = std::env::var("FELIX_INTERFACEPREFIX").ok();
    let directory = layout.path(cache::DIRECTORY);
    let cache = cache::read(&directory, interface_prefix(prefixes.as_deref()), &interfaces)?;
    // In a container a missing directory only shows that it is not mounted.
    if cache.is_none() && layout.is_container() {
        return Err(Unobserved::new(format!(
            "{} is not seen from here: it is not mounted into this container",
            directory.display()
        )));
    }
    Ok(cache)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_network::testing::FixedNetwork;

    #[test]
    fn what_cannot_be_read_is_not_taken_for_absent() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        assert_eq!((read_mtu_file(&layout), read_journal(&layout)), (Ok(None), Ok(Vec::new())));
        fs::create_dir_all(layout.state_dir().join(mtu::NAME)).unwrap();
        fs::write(layout.journal_dir(), "").unwrap();
        assert!(read_mtu_file(&layout).unwrap_err().to_string().contains("directory"));
        assert!(read_journal(&layout).unwrap_err().to_string().contains("cni-journal: "));
    }

    #[test]
    fn a_cache_that_is_not_mounted_is_not_an_empty_one() {
        let root = tempfile::tempdir().unwrap();
        let look = || read_cache(&Layout::below(root.path()), &FixedNetwork::default());
        assert_eq!(look(), Ok(None));
        fs::create_dir(root.path().join("host")).unwrap();
        assert!(look().unwrap_err().to_string().contains("/var/lib/cni/results is not seen from here"));
        fs::create_dir_all(root.path().join("var/lib/cni/results")).unwrap();
        assert!(look().unwrap().is_some());
    }

    #[test]
    fn this_machine_can_be_looked_at() {
        assert!(read_settings().iter().any(|setting| setting.value.is_some()));
    }
}
