//! [`PassInputs`]: all that a pass acts on, reads and waits for.

use std::sync::Arc;

use tokio::sync::watch;

use super::cache::ClusterCache;
use super::pass_metrics::PassMetrics;
use super::world::World;
use crate::settings::{Mode, Settings};
use crate::status::Watchdog;

/// All that a pass acts on, reads and waits for.
pub struct PassInputs<W: World> {
    /// The datastore with Calico's objects.
    pub calico: Arc<W::Store>,
    /// The API server.
    pub api: W::Api,
    /// The index, which the events of watches fill.
    pub cache: ClusterCache,
    /// The clock of grace periods.
    pub clock: W::Clock,
    /// The right to write.
    pub gate: Arc<W::Gate>,
    /// The work beside the passes.
    pub background: W::Background,
    /// The settings in force.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// The place where Calico's objects are stored.
    pub mode: Mode,
    /// The metrics.
    pub metrics: PassMetrics,
    /// Detects a pass that is stuck.
    pub watchdog: Watchdog,
}
