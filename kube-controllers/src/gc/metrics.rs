//! Metrics of addresses and blocks, with upstream's names and labels (KC-153).
//!
//! A scrape reads the counters that the index maintains, and counts nothing itself. The passes
//! count the rooms of pools at intervals. A family without a sample is left out, as in upstream's
//! output (KC-155).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use libcalico::ipam::gc::{Index, NamedRoom, Sample};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::cache::ClusterCache;

const NO_POOL: &str = "no_ippool";
const NO_NODE: &str = "unknown_node";
const NO_AFFINITY: &str = "no_affinity";

const POOL: [&str; 1] = ["ippool"];
const NODE: [&str; 1] = ["node"];
const POOL_NODE: [&str; 2] = ["ippool", "node"];

pub(super) struct IpamMetrics {
    cache: ClusterCache,
    descriptions: Vec<Desc>,
}

impl IpamMetrics {
    pub(super) fn new(cache: ClusterCache) -> Result<Self, prometheus::Error> {
        let describe = |family: &MetricFamily| {
            Desc::new(
                family.name().into(),
                family.help().into(),
                Vec::new(),
                HashMap::new(),
            )
        };
        let descriptions = families(&CounterSnapshot::default())
            .iter()
            .map(describe)
            .collect::<Result<_, _>>()?;
        Ok(IpamMetrics {
            cache,
            descriptions,
        })
    }
}

impl Collector for IpamMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    /// Returns no metric before all required kinds are known, as upstream does before its first
    /// sync (KC-156).
    fn collect(&self) -> Vec<MetricFamily> {
        if !self.cache.is_complete() {
            return Vec::new();
        }
        // Only the copy is made while the index is locked, so that a scrape does not delay watches.
        let snapshot = CounterSnapshot::from_index(&self.cache.index());
        families(&snapshot)
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
}

type Values<K> = BTreeMap<K, f64>;

