//! Releases the addresses and blocks of this node in the datastore.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ipam_plugin::affinity::remove_host;
use ipam_plugin::cluster_state;
use ipam_plugin::cni::{self, LeakedAddresses};
use ipam_plugin::kubernetes_api::{self, KubernetesApi};
use ipam_plugin::lock::{HostLock, LONGEST_WAIT};
use ipam_plugin::release::NoListings;
use libcalico::ipam::{Block, HandleId, allocation_time};
use libcalico::store::{Entry, Store};
use netconf::NetConf;
use netconf::conf::DatastoreType;
use node_process::node_name;
use os::clock::{Clock, SystemClock};
use time::OffsetDateTime;

use super::address_users::{
    DeletedInterfaces, Endpoints, check_endpoints, check_pods, connected_pods, delete_endpoints,
    read_endpoints,
};
use super::plan::{FoundFile, Options};
use super::report::UninstallReport;
use super::{ConfError, ReleaseError};
use crate::host_network::HostNetwork;
use crate::layout::Layout;
use os::atomic_file::regular_file;

use crate::node_conf;

/// The name of the step in the report.
pub(super) const TARGET: &str = "addresses and blocks of this node";

/// The addresses that kube-controllers releases.
const OF_DELETED_NODES: &str =
    ", and kube-controllers releases those of pods when the Node is deleted";

/// Time limit for one request to the datastore.
const DEADLINE: Duration = Duration::from_secs(10);

/// The longest time from the assignment of an address until the ADD has created the interface.
/// `calico-ipam release` uses the same value.
const LONGEST_ADD: Duration = Duration::from_secs(10);

/// Returns the first configuration among the files `found` that can be read.
pub(super) fn conf(
    layout: &Layout,
    net_dir: &str,
    found: &[FoundFile],
) -> Result<NetConf, ConfError> {
    let mut unusable = ConfError::Missing;
    for file in found.iter().filter(|file| file.is_configuration()) {
        let text = regular_file::text(&file.path).map_err(|error| error.to_string());
        let conf = text.and_then(|text| {
            node_conf::parse(&text, layout, net_dir).map_err(|error| error.to_string())
        });
        match conf {
            Ok(conf) => return Ok(conf),
            Err(reason) => {
                unusable = ConfError::Unreadable {
                    path: file.path.clone(),
                    reason,
                }
            }
        }
    }
    Err(unusable)
}

/// Releases the addresses of the network's pods on this node and the blocks of the node, or reports
/// the plan. Fails as long as a pod is connected, because another pod would get its address.
/// `torn_down` contains the addresses behind deleted interfaces. Returns false if a requested
/// release failed.
pub(super) async fn release(
    conf: Result<NetConf, ConfError>,
    options: Options,
    torn_down: &BTreeSet<IpAddr>,
    network: &dyn HostNetwork,
    report: &mut UninstallReport,
) -> bool {
    if conf
        .as_ref()
        .is_ok_and(|conf| conf.datastore.kind() == DatastoreType::Etcdv3)
    {
        let target = if options.release_addresses {
            "other endpoints of this node"
        } else {
            "endpoints of this node"
        };
        let reason =
            "they remain in the datastore; kube-controllers removes them when the Node is deleted";
        report.add_remaining(target, reason);
    }
    // kube-controllers cannot reach the embedded datastore.
    let is_local = conf
        .as_ref()
        .is_ok_and(|conf| conf.datastore.kind() == DatastoreType::Local);
    if !options.release_addresses {
        let collection = if is_local { "" } else { OF_DELETED_NODES };
        let reason =
            format!("they remain in the datastore; --release-addresses releases them{collection}");
        report.add_remaining(TARGET, reason);
        return true;
    }
    let outcome = match conf {
        Ok(conf) => release_unused(&conf, options, torn_down, network).await,
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok((target, others)) => {
            report.add_success("release", target);
            for (handle, addresses) in others {
                let releaser = if is_local {
                    "its owner"
                } else {
                    "its owner or kube-controllers"
                };
                let reason =
                    format!("it belongs to no container of this network; {releaser} releases it");
                report.add_remaining(format!("{addresses}, allocated to handle {handle}"), reason);
            }
            true
        }
        Err(reason) => {
            report.add_failure("release", TARGET, reason);
            false
        }
    }
}

