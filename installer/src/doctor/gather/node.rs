//! Kernel and files.

use std::fs;
use std::path::Path;

use libcalico::names::interface_prefix;
use netconf::NetConf;

use super::{cache, locks};
use crate::doctor::facts::{Cache, Lock, SETTINGS, Setting};
use crate::host_network::HostNetwork;
use crate::journal;
use crate::layout::Layout;

/// The kernel settings that matter, as they are.
pub(super) fn settings() -> Vec<Setting> {
    let value = |name: &str| fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok();
    SETTINGS.map(|name| Setting { name, value: value(name).map(|text| text.trim().to_owned()) }).into()
}

/// The lock of addresses, and that of the journal.
pub(super) async fn locks(conf: Option<&NetConf>, layout: &Layout) -> Vec<Lock> {
    let mut locks = Vec::new();
    if let Some(conf) = conf {
        locks.push(locks::look("IPAM lock", Path::new(&conf.node.ipam_lock_file)).await);
    }
    locks.push(locks::look("journal lock", &journal::directory(layout).join("lock")).await);
    locks
}

/// What libcni keeps, and whether the interfaces are there.
pub(super) fn cache(layout: &Layout, network: &dyn HostNetwork) -> Result<Option<Cache>, String> {
    let interfaces: Vec<String> = network.interfaces()?.into_iter().map(|interface| interface.name).collect();
    let prefixes = std::env::var("FELIX_INTERFACEPREFIX").ok();
    cache::look(&layout.path(cache::DIRECTORY), interface_prefix(prefixes.as_deref()), &interfaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_looked_at() {
        assert!(settings().iter().any(|setting| setting.value.is_some()));
    }
}
