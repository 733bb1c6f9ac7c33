//! [`resync`]: periodic reconciliation of all objects. [`ResyncKey`]: a key of a controller that compares all objects.

use std::fmt;
use std::time::Duration;

use libcalico::api::ObjectKey;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::context::Context;

/// Interval at which a controller reconciles all objects, regardless of events.
pub(super) const PERIOD: Duration = Duration::from_secs(300);

/// Calls `queue_all` every [`PERIOD`] and after each change of the settings, until `context.stop`.
pub(super) async fn resync(context: &Context, mut queue_all: impl FnMut()) {
    let mut settings = context.settings.clone();
    settings.mark_unchanged();
    let mut ticks = interval_at(Instant::now() + PERIOD, PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.stop.cancelled() => return,
            _ = ticks.tick() => {}
            Ok(()) = settings.changed() => {}
        }
        queue_all();
    }
}

/// A unit of work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ResyncKey {
    /// Compare all objects.
    All,
    /// Reconcile the object with this key.
    One(ObjectKey),
}

impl fmt::Display for ResyncKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResyncKey::All => f.write_str("all"),
            ResyncKey::One(key) => key.fmt(f),
        }
    }
}