/// Releases the addresses, or fails if a pod uses one. Returns a description of the addresses that
/// are, or would be, released, and the other allocated addresses on this node, by handle.
async fn release_unused(
    conf: &NetConf,
    options: Options,
    torn_down: &BTreeSet<IpAddr>,
    network: &dyn HostNetwork,
) -> Result<(String, BTreeMap<HandleId, String>), ReleaseError> {
    if options.yes {
        // The interfaces that the options name were deleted before.
        check_interfaces(network)?;
    }
    let node = node_name::from_conf(conf)?;
    let (config, store) = node_conf::datastore(conf, DEADLINE)?;
    let clock = SystemClock::start();
    // An ADD assigns its address under this lock if it can, so the blocks read below should include
    // the address.
    let lock_file = Path::new(&conf.node.ipam_lock_file);
    let _lock = options
        .yes
        .then(|| HostLock::acquire_within(lock_file, LONGEST_WAIT))
        .transpose()?;
    cluster_state::ensure_unlocked(&store).await?;
    let blocks = store.list::<Block>(&None).await?;
    let leaked = cni::leaked(&blocks, &conf.name, &node, &BTreeSet::new());
    let others = other_allocations(&blocks, &node, &leaked);
    let wait = time_until_connected(&blocks, &leaked, torn_down, clock.now());
    // The list contains the blocks of the whole cluster, so its memory is freed early.
    drop(blocks);
    if options.yes {
        // An ADD creates its interface, and may write its endpoint, after it has released the lock.
        clock.sleep(wait).await;
        check_interfaces(network)?;
    }
    let api = KubernetesApi::for_call(conf, &config, kubernetes_api::is_configured(conf, &config))?;
    if let Some(api) = api.reached(&store) {
        // The name of the Kubernetes node may differ from Calico's.
        let kubernetes_node = Some(&conf.kubernetes.node_name).filter(|name| !name.is_empty());
        check_pods(
            api,
            &leaked,
            DeletedInterfaces {
                node: kubernetes_node.unwrap_or(&node),
                addresses: torn_down,
            },
        )
        .await?;
    }
    let endpoints = match conf.datastore.kind() {
        // On Kubernetes the endpoints are annotations of the pods.
        DatastoreType::Kubernetes => Endpoints::new(),
        DatastoreType::Etcdv3 | DatastoreType::Local => {
            read_endpoints(&store, &node, &leaked).await?
        }
    };
    // The local datastore serves this machine only, whose interfaces are checked above.
    let sees_all_pods = conf.datastore.kind() == DatastoreType::Local
        && conf.dataplane_options.grpc_socket().is_none();
    if !sees_all_pods {
        check_endpoints(
            &endpoints,
            DeletedInterfaces {
                node: &node,
                addresses: torn_down,
            },
        )?;
    }
    if !options.yes {
        let target = format!(
            "the addresses of {} containers and all blocks of node {node}",
            leaked.containers()
        );
        return Ok((target, others));
    }
    // An address may be released only if no endpoint lists it.
    delete_endpoints(&endpoints, &store).await?;
    // The checks above have found no pod that uses one of these addresses.
    let collected = leaked
        .release(&store, &clock, &BTreeSet::new(), |_| NoListings)
        .await;
    if let Some((handle, source)) = collected.failed.into_iter().next() {
        return Err(ReleaseError::RemainingHandle { handle, source });
    }
    let released_blocks = remove_host(&store, &clock, &node).await?;
    if let Some((block, source)) = released_blocks.kept.into_iter().next() {
        return Err(ReleaseError::RemainingBlock { block, source });
    }
    let (containers, blocks) = (collected.released.len(), released_blocks.released.len());
    let target =
        format!("the addresses of {containers} containers and {blocks} blocks of node {node}");
    Ok((target, others))
}

/// Checks that no interface of a pod remains.
fn check_interfaces(network: &dyn HostNetwork) -> Result<(), ReleaseError> {
    let used = connected_pods(network, false)?;
    if used.is_empty() {
        Ok(())
    } else {
        Err(ReleaseError::Connected(used))
    }
}

/// Returns the time until each ADD that assigned one of the addresses in `leaked` has created its
/// interface. Those in `torn_down` had an interface.
fn time_until_connected(
    blocks: &[Entry<Block>],
    leaked: &LeakedAddresses,
    torn_down: &BTreeSet<IpAddr>,
    now: OffsetDateTime,
) -> Duration {
    let held = blocks.iter().flat_map(|block| block.value.allocated());
    let unconnected = held.filter(|held| !held.is_cooling() && !torn_down.contains(&held.ip));
    let of_leaks = unconnected.filter(|held| {
        held.handle()
            .is_some_and(|handle| leaked.contains_handle(&handle))
    });
    let times = of_leaks.filter_map(|held| allocation_time(&held));
    // A time in the future, after the clock was set back, has the age zero.
    let age = |time: OffsetDateTime| Duration::try_from(now - time).unwrap_or_default();
    times
        .map(|time| LONGEST_ADD.saturating_sub(age(time)))
        .max()
        .unwrap_or_default()
}

