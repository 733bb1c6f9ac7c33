//! The metric of migrations that is there without one. Those of addresses and blocks are in `gc`.

use prometheus::{Histogram, HistogramOpts, Registry};

use super::registered;

/// The one metric of migrations that is there without a migration (KC-155): recorded from upstream, and looked for.
pub(super) fn migration_duration(registry: &Registry) -> Histogram {
    let opts = HistogramOpts::new("calico_migration_duration_seconds", "How long a migration of the datastore took.");
    let doubling = (0..15).map(|power| f64::from(1u32 << power)).collect();
    registered(registry, Histogram::with_opts(opts.buckets(doubling)))
}
