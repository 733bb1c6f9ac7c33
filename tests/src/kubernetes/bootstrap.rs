//! The objects that an API server creates when it starts on an empty etcd. The first server of a process creates them;
//! the next ones find them in their etcd, and so need a third less of processor time until they are ready.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::Result;

use crate::etcd::Etcd;

/// The resources of these objects. They are the same in each cluster: they have no certificate, lease or address.
const RESOURCES: [&str; 8] = [
    "apiregistration.k8s.io/apiservices",
    "clusterrolebindings",
    "clusterroles",
    "flowschemas",
    "priorityclasses",
    "prioritylevelconfigurations",
    "rolebindings",
    "roles",
];

/// The objects as the first server stored them, by their keys.
static OBJECTS: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();

/// Writes the objects of an earlier server into an empty etcd. Without an earlier server, writes nothing.
pub(super) fn load(etcd: &Etcd) -> Result<()> {
    OBJECTS.get().map_or(Ok(()), |objects| etcd.load_raw(objects))
}

/// Reads the objects of a server that is ready and was not changed, unless an earlier call did so.
pub(super) fn keep(etcd: &Etcd) -> Result<()> {
    if OBJECTS.get().is_none() {
        let mut objects = etcd.dump_raw()?;
        objects.retain(|key, _| is_same_everywhere(key));
        // Another thread may have stored the objects of its server first.
        let _ = OBJECTS.set(objects);
    }
    Ok(())
}

fn is_same_everywhere(key: &str) -> bool {
    let path = key.strip_prefix(crate::etcd::REGISTRY).unwrap_or_default();
    RESOURCES.iter().any(|resource| path.strip_prefix(resource).is_some_and(|rest| rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_a_single_cluster_are_not_kept() {
        assert!(is_same_everywhere("/registry/clusterroles/admin"));
        assert!(is_same_everywhere("/registry/roles/kube-system/extension-apiserver-authentication-reader"));
        for key in ["/registry/configmaps/kube-system/extension-apiserver-authentication", "/calico/roles/a"] {
            assert!(!is_same_everywhere(key), "{key}");
        }
    }
}
