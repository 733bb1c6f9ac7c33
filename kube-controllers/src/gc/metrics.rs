//! Metrics of addresses and blocks, with upstream's names and labels (KC-153).
//!
//! A scrape reads the counters that the index maintains, and counts nothing itself. The passes
//! count the rooms of pools at intervals. A family without a sample is left out, as in upstream's
//! output (KC-155).

use std::collections::HashMap;
use std::sync::Arc;

use libcalico::ipam::gc::{Index, NamedRoom, Sample};
use node_process::metrics;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec};

use super::cache::ClusterCache;

const NO_POOL: &str = "no_ippool";
const NO_NODE: &str = "unknown_node";
const NO_AFFINITY: &str = "no_affinity";

// No help may contain another metric's name, as upstream's tests require.
metrics! {
    struct IpamFamilies {
        /// Addresses in use.
        in_use: GaugeVec = "ipam_allocations_in_use"["ippool", "node"],
        /// Addresses in use from a block of another node, or of no node.
        borrowed: GaugeVec = "ipam_allocations_borrowed"["ippool", "node"],
        /// Blocks.
        blocks: GaugeVec = "ipam_blocks"["ippool", "node"],
        /// Addresses that look leaked, confirmed or not.
        candidates: GaugeVec = "ipam_allocations_gc_candidates"["ippool", "node"],
        /// Leaked addresses that were released.
        reclamations: CounterVec = "ipam_allocations_gc_reclamations"["ippool", "node"],
        /// Addresses of the pool.
        size: GaugeVec = "ipam_ippool_size"["ippool"],
        /// Addresses of the pool that are reserved.
        reserved: GaugeVec = "ipam_ippool_reserved"["ippool"],
        /// Addresses in use by the node.
        in_use_per_node: GaugeVec = "ipam_allocations_per_node"["node"],
        /// Addresses in use by the node from blocks that are not its own.
        borrowed_per_node: GaugeVec = "ipam_allocations_borrowed_per_node"["node"],
        /// Blocks of the node.
        blocks_per_node: GaugeVec = "ipam_blocks_per_node"["node"],
        /// Addresses whose owner is of an unknown kind, which are never released.
        unknown_owner: GaugeVec = "kube_controllers_gc_unknown_owner_addresses"["ippool"],
        /// Addresses of a pool in service that are neither allocated nor cooling down nor
        /// reserved.
        free: GaugeVec = "kube_controllers_ippool_free_addresses"["ippool"],
        /// Addresses that the node with the least room in the pool can take there without
        /// borrowing.
        fullest: GaugeVec = "kube_controllers_ippool_fullest_node_addresses"["ippool"],
        /// Blocks of nodes of which a quarter or less is allocated, including empty blocks.
        sparse: GaugeVec = "kube_controllers_ippool_sparse_blocks"["ippool"],
    }
}

pub(super) struct IpamMetrics {
    cache: ClusterCache,
    /// The metrics without samples.
    declared: IpamFamilies,
}

impl IpamMetrics {
    pub(super) fn new(cache: ClusterCache) -> Self {
        IpamMetrics {
            cache,
            declared: IpamFamilies::new(),
        }
    }
}

impl Collector for IpamMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.declared.desc()
    }

    /// Returns no metric before all required kinds are known, as upstream does before its first
    /// sync (KC-156).
    fn collect(&self) -> Vec<MetricFamily> {
        if !self.cache.is_complete() {
            return Vec::new();
        }
        // Only the copy is made while the index is locked, so that a scrape does not delay watches.
        let snapshot = CounterSnapshot::from_index(&self.cache.index());
        snapshot.families().collect()
    }
}

/// Name of a pool or node; `None` for no pool or no node.
type Name = Option<Arc<str>>;

/// A snapshot of the index's counters. Each name is stored once.
#[derive(Default)]
struct CounterSnapshot {
    pools: Vec<PoolCounters>,
    nodes: Vec<Arc<str>>,
    samples: Vec<OwnedSample>,
    reclaimed: Vec<(Name, Name, u64)>,
    rooms: Vec<RoomCounters>,
}

/// The room of a pool in service.
struct RoomCounters {
    pool: Arc<str>,
    free: u128,
    fullest: Option<u128>,
    sparse: u64,
}

struct PoolCounters {
    name: Arc<str>,
    size: u128,
    reserved: u128,
}

struct OwnedSample {
    pool: Name,
    node: Name,
    in_use: i64,
    borrowed: i64,
    candidates: i64,
    unknown_owner: i64,
    blocks: i64,
}

