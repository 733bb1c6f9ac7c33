//! The metric of datastore migrations. Metrics of addresses and blocks are in `gc`.

use prometheus::{Histogram, HistogramOpts, Registry};

use super::registered;

/// Registers the only `calico_migration_*` metric that upstream exposes from the start of the process, without any
/// migration (KC-155). This program never migrates; scrapes may expect the metric.
pub(super) fn migration_duration(registry: &Registry) -> Histogram {
    let opts = HistogramOpts::new("calico_migration_duration_seconds", "How long a migration of the datastore took.");
    let doubling = (0..15).map(|power| f64::from(1u32 << power)).collect();
    registered(registry, Histogram::with_opts(opts.buckets(doubling)))
}