/// Returns the addresses on the node that do not belong to containers of this network.
fn other_allocations(
    blocks: &[Entry<Block>],
    node: &str,
    leaked: &LeakedAddresses,
) -> BTreeMap<HandleId, String> {
    let mut others = BTreeMap::<HandleId, String>::new();
    for block in blocks {
        for held in block.value.allocated().filter(|held| !held.is_cooling()) {
            let is_here = held
                .attributes()
                .and_then(|attributes| attributes.get("node"))
                .is_some_and(|on| on == node);
            let Some(handle) = held
                .handle()
                .filter(|id| is_here && !leaked.contains_handle(id))
            else {
                continue;
            };
            let addresses = others.entry(handle).or_default();
            if !addresses.is_empty() {
                addresses.push_str(", ");
            }
            addresses.push_str(&held.ip.to_string());
        }
    }
    others
}

#[cfg(test)]
mod tests {
    use datastore::Datastore;
    use libcalico::api::{ClusterInformation, ObjectKey};
    use libcalico::dead_interface::DeadLink;
    use libcalico::ipam::{AffinityOwner, BlockRequest, Reservations, Statement};
    use libcalico::net::Cidr;
    use libcalico::store::Write;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::host_network::testing::{FixedNetwork, interface};
    use crate::host_network::{Interface, LinkChange, NetworkError, PodLink, Route};

    const RELEASE: Options = Options {
        yes: true,
        tear_down_pods: false,
        release_addresses: true,
        forget_gone: false,
    };

    /// A time at which an ADD counts as running.
    const RECENTLY: &str = "2999-01-01 00:00:00 +0000 UTC";

    /// The network of a node on which an ADD creates the interface of its pod at this time.
    #[derive(Debug)]
    struct RunningAdd(Instant);

    impl HostNetwork for RunningAdd {
        fn interfaces(&self) -> Result<Vec<Interface>, NetworkError> {
            let of_pod = Interface {
                is_pod_interface: true,
                ..interface("cali1", 1500)
            };
            Ok(if Instant::now() < self.0 {
                Vec::new()
            } else {
                vec![of_pod]
            })
        }

        fn routes(&self) -> Result<Vec<Route>, NetworkError> {
            Ok(Vec::new())
        }

        fn routes_of_all_tables(&self) -> Result<Vec<Route>, NetworkError> {
            self.routes()
        }

        fn changes_of_pod_link(
            &self,
            _: &str,
            _: &[IpAddr],
        ) -> Result<Vec<LinkChange>, NetworkError> {
            Ok(Vec::new())
        }

        fn remove_pod_interface(&self, _: &str) -> Result<bool, NetworkError> {
            Ok(false)
        }

        fn pod_links(&self) -> Result<Vec<PodLink>, NetworkError> {
            Ok(Vec::new())
        }

        fn inhabited_namespaces(&self) -> Result<Statement<BTreeSet<i32>>, NetworkError> {
            Ok(Statement::Known(BTreeSet::new()))
        }

        fn containers_of_calls(&self) -> Result<Statement<BTreeSet<String>>, NetworkError> {
            Ok(Statement::Known(BTreeSet::new()))
        }

        fn remove_dead_link(&self, _: &DeadLink) -> Result<bool, NetworkError> {
            Ok(false)
        }
    }

