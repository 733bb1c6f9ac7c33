//! Control planes that the tests of a process use one after another: the start of one takes more
//! processor time than most tests.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{ApiServer, Kubernetes, installed};
use crate::command::{ip, ip_json, run};
use crate::controllers::await_that;
use crate::etcd::Etcd;
use crate::namespaces::{Host, Neighbor, isolated};

/// Maximum number of control planes that wait for a test. Each needs some hundred megabytes of
/// memory.
const MOST_IDLE: usize = 2;

/// Timeout until the links of a test are deleted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Directories of the servers, which a test on a shared control plane finds as on its own one.
const DIRECTORIES: [&str; 2] = ["etcd", "kube-apiserver"];

/// Maximum size of the audit log of a shared API server in bytes. The log is in memory.
const LARGEST_LOG: u64 = 256 << 20;

/// Keys that the API server writes by itself at any time, and beginnings of such keys. They are not
/// compared, so a test that changes an APIService must not share a control plane unless it also
/// changes a definition.
const OF_SERVER: [&str; 9] = [
    "/registry/apiregistration.k8s.io/",
    "/registry/configmaps/kube-system/extension-apiserver-authentication",
    "/registry/configmaps/kube-system/kube-apiserver-legacy-service-account-token-tracking",
    "/registry/ipaddresses/10.96.0.1",
    "/registry/leases/kube-system/apiserver-",
    "/registry/peerserverleases/",
    "/registry/ranges/",
    "/registry/servicecidrs/",
    "/registry/services/specs/default/kubernetes",
];

/// Keys whose values contain a status that the API server writes at any time.
const WITH_STATUS: [&str; 2] = [
    "/registry/flowschemas/",
    "/registry/prioritylevelconfigurations/",
];

/// Keys that tests change or delete, and get their former values again.
const RESTORED: [&str; 2] = ["/registry/minions/", "/registry/namespaces/"];

/// Keys that tests create. They are deleted unless the preparation has created them.
const OF_TESTS: [&str; 19] = [
    "/calico/",
    "/registry/configmaps/",
    "/registry/crd.projectcalico.org/",
    "/registry/daemonsets/",
    "/registry/deployments/",
    "/registry/endpointslices/",
    "/registry/events/",
    "/registry/ipaddresses/",
    "/registry/kubevirt.io/",
    "/registry/leases/",
    "/registry/migration.projectcalico.org/",
    "/registry/minions/",
    "/registry/namespaces/",
    "/registry/networkpolicies/",
    "/registry/pods/",
    "/registry/projectcalico.org/",
    "/registry/serviceaccounts/",
    "/registry/services/endpoints/",
    "/registry/services/specs/",
];

/// The control planes that wait for a test, the one that has waited longest first.
static IDLE: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

/// A control plane on a host of its own.
struct Shared {
    preparation: String,
    servers: Kubernetes,
    prepared: Prepared,
    host: Arc<Neighbor>,
    /// The thread that started the servers ends once this is dropped.
    _keeper: mpsc::Sender<()>,
}

/// The state after the preparation, to which [`Shared::restore`] returns.
struct Prepared {
    /// The process IDs of the servers.
    pids: [Option<u32>; 2],
    content: EtcdContent,
    /// The addresses, routes and rules of the host.
    network: Vec<String>,
}

/// The content of an etcd.
struct EtcdContent {
    /// The revision of the last write of each key, or 0 if the key is one of [`WITH_STATUS`].
    revisions: BTreeMap<String, u64>,
    /// The values of the keys [`RESTORED`].
    restored: BTreeMap<String, Vec<u8>>,
}

/// Runs a test as [`on_kubernetes`](super::on_kubernetes) does, on a control plane that `prepare`
/// has changed. `preparation` names what `prepare` does.
///
/// An earlier test of the process with the same preparation may have used the control plane. What
/// tests usually create is deleted after each of them, and the host has neither links nor pods nor
/// files of another test. If anything else has changed, for example a definition or a permission,
/// or if a test fails or starts a server again, no other test uses the control plane. Kernel
/// settings of the host are not compared: a test that changes them needs its own host.
pub fn on_prepared_kubernetes(
    preparation: &str,
    prepare: impl FnOnce(&ApiServer) -> Result<()> + Send + 'static,
    test: impl FnOnce(&Host, &mut Kubernetes) + Send,
) {
    if !installed() {
        return;
    }
    isolated(|host| {
        let idle = take(preparation);
        let mut shared = idle.unwrap_or_else(|| Shared::start(host, preparation, prepare).unwrap());
        shared.run(test).unwrap();
        match shared.restore() {
            Ok(()) => keep(shared),
            Err(change) => {
                eprintln!("the control plane ({preparation}) is not used again: {change:#}")
            }
        }
    });
}

