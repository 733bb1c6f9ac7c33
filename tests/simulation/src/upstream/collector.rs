//! [`Collector`]: garbage collection of upstream's kube-controllers.
//!
//! `cache` applies what the watches of the datastore and of Kubernetes deliver. `scan` finds the
//! leaks, `owner` decides whether an allocation is valid, and `leaks` and `blocks` release.

mod blocks;
mod cache;
mod leaks;
mod owner;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use libcalico::api::{Node, ObjectKey};
use libcalico::ipam::Block;
use libcalico::kubernetes::Pod;
use libcalico::net::Cidr;
use libcalico::store::{Entry, Revision, Store};
use time::{Duration, OffsetDateTime};

use super::client::Client;
use super::{Now, UpstreamError};

/// What the watches have delivered, possibly with a lag. A later snapshot must not be older.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Whether the datastore is in sync and not locked.
    pub is_ready: bool,
    /// The blocks.
    pub blocks: Vec<Entry<Block>>,
    /// Calico's nodes.
    pub nodes: Vec<Node>,
    /// The names of the nodes of Kubernetes.
    pub kubernetes_nodes: BTreeSet<String>,
    /// The pods.
    pub pods: BTreeMap<ObjectKey, Pod>,
}

/// Handle and address of an allocation.
type AllocationId = (String, IpAddr);

/// An allocation with a handle.
#[derive(Debug, Clone)]
struct Tracked {
    attributes: BTreeMap<String, String>,
    sequence: u64,
    block: Cidr,
    /// The node under which the allocation is filed. A change of the attributes does not move it
    /// (KC-422).
    filed_under: Option<String>,
    /// The name of the node in Kubernetes, found by the last scan; empty for none.
    kubernetes_node: String,
    leaked_at: Option<OffsetDateTime>,
    is_confirmed: bool,
}

impl Tracked {
    fn mark_valid(&mut self) {
        self.leaked_at = None;
        self.is_confirmed = false;
    }

    /// Records that the allocation looks leaked. Confirms the leak after the grace period, unless
    /// that is zero (KC-438).
    fn mark_leaked(&mut self, grace: Duration, now: OffsetDateTime) {
        let since = *self.leaked_at.get_or_insert(now);
        if grace > Duration::ZERO && now - since > grace {
            self.is_confirmed = true;
        }
    }

    fn attribute(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }

    fn pod(&self) -> Option<ObjectKey> {
        let (namespace, pod) = (self.attribute("namespace"), self.attribute("pod"));
        let is_pod = !namespace.is_empty() && !pod.is_empty();
        is_pod.then(|| ObjectKey::namespaced(namespace, pod))
    }

    fn is_of_machine(&self) -> bool {
        self.attributes.contains_key("vmi-name")
    }

    fn is_tunnel(&self) -> bool {
        TUNNELS.contains(&self.attribute("type"))
    }
}

const TUNNELS: [&str; 5] = [
    "ipipTunnelAddress",
    "vxlanTunnelAddress",
    "vxlanV6TunnelAddress",
    "wireguardTunnelAddress",
    "wireguardV6TunnelAddress",
];

/// The state of garbage collection between two passes. A restart of the program loses the state.
#[derive(Debug, Default)]
pub struct Collector {
    /// The grace period; without one, only the leaks of deleted nodes are released.
    grace: Option<Duration>,
    is_ready: bool,
    /// Whether the next pass examines all nodes.
    full_scan: bool,
    dirty_nodes: BTreeSet<String>,
    /// The revisions that the watch of the blocks has delivered.
    delivered: BTreeMap<Cidr, Revision>,
    blocks: BTreeMap<Cidr, Entry<Block>>,
    node_of_block: BTreeMap<Cidr, String>,
    blocks_of_node: BTreeMap<String, BTreeSet<Cidr>>,
    empty_blocks: BTreeMap<Cidr, String>,
    /// The first release time in each block with addresses in cooldown.
    cold_blocks: BTreeMap<Cidr, OffsetDateTime>,
    /// The time at which a pass first found the block empty and releasable.
    releasable_since: BTreeMap<Cidr, OffsetDateTime>,
    allocations: BTreeMap<AllocationId, Tracked>,
    confirmed_leaks: BTreeSet<AllocationId>,
    /// The name in Kubernetes of each Calico node; empty for a node outside Kubernetes.
    kubernetes_names: BTreeMap<String, String>,
    kubernetes_nodes: BTreeSet<String>,
    pods: BTreeMap<ObjectKey, Pod>,
    reclaimed: Vec<IpAddr>,
}

impl Collector {
    /// Starts the program with a `leakGracePeriod`.
    pub fn new(grace: Option<Duration>) -> Self {
        Collector {
            grace,
            ..Self::default()
        }
    }

    /// Makes the next pass examine all nodes. Upstream's timer does this each half of the grace
    /// period, or without a grace period each 5 minutes.
    pub fn tick(&mut self) {
        self.full_scan = true;
    }

    /// Returns the addresses that were released as leaks since the last call.
    pub fn take_reclaimed(&mut self) -> Vec<IpAddr> {
        std::mem::take(&mut self.reclaimed)
    }

    /// Returns the grace period if there is one.
    fn positive_grace(&self) -> Option<Duration> {
        self.grace.filter(|grace| *grace > Duration::ZERO)
    }
}

/// Makes one pass: finds leaks, releases the confirmed ones, returns addresses whose cooldown has
/// elapsed, and gives up empty blocks and the blocks of deleted nodes. `api` is the store of pods,
/// which can be `store`.
///
/// # Errors
/// Upstream repeats a failed pass after a pause. A pass also fails if a leak or the block of a
/// deleted node is left.
pub async fn gc_pass<S: Store, A: Store>(
    collector: &mut Collector,
    store: &S,
    api: &A,
    now: Now<'_>,
) -> Result<(), UpstreamError> {
    if !collector.is_ready {
        return Ok(());
    }
    let client = Client { store, now };
    let deleted_nodes = collector.scan(&client).await;
    collector.release_leaks(&client, api).await?;
    collector.collect_cold_blocks(&client).await?;
    collector.release_empty_blocks(&client).await;
    let nodes = collector.release_nodes(&client, deleted_nodes).await;
    let leaks = collector.confirmed_leaks.len();
    if nodes + leaks > 0 {
        return Err(UpstreamError::Unreleased { leaks, nodes });
    }
    Ok(())
}