fn families(snapshot: &CounterSnapshot) -> Vec<MetricFamily> {
    let pools = &snapshot.pools;
    // For an existing pool, each existing node has an explicit value, even zero (KC-155).
    let zeros: Values<[&str; 2]> = snapshot
        .nodes
        .iter()
        .flat_map(|node| pools.iter().map(move |pool| ([&*pool.name, &**node], 0.0)))
        .collect();
    let (mut in_use, mut borrowed, mut candidates) = (zeros.clone(), zeros.clone(), zeros);
    let mut blocks = Values::new();
    let (mut per_node, mut borrowed_per_node, mut blocks_per_node) =
        (Values::new(), Values::new(), Values::new());
    let mut unknown_owner = Values::new();
    for sample in &snapshot.samples {
        let pool = sample.pool.as_deref().unwrap_or(NO_POOL);
        let (node, owner) = (
            sample.node.as_deref().unwrap_or(NO_NODE),
            sample.node.as_deref().unwrap_or(NO_AFFINITY),
        );
        for (values, value) in [
            (&mut in_use, sample.in_use),
            (&mut borrowed, sample.borrowed),
            (&mut candidates, sample.candidates),
        ] {
            // A zero replaces only a value that exists already.
            if value != 0 || (sample.pool.is_some() && values.contains_key(&[pool, node])) {
                values.insert([pool, node], value as f64);
            }
        }
        add(&mut blocks, [pool, owner], sample.blocks);
        add(&mut blocks_per_node, [owner], sample.blocks);
        add(&mut unknown_owner, [pool], sample.unknown_owner);
        if let Some(node) = sample.node.as_deref() {
            add(&mut per_node, [node], sample.in_use);
            add(&mut borrowed_per_node, [node], sample.borrowed);
        }
    }
    // Two entries may have the same labels, for example a deleted pool and addresses that never had
    // a pool.
    let mut reclamations = Values::new();
    for (pool, node, addresses) in &snapshot.reclaimed {
        let key = [
            pool.as_deref().unwrap_or(NO_POOL),
            node.as_deref().unwrap_or(NO_NODE),
        ];
        *reclamations.entry(key).or_default() += *addresses as f64;
    }
    let sizes = pools.iter().map(|pool| ([&*pool.name], pool.size as f64));
    let reserved = pools
        .iter()
        .map(|pool| ([&*pool.name], saturated(pool.reserved)));
    let rooms = &snapshot.rooms;
    let free = rooms.iter().map(|room| ([&*room.pool], room.free as f64));
    let fullest = rooms
        .iter()
        .filter_map(|room| Some(([&*room.pool], room.fullest? as f64)));
    let sparse = rooms.iter().map(|room| ([&*room.pool], room.sparse as f64));
    vec![
        gauge(
            "ipam_allocations_in_use",
            "Addresses in use.",
            POOL_NODE,
            in_use,
        ),
        gauge(
            "ipam_allocations_borrowed",
            "Addresses in use from a block of another node, or of no node.",
            POOL_NODE,
            borrowed,
        ),
        gauge("ipam_blocks", "Blocks.", POOL_NODE, blocks),
        gauge(
            "ipam_allocations_gc_candidates",
            "Addresses that look leaked, confirmed or not.",
            POOL_NODE,
            candidates,
        ),
        family(
            MetricType::COUNTER,
            "ipam_allocations_gc_reclamations",
            "Leaked addresses that were released.",
            POOL_NODE,
            reclamations,
        ),
        gauge("ipam_ippool_size", "Addresses of the pool.", POOL, sizes),
        gauge(
            "ipam_ippool_reserved",
            "Addresses of the pool that are reserved.",
            POOL,
            reserved,
        ),
        gauge(
            "ipam_allocations_per_node",
            "Addresses in use by the node.",
            NODE,
            per_node,
        ),
        gauge(
            "ipam_allocations_borrowed_per_node",
            "Addresses in use by the node from blocks that are not its own.",
            NODE,
            borrowed_per_node,
        ),
        gauge(
            "ipam_blocks_per_node",
            "Blocks of the node.",
            NODE,
            blocks_per_node,
        ),
        gauge(
            "kube_controllers_gc_unknown_owner_addresses",
            "Addresses whose owner is of an unknown kind, which are never released.",
            POOL,
            unknown_owner,
        ),
        gauge(
            "kube_controllers_ippool_free_addresses",
            "Addresses of a pool in service that are neither allocated nor cooling down nor \
             reserved.",
            POOL,
            free,
        ),
        gauge(
            "kube_controllers_ippool_fullest_node_addresses",
            "Addresses that the node with the least room in the pool can take there without \
             borrowing.",
            POOL,
            fullest,
        ),
        gauge(
            "kube_controllers_ippool_sparse_blocks",
            "Blocks of nodes of which a quarter or less is allocated, including empty blocks.",
            POOL,
            sparse,
        ),
    ]
}

fn add<K: Ord>(values: &mut Values<K>, key: K, value: i64) {
    if value != 0 {
        *values.entry(key).or_default() += value as f64;
    }
}

/// Converts a count. Counts above the largest signed 64-bit integer become that integer, as in
/// upstream's counters.
fn saturated(count: u128) -> f64 {
    i64::try_from(count).unwrap_or(i64::MAX) as f64
}

fn gauge<'a, const N: usize>(
    name: &str,
    help: &str,
    labels: [&str; N],
    values: impl IntoIterator<Item = ([&'a str; N], f64)>,
) -> MetricFamily {
    family(MetricType::GAUGE, name, help, labels, values)
}

/// Builds a metric family with one metric per entry of `values`. No help text may contain another
/// metric's name, as upstream's tests require.
fn family<'a, const N: usize>(
    kind: MetricType,
    name: &str,
    help: &str,
    labels: [&str; N],
    values: impl IntoIterator<Item = ([&'a str; N], f64)>,
) -> MetricFamily {
    let metric = |(values, value): ([&str; N], f64)| {
        let labels = labels.into_iter().zip(values).map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.into());
            pair.set_value(value.into());
            pair
        });
        let mut metric = Metric::default();
        metric.set_label(labels.collect());
        match kind {
            MetricType::COUNTER => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            _ => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
        }
        metric
    };
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    family.set_field_type(kind);
    family.set_metric(values.into_iter().map(metric).collect());
    family
}

#[cfg(test)]
mod tests;