impl CounterSnapshot {
    fn from_index(index: &Index) -> Self {
        let mut names = HashMap::<&str, Arc<str>>::new();
        let mut name = |name| names.entry(name).or_insert_with(|| Arc::from(name)).clone();
        let pools = index.pools().into_iter();
        let pools = pools.map(|pool| PoolCounters {
            name: name(pool.name),
            size: pool.size,
            reserved: pool.reserved,
        });
        let pools = pools.collect();
        let nodes = index.calico_nodes().map(&mut name).collect();
        let owned = |sample: Sample<'_>, pool, node| {
            let Sample {
                in_use,
                borrowed,
                candidates,
                unknown_owner,
                blocks,
                ..
            } = sample;
            OwnedSample {
                pool,
                node,
                in_use,
                borrowed,
                candidates,
                unknown_owner,
                blocks,
            }
        };
        let samples = index
            .samples()
            .map(|entry| owned(entry, entry.pool.map(&mut name), entry.node.map(&mut name)));
        let samples = samples.collect();
        let reclaimed = index.reclaimed();
        let reclaimed = reclaimed.map(|count| {
            (
                count.pool.map(&mut name),
                count.node.map(&mut name),
                count.addresses,
            )
        });
        let reclaimed = reclaimed.collect();
        let rooms = index.rooms().map(
            |NamedRoom {
                 name: pool, room, ..
             }| RoomCounters {
                pool: name(pool),
                free: room.free,
                fullest: room.fullest.as_ref().map(|(_, addresses)| *addresses),
                sparse: room.sparse,
            },
        );
        let rooms = rooms.collect();
        CounterSnapshot {
            pools,
            nodes,
            samples,
            reclaimed,
            rooms,
        }
    }

    /// Returns new metrics with the counters as samples.
    fn families(&self) -> IpamFamilies {
        let families = IpamFamilies::new();
        self.add_zeros(&families);
        for sample in &self.samples {
            sample.add_to(&families);
        }
        // Two entries may have the same labels, for example a deleted pool and addresses that never
        // had a pool.
        for (pool, node, addresses) in &self.reclaimed {
            let pool = pool.as_deref().unwrap_or(NO_POOL);
            let node = node.as_deref().unwrap_or(NO_NODE);
            let counter = families.reclamations.with_label_values(&[pool, node]);
            counter.inc_by(*addresses as f64);
        }
        for pool in &self.pools {
            let label = &[&*pool.name];
            let reserved = saturated(pool.reserved);
            families.size.with_label_values(label).set(pool.size as f64);
            families.reserved.with_label_values(label).set(reserved);
        }
        for room in &self.rooms {
            let label = &[&*room.pool];
            families.free.with_label_values(label).set(room.free as f64);
            families
                .sparse
                .with_label_values(label)
                .set(room.sparse as f64);
            if let Some(fullest) = room.fullest {
                families
                    .fullest
                    .with_label_values(label)
                    .set(fullest as f64);
            }
        }
        families
    }

    /// Adds a zero for each existing node in each existing pool (KC-155).
    fn add_zeros(&self, families: &IpamFamilies) {
        let gauges = [&families.in_use, &families.borrowed, &families.candidates];
        for pool in &self.pools {
            for node in &self.nodes {
                for gauge in gauges {
                    gauge.with_label_values(&[&*pool.name, &**node]).set(0.0);
                }
            }
        }
    }
}

impl OwnedSample {
    /// Adds the values to the samples of the pool and the node. A zero makes no sample.
    fn add_to(&self, families: &IpamFamilies) {
        let pool = self.pool.as_deref().unwrap_or(NO_POOL);
        let node = self.node.as_deref().unwrap_or(NO_NODE);
        let owner = self.node.as_deref().unwrap_or(NO_AFFINITY);
        add(&families.in_use, &[pool, node], self.in_use);
        add(&families.borrowed, &[pool, node], self.borrowed);
        add(&families.candidates, &[pool, node], self.candidates);
        add(&families.blocks, &[pool, owner], self.blocks);
        add(&families.blocks_per_node, &[owner], self.blocks);
        add(&families.unknown_owner, &[pool], self.unknown_owner);
        if let Some(node) = self.node.as_deref() {
            add(&families.in_use_per_node, &[node], self.in_use);
            add(&families.borrowed_per_node, &[node], self.borrowed);
        }
    }
}

fn add(gauge: &GaugeVec, labels: &[&str], value: i64) {
    if value != 0 {
        gauge.with_label_values(labels).add(value as f64);
    }
}

/// Converts a count. Counts above the largest signed 64-bit integer become that integer, as in
/// upstream's counters.
fn saturated(count: u128) -> f64 {
    i64::try_from(count).unwrap_or(i64::MAX) as f64
}

#[cfg(test)]
mod tests;
