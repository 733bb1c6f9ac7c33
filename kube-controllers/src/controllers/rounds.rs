//! [`rounds`]: periodic reconciliation of all objects.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::context::Context;

/// Interval at which a controller reconciles all objects, regardless of events.
pub(super) const PERIOD: Duration = Duration::from_secs(300);

/// Calls `all` every [`PERIOD`] and after each change of the settings, until `context.stop`.
pub(super) async fn rounds(context: &Context, mut all: impl FnMut()) {
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
        all();
    }
}
