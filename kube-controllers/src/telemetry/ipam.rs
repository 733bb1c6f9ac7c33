//! The metrics of addresses and blocks, under upstream's names (KC-153).
//!
//! A vector without a sample shows nothing at all, as upstream's do (KC-155). A pool that is gone takes its samples with it,
//! counters too (KC-154): `remove_label_values`.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::registered;

/// From one that looks at a few nodes to one that waits for the API server, in seconds.
const PASS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

/// What the node controller shows.
#[derive(Debug, Clone)]
pub struct Ipam {
    /// Addresses that have a handle, by pool and node.
    pub in_use: IntGaugeVec,
    /// Those whose block is another node's or nobody's, by pool and node.
    pub borrowed: IntGaugeVec,
    /// Blocks by pool and affine node, or `no_affinity`.
    pub blocks: IntGaugeVec,
    /// Addresses that look leaked, confirmed or not, by pool and node.
    pub gc_candidates: IntGaugeVec,
    /// Addresses that were taken back, by pool and node.
    pub gc_reclamations: IntCounterVec,
    /// Addresses of a pool.
    pub pool_size: IntGaugeVec,
    /// Addresses of a pool that a reservation covers.
    pub pool_reserved: IntGaugeVec,
    /// Addresses that name a node, by node.
    pub in_use_per_node: IntGaugeVec,
    /// Borrowed addresses by node.
    pub borrowed_per_node: IntGaugeVec,
    /// Blocks by affine node, or `no_affinity`.
    pub blocks_per_node: IntGaugeVec,
    /// Addresses without a node, which nobody looks after (B-08), by pool.
    pub unattributed: IntGaugeVec,
    /// How long a pass of garbage collection took, by what it looked at (`full` or `dirty`), in seconds.
    pub pass_duration: prometheus::HistogramVec,
    /// When the last full pass ended, in seconds since 1970.
    pub last_full_pass: IntGauge,
}

impl Ipam {
    pub(super) fn new(registry: &Registry) -> Self {
        let gauge = |name, help, labels: &[&str]| registered(registry, IntGaugeVec::new(Opts::new(name, help), labels));
        let reclamations = Opts::new("ipam_allocations_gc_reclamations", "Leaked addresses that were taken back.");
        let passes = HistogramOpts::new("kube_controllers_gc_pass_duration_seconds", "How long a pass took.");
        Ipam {
            in_use: gauge("ipam_allocations_in_use", "Addresses in use.", &["ippool", "node"]),
            borrowed: gauge(
                "ipam_allocations_borrowed",
                "Addresses in use from a block of another node, or of none.",
                &["ippool", "node"],
            ),
            blocks: gauge("ipam_blocks", "Blocks.", &["ippool", "node"]),
            gc_candidates: gauge(
                "ipam_allocations_gc_candidates",
                "Addresses that look leaked, confirmed or not.",
                &["ippool", "node"],
            ),
            gc_reclamations: registered(registry, IntCounterVec::new(reclamations, &["ippool", "node"])),
            pool_size: gauge("ipam_ippool_size", "Addresses of the pool.", &["ippool"]),
            pool_reserved: gauge("ipam_ippool_reserved", "Addresses of the pool that are reserved.", &["ippool"]),
            in_use_per_node: gauge("ipam_allocations_per_node", "Addresses in use by the node.", &["node"]),
            borrowed_per_node: gauge(
                "ipam_allocations_borrowed_per_node",
                "Addresses in use by the node from blocks that are not its own.",
                &["node"],
            ),
            blocks_per_node: gauge("ipam_blocks_per_node", "Blocks of the node.", &["node"]),
            unattributed: gauge(
                "kube_controllers_unattributed_addresses",
                "Addresses in use that name no node, which no garbage collection looks at.",
                &["ippool"],
            ),
            pass_duration: registered(
                registry,
                prometheus::HistogramVec::new(passes.buckets(PASS.to_vec()), &["scope"]),
            ),
            last_full_pass: registered(
                registry,
                IntGauge::new(
                    "kube_controllers_gc_last_full_pass_timestamp_seconds",
                    "When everything was last looked at, in seconds since 1970.",
                ),
            ),
        }
    }
}

/// The one metric of migrations that is there without a migration (KC-155): recorded from upstream, and looked for.
pub(super) fn migration_duration(registry: &Registry) -> Histogram {
    let opts = HistogramOpts::new("calico_migration_duration_seconds", "How long a migration of the datastore took.");
    let doubling = (0..15).map(|power| f64::from(1u32 << power)).collect();
    registered(registry, Histogram::with_opts(opts.buckets(doubling)))
}