/// Runs a test as [`on_prepared_kubernetes`] does, on a control plane as it starts.
pub fn on_shared_kubernetes(test: impl FnOnce(&Host, &mut Kubernetes) + Send) {
    on_prepared_kubernetes("nothing", |_| Ok(()), test);
}

fn idle() -> MutexGuard<'static, Vec<Shared>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a waiting control plane with this preparation. If there is none, makes room for a new
/// one.
fn take(preparation: &str) -> Option<Shared> {
    let mut idle = idle();
    let found = idle
        .iter()
        .position(|shared| shared.preparation == preparation);
    if let Some(found) = found {
        return Some(idle.remove(found));
    }
    let surplus = (idle.len() >= MOST_IDLE).then(|| idle.remove(0));
    drop(idle);
    drop(surplus);
    None
}

fn keep(shared: Shared) {
    let mut idle = idle();
    idle.push(shared);
    let surplus = (idle.len() > MOST_IDLE).then(|| idle.remove(0));
    drop(idle);
    drop(surplus);
}

impl Shared {
    fn start(
        host: &Host,
        preparation: &str,
        prepare: impl FnOnce(&ApiServer) -> Result<()> + Send + 'static,
    ) -> Result<Shared> {
        let host = Arc::new(host.neighbor()?);
        let (give, given) = mpsc::channel();
        let (keeper, kept) = mpsc::channel::<()>();
        let there = Arc::clone(&host);
        // The servers end with the thread that starts them, and the thread of a test ends too
        // early.
        thread::spawn(move || {
            there.on(move |host| {
                _ = give.send(start_prepared(host, prepare));
                _ = kept.recv();
                Ok(())
            })
        });
        let (servers, prepared) = given
            .recv()
            .context("the thread of a control plane ended")??;
        Ok(Shared {
            preparation: preparation.to_owned(),
            servers,
            prepared,
            host,
            _keeper: keeper,
        })
    }

    fn run(&mut self, test: impl FnOnce(&Host, &mut Kubernetes) + Send) -> Result<()> {
        let servers = &mut self.servers;
        self.host.on(|host| {
            let directories = DIRECTORIES.map(|name| host.dir(name));
            host.reinstalled_keeping(&directories, |host| {
                test(host, servers);
                Ok(())
            })
        })
    }

    /// Restores the control plane and its host. Returns an error if anything has changed that
    /// cannot be restored.
    fn restore(&self) -> Result<()> {
        let Shared {
            servers,
            prepared,
            host,
            ..
        } = self;
        ensure!(
            pids(servers) == prepared.pids,
            "a server was stopped or started again"
        );
        let etcd = &servers.etcd;
        host.on(|host| {
            let log = fs::metadata(host.dir("kube-apiserver").join("audit.log"));
            ensure!(
                log.map_or(0, |log| log.len()) < LARGEST_LOG,
                "the audit log is large"
            );
            prepared.content.restore(etcd)?;
            delete_links()?;
            ensure!(
                network()? == prepared.network,
                "the test has left an address, a route or a rule"
            );
            Ok(())
        })
    }
}

fn start_prepared(
    host: &Host,
    prepare: impl FnOnce(&ApiServer) -> Result<()>,
) -> Result<(Kubernetes, Prepared)> {
    let servers = Kubernetes::start(host)?;
    prepare(&servers.api)?;
    let prepared = Prepared {
        pids: pids(&servers),
        content: EtcdContent::read(&servers.etcd)?,
        network: network()?,
    };
    Ok((servers, prepared))
}

fn pids(servers: &Kubernetes) -> [Option<u32>; 2] {
    [servers.api.pid(), servers.etcd.pid()]
}

/// Returns true if a list contains the key, or its beginning up to a `/` or `-`.
fn is_listed(key: &str, list: &[&str]) -> bool {
    let is_it = |listed: &&str| {
        if listed.ends_with(['/', '-']) {
            key.starts_with(*listed)
        } else {
            key == *listed
        }
    };
    list.iter().any(is_it)
}

fn network() -> Result<Vec<String>> {
    let lists = [
        "address show",
        "-4 route show table all",
        "-6 route show table all",
        "-4 rule show",
        "-6 rule show",
    ];
    lists
        .into_iter()
        .map(|list| run("ip", &list.split(' ').collect::<Vec<_>>()))
        .collect()
}

/// Deletes all links except `lo`. The deletion of one end also deletes the other one, in the
/// network of a pod.
fn delete_links() -> Result<()> {
    await_that(PATIENCE, || {
        let links = ip_json("link show")?;
        let names = links
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|link| link["ifname"].as_str());
        let names: Vec<&str> = names.filter(|name| *name != "lo").collect();
        for name in &names {
            // The link may have ended with its other end.
            _ = ip(&format!("link delete {name}"));
        }
        Ok(names.is_empty())
    })
    .context("the links of the test cannot be deleted")
}

