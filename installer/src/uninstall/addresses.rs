//! Releases the addresses and blocks of this node in the datastore.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use allocation::affinity::remove_host;
use allocation::cluster_state;
use ipam_plugin::cni::{self, LeakedAddresses};
use ipam_plugin::kubernetes_api::{self, KubernetesApi};
use libcalico::failure::{Failure, OrFail};
use libcalico::ipam::{Block, HandleId, allocation_time};
use libcalico::store::{EndpointForm, Entry, Sharing, Store};
use netconf::NetConf;
use netconf::conf::DatastoreType;
use node_process::node_name;
use os::clock::{Clock, SystemClock};
use os::lock::{HostLock, LONGEST_WAIT, LockError};
use time::OffsetDateTime;

use super::address_users::{
    DeletedInterfaces, Endpoints, check_endpoints, check_pods, connected_pods, delete_endpoints,
    read_endpoints,
};
use super::plan::{FoundFile, Options};
use super::report::UninstallReport;
use dataplane::host_network::HostNetwork;
use installation::layout::Layout;
use os::atomic_file::regular_file;

use installation::node_conf;

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
) -> Result<NetConf, Failure> {
    let mut unusable = Failure::new("the configuration of this installation is missing");
    for file in found.iter().filter(|file| file.is_configuration()) {
        let text = regular_file::text(&file.path).map_err(Failure::from);
        let conf = text.and_then(|text| node_conf::parse(&text, layout, net_dir));
        match conf.or_fail(file.path.display()) {
            Ok(conf) => return Ok(conf),
            Err(failure) => unusable = failure,
        }
    }
    Err(unusable)
}

fn report_endpoints(options: Options, report: &mut UninstallReport) {
    let target = if options.release_addresses {
        "other endpoints of this node"
    } else {
        "endpoints of this node"
    };
    let reason =
        "they remain in the datastore; kube-controllers removes them when the Node is deleted";
    report.add_remaining(target, reason);
}

/// Releases the addresses of the network's pods on this node and the blocks of the node, or reports
/// the plan. Fails as long as a pod is connected, because another pod would get its address.
/// `torn_down` contains the addresses behind deleted interfaces. Returns false if a requested
/// release failed.
pub(super) async fn release(
    conf: Result<NetConf, Failure>,
    options: Options,
    torn_down: &BTreeSet<IpAddr>,
    network: &dyn HostNetwork,
    report: &mut UninstallReport,
) -> bool {
    let kind = conf.as_ref().ok().map(|conf| conf.datastore.kind());
    match kind {
        Some(DatastoreType::Etcdv3) => report_endpoints(options, report),
        Some(DatastoreType::Kubernetes | DatastoreType::Local) | None => {}
    }
    let has_controllers = match kind {
        Some(DatastoreType::Kubernetes | DatastoreType::Etcdv3) | None => true,
        // kube-controllers cannot reach the embedded datastore.
        Some(DatastoreType::Local) => false,
    };
    if !options.release_addresses {
        let collection = if has_controllers {
            OF_DELETED_NODES
        } else {
            ""
        };
        let reason =
            format!("they remain in the datastore; --release-addresses releases them{collection}");
        report.add_remaining(TARGET, reason);
        return true;
    }
    let outcome = match conf {
        Ok(conf) => release_unused(&conf, options, torn_down, network).await,
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok((target, others)) => {
            report.add_success("release", target);
            for (handle, addresses) in others {
                let releaser = if has_controllers {
                    "its owner or kube-controllers"
                } else {
                    "its owner"
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
) -> Result<(String, BTreeMap<HandleId, String>), Failure> {
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
        .transpose()
        .map_err(unlocked)?;
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
    let endpoints = match store.endpoint_form() {
        EndpointForm::Object => read_endpoints(&store, &node, &leaked).await?,
        EndpointForm::PodAnnotations => Endpoints::new(),
    };
    let sees_all_pods = match store.sharing() {
        // The interfaces of this node are checked above.
        Sharing::ThisNode => conf.dataplane_options.grpc_socket().is_none(),
        Sharing::Cluster => false,
    };
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
    let collected = leaked.release(&store, &clock, &BTreeSet::new()).await;
    if let Some((handle, source)) = collected.failed.into_iter().next() {
        return Err(Failure::new(format_args!(
            "cannot release the addresses of handle {handle}"
        ))
        .because(source));
    }
    let released_blocks = remove_host(&store, &clock, &node).await?;
    if let Some((block, source)) = released_blocks.kept.into_iter().next() {
        return Err(Failure::new(format_args!("cannot release block {block}")).because(source));
    }
    let (containers, blocks) = (collected.released.len(), released_blocks.released.len());
    let target =
        format!("the addresses of {containers} containers and {blocks} blocks of node {node}");
    Ok((target, others))
}

/// Returns the failure without the IPAM lock: a running ADD may assign an address meanwhile.
pub(super) fn unlocked(cause: LockError) -> Failure {
    Failure::new("running ADDs may still assign addresses")
        .because(cause)
        .way_out(
            "end the process that holds the lock, or make the lock file writable, and run the \
             command again",
        )
}

/// Checks that no interface of a pod remains.
fn check_interfaces(network: &dyn HostNetwork) -> Result<(), Failure> {
    let used = connected_pods(network, false)?;
    if used.is_empty() {
        Ok(())
    } else {
        Err(
            Failure::new("pods are still connected with these addresses")
                .because(used.join(", "))
                .way_out(
                    "delete their interfaces first, which needs CAP_NET_ADMIN (ip link delete)",
                ),
        )
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
mod tests;
