//! Control planes that the tests of a process use one after another: the start of one takes more
//! processor time than most tests.

mod content;
mod kinds;
mod pool;
mod rights;

use std::fs;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{ApiServer, Kubernetes, installed};
use crate::command::{ip, ip_json, run};
use crate::controllers::await_that;
use crate::namespaces::{Host, Neighbor, isolated};

use content::Content;
use kinds::Kinds;

/// Timeout until the links of a test are deleted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Directories of the servers, which a test on a shared control plane finds as on its own one.
const DIRECTORIES: [&str; 2] = ["etcd", "kube-apiserver"];

/// Maximum size of the audit log of a shared API server in bytes. The log is in memory.
const LARGEST_LOG: u64 = 256 << 20;

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
    content: Content,
    kinds: Kinds,
    /// The addresses, routes and rules of the host.
    network: Vec<String>,
}

/// Runs a test as [`on_kubernetes`](super::on_kubernetes) does, on a control plane that `prepare`
/// has changed. `preparation` names what `prepare` does.
///
/// An earlier test of the process with the same preparation may have used the control plane. What
/// tests usually create is deleted after each of them, also definitions, roles and bindings.
/// Deleted definitions, and changed or deleted roles, bindings, nodes and namespaces are restored.
/// The host has neither links nor pods nor files of another test, except files in the directories
/// of the servers. If anything else has changed, for example a policy of admission or an
/// APIService, or if a test fails or starts a server again, no other test uses the control plane.
/// Kernel settings of the host are not compared: a test that changes them needs its own host.
///
/// A test waits some seconds for a control plane that another test uses, before it starts one.
pub fn on_prepared_kubernetes(
    preparation: &str,
    prepare: impl FnOnce(&ApiServer) -> Result<()> + Send + 'static,
    test: impl FnOnce(&Host, &mut Kubernetes) + Send,
) {
    if !installed() {
        return;
    }
    isolated(|host| {
        let (mut claim, idle) = pool::take(preparation);
        let mut shared = idle.unwrap_or_else(|| Shared::start(host, preparation, prepare).unwrap());
        claim.started();
        shared.run(test).unwrap();
        match shared.restore() {
            Ok(()) => pool::keep(shared),
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
    fn restore(&mut self) -> Result<()> {
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
        let Kubernetes { api, etcd } = &*servers;
        host.on(|host| {
            let log = fs::metadata(host.dir("kube-apiserver").join("audit.log"));
            ensure!(
                log.map_or(0, |log| log.len()) < LARGEST_LOG,
                "the audit log is large"
            );
            let Prepared { content, kinds, .. } = &mut *prepared;
            let changed = content.restore(etcd)?;
            kinds.compare_aggregated(api.admin())?;
            if changed.definitions {
                // A policy may not be in force for a moment after its kinds were created again.
                kinds.restore(api.admin(), !content.has_policies())?;
                content.adopt_definitions(etcd)?;
            }
            if changed.rights {
                rights::await_applied(api, etcd)?;
            }
            content.compare(etcd)?;
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
        content: Content::read(&servers.etcd)?,
        kinds: Kinds::read(servers.api.admin())?,
        network: network()?,
    };
    Ok((servers, prepared))
}

fn pids(servers: &Kubernetes) -> [Option<u32>; 2] {
    [servers.api.pid(), servers.etcd.pid()]
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

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::Resource;
    use serde_json::json;

    use super::*;
    use crate::etcd::Etcd;
    use crate::kubernetes::{Access, Client};

    const PREPARATION: &str = "a namespace and a kind";
    const NAMESPACE: &str = "/api/v1/namespaces/prepared";
    const ANCHORS: Resource = kind("Anchor", "anchors");
    const CHAINS: Resource = kind("Chain", "chains");
    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const USER: &str = "somebody";

    const fn kind(kind: &'static str, plural: &'static str) -> Resource {
        Resource {
            api_version: "lab.example/v1",
            kind,
            plural,
            namespaced: false,
        }
    }

    /// Waits until the API server has renewed its Lease twice. The server writes its other keys as
    /// often, so each key that is not listed as a key of the server has changed then.
    fn await_own_writes(etcd: &Etcd) {
        let lease = || etcd.revisions("/registry/leases/kube-system/apiserver-");
        for _ in 0..2 {
            let before = lease().unwrap();
            await_that(Duration::from_secs(60), || Ok(lease()? != before)).unwrap();
        }
    }

    fn on_prepared(test: impl FnOnce(&Host, &mut Kubernetes) + Send) {
        let prepare = |api: &ApiServer| {
            api.namespace("prepared")?;
            api.define_open(&ANCHORS)
        };
        on_prepared_kubernetes(PREPARATION, prepare, test);
    }

    fn may_read_nodes(api: &ApiServer) -> bool {
        let access = Access {
            verb: "get",
            group: "",
            resource: "nodes",
        };
        api.allows(USER, access).unwrap()
    }

    /// Lets [`USER`] do everything.
    fn bind(admin: &Client) {
        let group = "rbac.authorization.k8s.io";
        let role = json!({ "apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin" });
        let user = json!({ "apiGroup": group, "kind": "User", "name": USER });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
            "metadata": { "name": "new" }, "roleRef": role, "subjects": [user],
        });
        admin.apply_object(&binding).unwrap();
    }

    fn code(admin: &Client, resource: &Resource) -> u16 {
        admin.get(&resource.collection(None)).unwrap().code
    }

    #[test]
    fn shared_control_plane_is_as_prepared_until_a_test_changes_a_key_of_another_kind() {
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
                assert_eq!((code(admin, &ANCHORS), code(admin, &CHAINS)), (200, 404));
                assert!(!may_read_nodes(api));
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
                api.define_open(&CHAINS).unwrap();
                let definition = format!("{DEFINITIONS}/anchors.lab.example");
                admin.delete(&definition).unwrap().success();
                bind(admin);
                await_that(PATIENCE, || Ok(may_read_nodes(api))).unwrap();
                fs::write(host.dir("other").join("file"), "").unwrap();
                host.add_uplink().unwrap();
            });
        }
        on_prepared(|_, Kubernetes { api, .. }| {
            seen.push(api.pid());
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": { "name": "new" }, "value": 1,
            });
            api.admin().apply_object(&class).unwrap();
        });
        on_prepared(|_, Kubernetes { api, .. }| seen.push(api.pid()));
        // Without installed servers, no test has run.
        if let [first, second, third, fourth] = seen[..] {
            assert_eq!((first, second), (second, third));
            assert_ne!(third, fourth);
        }
    }

    #[test]
    fn test_waits_for_a_control_plane_that_another_test_uses_for_a_moment() {
        let used = || {
            let mut used = None;
            on_prepared_kubernetes(
                "nothing, for a moment",
                |_| Ok(()),
                |_, Kubernetes { api, .. }| {
                    used = api.pid();
                    thread::sleep(Duration::from_millis(100));
                },
            );
            used
        };
        // Without root, the tests run in a copy of this process.
        isolated(|_| {
            let [first, second] = thread::scope(|scope| {
                [(); 2]
                    .map(|()| scope.spawn(used))
                    .map(|test| test.join().unwrap())
            });
            assert_eq!(first, second);
        });
    }
}
