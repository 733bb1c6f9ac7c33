//! [`GcPass`]: the state that passes share.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use libcalico::ipam::{AffinityKey, HandleId};

use crate::context::Context;
use crate::gc::cache::ClusterCache;
use crate::gc::claims::Claims;
use crate::gc::clock::Clock;
use crate::gc::events::EventPublisher;
use crate::gc::gate::LeaderGate;
use crate::gc::handles::HandleAudit;
use crate::gc::recheck::{ApiReader, KubeVirt};
use crate::gc::telemetry::PassMetrics;
use crate::settings::Settings;

/// The state that passes share.
pub(in crate::gc) struct GcPass {
    pub(in crate::gc) context: Context,
    pub(in crate::gc) cache: ClusterCache,
    pub(in crate::gc) gate: LeaderGate,
    pub(in crate::gc) metrics: PassMetrics,
    pub(super) events: EventPublisher,
    pub(super) handles: HandleAudit,
    pub(super) claims: Claims,
    pub(super) kubevirt: KubeVirt,
    pub(in crate::gc) clock: Clock,
    pub(super) config_read: Option<Duration>,
    /// Leaks that a report has already logged.
    pub(super) reported: HashSet<(HandleId, IpAddr, Option<u64>)>,
    /// Affinities that a report has already logged.
    pub(super) reported_affinities: HashSet<AffinityKey>,
}

impl GcPass {
    pub(in crate::gc) fn new(context: Context, cache: ClusterCache, clock: Clock, metrics: PassMetrics) -> Self {
        let limits = context.settings.borrow().gc_limits;
        let gate = LeaderGate::new(context.leadership.clone(), context.stop.clone(), limits.requests_per_second);
        GcPass {
            context,
            cache,
            gate,
            metrics,
            events: EventPublisher::default(),
            handles: HandleAudit::default(),
            claims: Claims::default(),
            kubevirt: KubeVirt::default(),
            clock,
            config_read: None,
            reported: HashSet::new(),
            reported_affinities: HashSet::new(),
        }
    }

    /// Returns the time of the index.
    pub(in crate::gc) fn now(&self) -> Duration {
        self.clock.now()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.context.settings.borrow().clone()
    }

    pub(super) fn parallel(&self) -> usize {
        self.settings().gc_limits.parallelism.max(1)
    }

    pub(super) fn reader(&self) -> ApiReader<'_> {
        ApiReader {
            kubernetes: &self.context.kubernetes,
            calico: &self.context.calico,
            gate: &self.gate,
            parallel: self.parallel(),
        }
    }
}
