//! Garbage collection of addresses, blocks, affinities and handles.
//!
//! ```text
//! watches ─▶ index ─examine▶ confirmed leaks ─▶ lookup in the API
//!                                               ─▶ one write per block, one per handle
//! ```
//! Events of watches are applied to the index at once (`cache.rs`). A pass assesses the changed
//! entries (`pass/`), for example when no event has come for a moment. A leak that is confirmed by
//! the caches is looked up in the API (`recheck/`) before the address is released. Every replica
//! assesses; only the leader writes (`gate.rs`).

mod affinities;
mod cache;
mod clock;
mod events;
mod gate;
mod handles;
mod metrics;
mod owners_api;
mod pass;
mod pass_inputs;
mod pass_metrics;
mod recheck;
mod this_replica;
mod world;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use libcalico::ipam::gc::{GcSettings, Index, Scope};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

pub use self::cache::ClusterCache;
pub use self::clock::Clock;
use self::metrics::IpamMetrics;
pub use self::pass::GcPass;
pub use self::pass_inputs::PassInputs;
pub use self::pass_metrics::PassMetrics;
pub use self::world::{Background, ClusterApi, ListedStore, PassGate, PodPage, World};
use crate::context::Context;
pub use crate::events::Posted;
use crate::runtime::Controller;
use crate::watches::Watches;

/// Interval at which all entries are assessed again although nothing changed, as a safety net.
const FULL_PASS_INTERVAL: Duration = Duration::from_secs(300);
/// Time without events after which a pass starts, so that related events are assessed together.
const QUIET_PERIOD: Duration = Duration::from_millis(50);
const MAX_QUIET_WAIT: Duration = Duration::from_secs(1);
/// Time limit for the current writes when the controllers are stopping.
const STOP_DEADLINE: Duration = Duration::from_secs(3);
/// Interval at which the log names the kinds that have not been listed yet.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
const PANIC_PAUSE: Duration = Duration::from_secs(5);

/// The controller of garbage collection.
pub struct GarbageCollection {
    cache: ClusterCache,
    clock: Clock,
}

impl GarbageCollection {
    /// Returns the clock of grace periods.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }
}

impl Controller for GarbageCollection {
    const NAME: &'static str = "gc";

    fn new(context: &Context, watches: &mut Watches) -> Self {
        let cache = ClusterCache::new(context.mode, Index::new(GcSettings::default()), watches);
        GarbageCollection {
            cache,
            clock: Clock::start(),
        }
    }

    async fn run(self, context: Context) {
        let registered = context
            .metrics
            .register(IpamMetrics::new(self.cache.clone()));
        let metrics = match registered.and_then(|()| PassMetrics::new(&context.metrics)) {
            Ok(metrics) => metrics,
            // The metrics exist, so another instance is running in this process. Two instances must
            // not both write.
            Err(error) => {
                return tracing::error!(
                    %error, "cannot start garbage collection: its metrics exist already",
                );
            }
        };
        let stop = context.stop.clone();
        let write_deadline = async {
            stop.cancelled().await;
            sleep(STOP_DEADLINE).await;
        };
        let inputs = PassInputs::of(&context, self.cache, self.clock, metrics);
        // The gate closes when the controllers are stopping, so a pass ends after its current
        // writes.
        tokio::select! {
            () = write_deadline => {
                tracing::warn!(
                    reason = "the controllers stop",
                    "canceled a pass of garbage collection"
                )
            }
            () = run_passes(&context, GcPass::new(inputs)) => {}
        }
    }
}

async fn run_passes(context: &Context, mut gc_pass: GcPass) {
    let (stop, metrics) = (&context.stop, gc_pass.inputs.metrics.clone());
    stop.run_until_cancelled(wait_until_listed(&gc_pass.inputs.cache, &metrics))
        .await;
    let mut full_at = Instant::now();
    while !stop.is_cancelled() {
        let full = Instant::now() >= full_at;
        let scope = if full {
            Scope::Everything
        } else {
            Scope::Changed
        };
        let began = Instant::now();
        let pass = context
            .watchdog
            .observe("a pass of garbage collection".into(), gc_pass.run(scope));
        if AssertUnwindSafe(pass).catch_unwind().await.is_err() {
            tracing::error!("a pass of garbage collection panicked; the next pass starts soon");
            metrics.count_failure("panic");
            metrics.record_reconcile(began.elapsed(), context.leadership.holds());
            stop.run_until_cancelled(sleep(PANIC_PAUSE)).await;
        } else {
            if full {
                full_at = Instant::now() + FULL_PASS_INTERVAL;
                gc_pass.prune_reported();
            }
            let at = full.then(|| OffsetDateTime::now_utc().unix_timestamp());
            metrics.record_pass(began.elapsed(), at);
            metrics.record_reconcile(began.elapsed(), context.leadership.holds());
        }
        stop.run_until_cancelled(wait_until_due(context, &gc_pass, full_at))
            .await;
    }
}

async fn wait_until_listed(cache: &ClusterCache, metrics: &PassMetrics) {
    let mut remind_at = Instant::now() + LOG_INTERVAL;
    loop {
        cache
            .required()
            .for_each(|(kind, awaited)| metrics.set_awaited(kind, awaited));
        if cache.is_complete() {
            return;
        }
        if timeout_at(remind_at, cache.changed()).await.is_err() {
            let awaited: Vec<&str> = cache
                .required()
                .filter_map(|(kind, awaited)| awaited.then_some(kind))
                .collect();
            tracing::warn!(
                awaited = awaited.join(", "),
                "garbage collection waits for the first list of these kinds"
            );
            remind_at = Instant::now() + LOG_INTERVAL;
        }
    }
}

async fn wait_until_due(context: &Context, gc_pass: &GcPass, full_at: Instant) {
    let PassInputs { cache, clock, .. } = &gc_pass.inputs;
    let now = (Instant::now(), gc_pass.now());
    let due = gc_pass.next_deadline().saturating_sub(now.1);
    let due = now
        .0
        .checked_add(due)
        .map_or(full_at, |due| due.min(full_at));
    let leads = context.leadership.holds();
    let (mut leadership, mut settings) = (context.leadership.clone(), context.settings.clone());
    settings.mark_unchanged();
    tokio::select! {
        () = cache.changed() => {}
        () = clock.advanced() => return,
        () = sleep_until(due) => return,
        () = leadership.gained(), if !leads => return,
        Ok(()) = settings.changed() => return,
    }
    let longest = Instant::now() + MAX_QUIET_WAIT;
    loop {
        let quiet_until = Instant::now() + QUIET_PERIOD;
        if quiet_until >= longest {
            return;
        }
        // Sleeps without being woken by each event: events that come during the sleep are assessed
        // together.
        sleep_until(quiet_until).await;
        if cache.changed().now_or_never().is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