    /// Creates an embedded datastore in which a container has the address 10.65.0.0 since
    /// `timestamp`.
    async fn node_with_address(directory: &Path, timestamp: &str) -> (NetConf, Datastore) {
        let conf = json!({
            "name": "n", "datastore_type": "local", "datastore_path": directory.join("calico.db"),
            "nodename": "node1", "ipam_lock_file": directory.join("ipam.lock"),
        });
        let conf = NetConf::parse(conf.to_string().as_bytes()).unwrap();
        let (_, store) = node_conf::datastore(&conf, DEADLINE).unwrap();
        let (cidr, owner): (Cidr, _) = (
            "10.65.0.0/30".parse().unwrap(),
            AffinityOwner::Host("node1".into()),
        );
        let mut block = Block::new(cidr, &owner, OffsetDateTime::now_utc()).unwrap();
        let attributes = [("node", "node1"), ("timestamp", timestamp)];
        let attributes =
            BTreeMap::from(attributes.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let handle = HandleId::new("n.abc");
        let request = BlockRequest {
            handle: Some(&handle),
            attributes: &attributes,
            requester: &owner,
            check_affinity: false,
        };
        block.assign(1, &request, &Reservations::default()).unwrap();
        store
            .write_one(Write::create::<Block>(&cidr, &block).unwrap())
            .await
            .unwrap();
        (conf, store)
    }

    /// Returns the number of addresses that are in use.
    async fn used_addresses(store: &Datastore) -> usize {
        let blocks = store.list::<Block>(&None).await.unwrap();
        blocks
            .iter()
            .flat_map(|block| block.value.allocated())
            .filter(|held| !held.is_cooling())
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn release_waits_for_a_running_add_and_is_refused_when_its_interface_appears() {
        let directory = tempfile::tempdir().unwrap();
        let (conf, store) = node_with_address(directory.path(), RECENTLY).await;
        let network = RunningAdd(Instant::now() + LONGEST_ADD / 2);
        let mut report = UninstallReport {
            acted: true,
            ..UninstallReport::default()
        };
        assert!(
            !release(Ok(conf), RELEASE, &BTreeSet::new(), &network, &mut report).await,
            "{report}"
        );
        let text = report.to_string();
        assert!(
            text.contains("pods are still connected with these addresses: cali1"),
            "{text}"
        );
        assert_eq!(used_addresses(&store).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn release_of_old_or_torn_down_addresses_does_not_wait() {
        let address: IpAddr = "10.65.0.0".parse().unwrap();
        for (timestamp, torn_down) in [
            ("2025-08-22 01:01:59 +0000 UTC", BTreeSet::new()),
            (RECENTLY, BTreeSet::from([address])),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let (conf, store) = node_with_address(directory.path(), timestamp).await;
            let (network, started) = (FixedNetwork::default(), Instant::now());
            let mut report = UninstallReport {
                acted: true,
                ..UninstallReport::default()
            };
            assert!(
                release(Ok(conf), RELEASE, &torn_down, &network, &mut report).await,
                "{report}"
            );
            assert!(started.elapsed() < LONGEST_ADD / 2, "{timestamp}");
            assert_eq!(used_addresses(&store).await, 0, "{report}");
        }
    }

    #[tokio::test]
    async fn release_in_a_locked_datastore_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (conf, store) =
            node_with_address(directory.path(), "2025-08-22 01:01:59 +0000 UTC").await;
        let key = ObjectKey::global("default");
        let mut cluster = store.get::<ClusterInformation>(&key).await.unwrap();
        cluster.value.spec.datastore_ready = Some(false);
        store
            .update(&key, &cluster.value, &cluster.revision)
            .await
            .unwrap();
        let mut report = UninstallReport {
            acted: true,
            ..UninstallReport::default()
        };
        assert!(
            !release(
                Ok(conf),
                RELEASE,
                &BTreeSet::new(),
                &FixedNetwork::default(),
                &mut report
            )
            .await,
            "{report}"
        );
        let text = report.to_string();
        assert!(
            text.contains("Calico is currently not ready to process requests"),
            "{text}"
        );
        assert_eq!(used_addresses(&store).await, 1);
    }

    #[tokio::test]
    async fn report_names_kube_controllers_only_for_a_datastore_that_they_reach() {
        for (datastore, is_collected) in [
            (
                r#""datastore_type":"local","datastore_path":"/x/db""#,
                false,
            ),
            (r#""datastore_type":"kubernetes""#, true),
            (r#""etcd_endpoints":"http://127.0.0.1:2379""#, true),
        ] {
            let conf = NetConf::parse(format!(r#"{{"name":"n",{datastore}}}"#).as_bytes()).unwrap();
            let mut report = UninstallReport::default();
            let (network, options) = (FixedNetwork::default(), Options::default());
            assert!(release(Ok(conf), options, &BTreeSet::new(), &network, &mut report).await);
            let text = report.to_string();
            assert!(text.contains("--release-addresses releases them"), "{text}");
            assert_eq!(text.contains("kube-controllers"), is_collected, "{text}");
        }
    }

    /// A running ADD could assign an address after the blocks are read, and the address would stay
    /// allocated.
    #[tokio::test]
    async fn release_without_the_ipam_lock_is_refused_before_any_request() {
        let lock = tempfile::tempdir().unwrap();
        let (path, network) = (lock.path().display(), FixedNetwork::default());
        let conf = format!(
            r#"{{"name":"n","datastore_type":"kubernetes","kubernetes":{{"k8s_api_root":"http://127.0.0.1:1"}},
                "nodename":"node1","ipam_lock_file":"{path}"}}"#
        );
        let conf = NetConf::parse(conf.as_bytes()).unwrap();
        let options = Options {
            yes: true,
            release_addresses: true,
            ..Options::default()
        };
        let mut report = UninstallReport {
            acted: true,
            ..UninstallReport::default()
        };
        assert!(!release(Ok(conf), options, &BTreeSet::new(), &network, &mut report).await);
        let text = report.to_string();
        assert!(
            text.contains(&format!("cannot open lock file {path}: ")),
            "{text}"
        );
        assert!(text.contains("run the command again"), "{text}");
    }
}