impl EtcdContent {
    fn read(etcd: &Etcd) -> Result<EtcdContent> {
        let mut revisions = etcd.revisions("/")?;
        revisions.retain(|key, _| !is_listed(key, &OF_SERVER) && !is_listed(key, &RESTORED));
        for (key, revision) in &mut revisions {
            if is_listed(key, &WITH_STATUS) {
                *revision = 0;
            }
        }
        let mut restored = BTreeMap::new();
        for prefix in RESTORED {
            restored.extend(etcd.dump_below(prefix)?);
        }
        Ok(EtcdContent {
            revisions,
            restored,
        })
    }

    /// Restores this content. Returns an error if other keys have changed.
    fn restore(&self, etcd: &Etcd) -> Result<()> {
        let present = EtcdContent::read(etcd)?;
        let is_new =
            |key: &&String| !self.revisions.contains_key(*key) && !self.restored.contains_key(*key);
        let new = present
            .revisions
            .keys()
            .chain(present.restored.keys())
            .filter(is_new);
        // In reverse order, because the API server may create the IPAddress of a remaining Service
        // again.
        for key in new.filter(|key| is_listed(key, &OF_TESTS)).rev() {
            etcd.delete(key)?;
        }
        for (key, value) in &self.restored {
            if present.restored.get(key) != Some(value) {
                etcd.put(key, value)?;
            }
        }
        let now = EtcdContent::read(etcd)?;
        let changes = self.changes(&now);
        ensure!(
            changes.is_empty(),
            "the test has changed {}",
            changes.join(", ")
        );
        Ok(())
    }

    fn changes<'c>(&'c self, present: &'c EtcdContent) -> Vec<&'c str> {
        let (before, now) = (&self.revisions, &present.revisions);
        let changed = before
            .iter()
            .filter(|(key, revision)| now.get(*key) != Some(*revision));
        let new = now.iter().filter(|(key, _)| !before.contains_key(*key));
        changed.chain(new).map(|(key, _)| key.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PREPARATION: &str = "a namespace";
    const NAMESPACE: &str = "/api/v1/namespaces/prepared";

    /// Waits until the API server has renewed its Lease twice. The server writes its other keys as
    /// often, so each key that is missing in [`OF_SERVER`] has changed then.
    fn await_own_writes(etcd: &Etcd) {
        let lease = || etcd.revisions("/registry/leases/kube-system/apiserver-");
        for _ in 0..2 {
            let before = lease().unwrap();
            await_that(Duration::from_secs(60), || Ok(lease()? != before)).unwrap();
        }
    }

    fn on_prepared(test: impl FnOnce(&Host, &mut Kubernetes) + Send) {
        on_prepared_kubernetes(PREPARATION, |api| api.namespace("prepared"), test);
    }

    #[test]
    fn key_is_listed_by_its_whole_text_or_by_its_beginning_up_to_a_separator() {
        let list = [
            "/registry/leases/kube-system/apiserver-",
            "/registry/ipaddresses/10.96.0.1",
            "/registry/ranges/",
        ];
        for key in [
            "/registry/leases/kube-system/apiserver-a",
            "/registry/ipaddresses/10.96.0.1",
            "/registry/ranges/a",
        ] {
            assert!(is_listed(key, &list), "{key}");
        }
        for key in [
            "/registry/leases/kube-system/api",
            "/registry/ipaddresses/10.96.0.12",
            "/registry/ranges",
        ] {
            assert!(!is_listed(key, &list), "{key}");
        }
    }

    #[test]
    fn shared_control_plane_is_as_prepared_until_a_test_changes_a_permission() {
        let mut seen = Vec::new();
        for _ in 0..2 {
            on_prepared(|host, Kubernetes { api, etcd, .. }| {
                seen.push(api.pid());
                await_own_writes(etcd);
                let admin = api.admin();
                assert_eq!(admin.get("/api/v1/nodes/node1").unwrap().code, 404);
                let namespace = admin.get(NAMESPACE).unwrap().success();
                assert!(
                    namespace["metadata"]["annotations"].is_null(),
                    "{namespace}"
                );
                assert!(!host.dir("other").join("file").exists());
                assert_eq!(
                    ip_json("link show").unwrap().as_array().map(Vec::len),
                    Some(1)
                );

                admin.node("node1").unwrap();
                admin
                    .patch(
                        NAMESPACE,
                        &json!({ "metadata": { "annotations": { "a": "b" } } }),
                    )
                    .unwrap();
                fs::write(host.dir("other").join("file"), "").unwrap();
                host.add_uplink().unwrap();
            });
        }
        on_prepared(|_, Kubernetes { api, .. }| {
            seen.push(api.pid());
            api.cluster_role("new", &json!([])).unwrap();
        });
        on_prepared(|_, Kubernetes { api, .. }| seen.push(api.pid()));
        // Without installed servers, no test has run.
        if let [first, second, third, fourth] = seen[..] {
            assert_eq!((first, second), (second, third));
            assert_ne!(third, fourth);
        }
    }
}
