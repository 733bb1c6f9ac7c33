//! Observations that only etcd has: TLS files, users and roles.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use datastore::Datastore;
use libcalico::api::{ClusterInformation, IpPool, Node, ObjectKey, WorkloadEndpoint};
use libcalico::ipam::{AffinityKey, Block, BlockAffinity, Handle, HandleId, Owner};
use libcalico::net::Cidr;
use libcalico::store::{Kind, Revision, Store, StoreError, Write, WriteOp};
use netconf::NetConf;

use crate::doctor::role::Permission;
use crate::doctor::snapshot::{Granted, Observed, TlsFile, Unobserved};

/// A revision that no object ever has.
const NEVER: &str = "9223372036854775807";

/// A block in no pool. The range is reserved for documentation (RFC 5737).
const NO_BLOCK: &str = "192.0.2.0/26";

/// Returns the TLS files that the configuration names.
pub(super) fn tls_files(conf: &NetConf) -> Vec<TlsFile> {
    let datastore = &conf.datastore;
    let named = [
        ("etcd_ca_cert_file", &datastore.etcd_ca_cert_file, "CERTIFICATE-----"),
        ("etcd_cert_file", &datastore.etcd_cert_file, "CERTIFICATE-----"),
        ("etcd_key_file", &datastore.etcd_key_file, "PRIVATE KEY-----"),
    ];
    let named = named.into_iter().filter(|(_, path, _)| !path.is_empty());
    named.map(|(setting, path, label)| TlsFile { setting, path: path.into(), mode: read_mode(path, label) }).collect()
}

fn read_mode(path: &str, label: &str) -> Observed<u32> {
    let read = fs::metadata(path).and_then(|found| Ok((found.permissions().mode() & 0o7777, fs::read(path)?)));
    let (mode, text) = read.map_err(Unobserved::new)?;
    let is_start = |line: &str| line.starts_with("-----BEGIN ") && line.ends_with(label);
    if String::from_utf8_lossy(&text).lines().any(is_start) {
        return Ok(mode);
    }
    Err(Unobserved::new(format!("there is no {} in it", label.trim_end_matches('-'))))
}

/// Returns true if etcd itself sent this error. Other errors come from the TLS handshake, before etcd got a request.
pub(super) fn is_answer(refusal: &str) -> bool {
    refusal.contains("etcdserver: ")
}

/// Tests the permissions that the plugins need in etcd. etcd checks the permission of each write in a transaction
/// before it evaluates the condition. The conditions used here never hold, so nothing is written.
pub(super) async fn test_permissions(store: &Datastore, node: &str) -> Vec<Granted> {
    let global = |name: &str| ObjectKey::global(name);
    let mut granted = vec![
        reads::<ClusterInformation>(store, &global("default")).await,
        reads::<IpPool>(store, &global("calico-doctor")).await,
        reads::<Node>(store, &global(if node.is_empty() { "calico-doctor" } else { node })).await,
    ];
    let Ok(block) = NO_BLOCK.parse::<Cidr>() else { return granted };
    let owner = Owner::Host(if node.is_empty() { "calico-doctor".into() } else { node.to_owned() });
    let endpoint = ObjectKey::namespaced("default", "calico--doctor-cni-none-eth0");
    for (kind, path) in [
        (Block::KIND, Block::path(&block)),
        (BlockAffinity::KIND, BlockAffinity::path(&AffinityKey { owner, cidr: block })),
        (Handle::KIND, Handle::path(&HandleId::new("calico-doctor"))),
        (WorkloadEndpoint::KIND, WorkloadEndpoint::path(&endpoint)),
    ] {
        let op = WriteOp::Update(b"{}".to_vec(), Revision(NEVER.into()));
        let write = Write { kind, key: format!("{kind}(calico-doctor)"), path, op };
        let allowed = is_permitted(store.write_one(write).await.map(drop));
        granted.push(Granted { permission: permission("write", kind), allowed });
    }
    granted
}

fn permission(verb: &str, resource: &str) -> Permission {
    Permission { group: String::new(), resource: resource.to_owned(), verb: verb.to_owned() }
}

async fn reads<K: Kind>(store: &Datastore, key: &K::Key) -> Granted {
    let allowed = is_permitted(store.get::<K>(key).await.map(drop));
    Granted { permission: permission("read", K::KIND), allowed }
}

/// Converts the outcome of a request. A missing object or a conflict shows that the request was permitted.
fn is_permitted(outcome: Result<(), StoreError>) -> Observed<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(StoreError::Unauthorized { .. }) => Ok(false),
        Err(error) if error.is_race() => Ok(true),
        Err(error) => Err(Unobserved::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn files_are_there_readable_and_hold_what_they_should() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let key = file("key", "-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----\n", 0o600);
        let certificate = file("cert", "words\n-----BEGIN CERTIFICATE-----\nx\n", 0o644);
        let mut conf = NetConf::default();
        conf.datastore.etcd_ca_cert_file = directory.path().join("gone").display().to_string();
        conf.datastore.etcd_cert_file = key.clone();
        conf.datastore.etcd_key_file = key;
        let found = tls_files(&conf);
        assert!(found[0].mode.as_ref().unwrap_err().to_string().contains("No such file"), "{found:?}");
        assert_eq!(found[1].mode, Err("there is no CERTIFICATE in it".into()));
        assert_eq!(found[2].mode, Ok(0o600));
        conf.datastore.etcd_cert_file = certificate.clone();
        conf.datastore.etcd_key_file = certificate;
        let found = tls_files(&conf);
        assert_eq!(found[1].mode, Ok(0o644));
        assert_eq!(found[2].mode, Err("there is no PRIVATE KEY in it".into()));
        assert!(tls_files(&NetConf::default()).is_empty());
    }
}
