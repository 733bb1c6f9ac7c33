//! A pass of garbage collection, in several phases. A failed phase does not stop the others.

mod blocks;
mod conflicts;
mod leaks;
mod listing_endpoints;
mod marked;
mod pools;
mod release_times;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use libcalico::ipam::gc::{Change, ChangeKind, Scope, VmiAvailability};
use libcalico::ipam::{AffinityKey, HandleId};
use os::clock::Clock;
use tracing::field::display;

use self::marked::MarkedBlocks;
use self::pools::PoolRooms;
use super::affinities::AffinityAudit;
use super::handles::{self, HandleAudit};
use super::pass_inputs::PassInputs;
use super::recheck::{ApiReader, KubeVirtDiscovery};
use super::this_replica::ThisReplica;
use super::world::{PassGate, World};
use crate::settings::{GcMode, Settings};

/// Shortest interval between two looks for addresses whose cooldown has ended.
const MIN_COOLDOWN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of passes over due entries on a replica that may not write.
const STANDBY_INTERVAL: Duration = Duration::from_secs(1);

/// The passes of garbage collection, with what a pass remembers of earlier ones.
pub struct GcPass<W: World = ThisReplica> {
    pub(super) inputs: PassInputs<W>,
    handles: HandleAudit,
    affinities: AffinityAudit,
    kubevirt: KubeVirtDiscovery,
    config_read_at: Option<Duration>,
    rooms: PoolRooms,
    /// Leaks that the mode `report` has already logged.
    reported: HashSet<(HandleId, IpAddr, Option<u64>)>,
    reported_affinities: HashSet<AffinityKey>,
    marked: MarkedBlocks,
    /// The time of the next request for the time of the API server.
    release_times_due: Duration,
}

impl<W: World> GcPass<W> {
    /// Prepares the first pass. Sends no request.
    pub fn new(inputs: PassInputs<W>) -> Self {
        GcPass {
            inputs,
            handles: HandleAudit::default(),
            affinities: AffinityAudit::default(),
            kubevirt: KubeVirtDiscovery::default(),
            config_read_at: None,
            rooms: PoolRooms::default(),
            reported: HashSet::new(),
            reported_affinities: HashSet::new(),
            marked: MarkedBlocks::default(),
            release_times_due: Duration::ZERO,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.inputs.clock.elapsed()
    }

    fn settings(&self) -> Arc<Settings> {
        self.inputs.settings.borrow().clone()
    }

    fn parallel(&self) -> usize {
        self.settings().gc_limits.parallelism.max(1)
    }

    fn reader(&self) -> ApiReader<'_, W> {
        ApiReader {
            api: &self.inputs.api,
            calico: &self.inputs.calico,
            gate: &self.inputs.gate,
            parallel: self.parallel(),
        }
    }

    /// Assesses the entries, and acts on the result while this replica may write.
    pub async fn run(&mut self, scope: Scope) {
        let settings = self.settings();
        self.discover_kubevirt().await;
        self.apply_settings(&settings);
        let changes = self.inputs.cache.index().examine(self.now(), scope);
        self.log_changes(&changes);
        self.count_conflicts();
        self.count_rooms(scope).await;
        self.inputs.gate.report_wait().await;
        if !self.inputs.gate.is_open() {
            self.reset_thresholds();
            return;
        }
        let (gate, watchdog) = (self.inputs.gate.clone(), self.inputs.watchdog.clone());
        // A batch of writes is several requests, each with retries; none is sent after the right to
        // write has ended. Watching that right wakes this task, so the watchdog observes only the
        // actions themselves.
        let phases = watchdog.observe(
            "a pass of garbage collection".into(),
            self.run_phases(&settings),
        );
        _ = gate.while_leading(phases).await;
    }

    /// Looks up KubeVirt at an interval, while this replica may write and an address belongs to a
    /// virtual machine.
    async fn discover_kubevirt(&mut self) {
        let now = self.now();
        if !self.kubevirt.is_due(now) && self.inputs.gate.is_open() {
            return;
        }
        if self.inputs.gate.is_open() && self.inputs.cache.index().has_vmis() {
            self.kubevirt
                .record(self.reader().look_up_kubevirt().await, now);
        } else {
            self.kubevirt = KubeVirtDiscovery::default();
        }
    }

    async fn run_phases(&mut self, settings: &Settings) {
        self.release_leaks(settings.gc_mode).await;
        match settings.gc_mode {
            GcMode::Reclaim => {
                self.correct_release_times().await;
                self.release_cooled_addresses().await;
                self.delete_marked_blocks().await;
                self.release_excess_blocks().await;
                self.release_deleted_nodes().await;
            }
            GcMode::Report => self.report_blocks(),
        }
        if let Some(grace) = settings.leak_grace_period.filter(|grace| !grace.is_zero()) {
            let (calico, cache) = (self.inputs.calico.clone(), self.inputs.cache.clone());
            let (affinities, clock) = (self.affinities.clone(), self.inputs.clock.clone());
            let list_all = |wrong_handles| {
                handles::list_all(calico.clone(), cache, wrong_handles, affinities, clock)
            };
            let (now, background) = (self.now(), &mut self.inputs.background);
            self.handles.list_if_due(now, grace, background, list_all);
            let (now, gate) = (self.now(), &*self.inputs.gate);
            let repaired = self
                .handles
                .repair(&*calico, gate, settings.gc_mode, now, grace)
                .await;
            self.inputs
                .metrics
                .record_repairs(repaired, self.handles.wrong_count());
            let (now, reported) = (self.inputs.clock.elapsed(), &mut self.reported_affinities);
            let failed = self
                .affinities
                .finish(&*calico, gate, settings.gc_mode, now, grace, reported)
                .await;
            (0..failed).for_each(|_| self.inputs.metrics.count_failure("claims"));
        }
        self.report_nearly_full_pools().await;
        // Conflicts come last, because there may be thousands of them after a restore.
        self.report_conflicts().await;
    }

    /// Returns the time of the next pass if nothing changes before; [`Duration::MAX`] if no entry
    /// has a deadline.
    pub fn next_deadline(&self) -> Duration {
        let now = self.now();
        let settings = self.settings();
        let index = self.inputs.cache.index();
        let cold = index
            .next_cooldown_end(self.inputs.clock.now())
            .map(|wait| now + wait.max(MIN_COOLDOWN_INTERVAL));
        let may_write = self.inputs.gate.is_open();
        // On a replica that may not write, entries stay due, so their deadlines count only after
        // [`STANDBY_INTERVAL`].
        let indexed = index.next_deadline(now).map(|due| {
            if may_write {
                due
            } else {
                due.max(now + STANDBY_INTERVAL)
            }
        });
        let grace = settings.leak_grace_period.filter(|grace| !grace.is_zero());
        let handles = grace
            .filter(|_| may_write)
            .map(|grace| self.handles.next_deadline(now, grace));
        let affinities = grace
            .filter(|_| may_write)
            .and_then(|grace| self.affinities.next_deadline(now, grace));
        let cold = cold.filter(|_| may_write && settings.gc_mode == GcMode::Reclaim);
        let marked = self.marked.next_deadline(index.marked_blocks(), now);
        let marked = marked.filter(|_| may_write && settings.gc_mode == GcMode::Reclaim);
        let kubevirt = self.kubevirt.next_deadline().filter(|_| may_write);
        let rooms = index.has_changed_rooms().then(|| self.rooms.next_count());
        let next = indexed
            .into_iter()
            .chain(cold)
            .chain(handles)
            .chain(affinities)
            .chain(kubevirt)
            .chain(rooms)
            .chain(marked)
            .min();
        next.unwrap_or(Duration::MAX)
    }

    fn apply_settings(&self, settings: &Settings) {
        let mut index = self.inputs.cache.index();
        let in_force = libcalico::ipam::gc::GcSettings {
            leak_grace: settings.leak_grace_period,
            vmis: match (self.kubevirt.is_missing, self.inputs.cache.has_listed_vms()) {
                (true, _) => VmiAvailability::Undefined,
                (false, true) => VmiAvailability::Watched,
                (false, false) => VmiAvailability::Unwatched,
            },
            services: self.inputs.cache.has_listed_services(),
            ..*index.settings()
        };
        index.set_settings(in_force);
    }

    fn log_changes(&self, changes: &[Change]) {
        for Change {
            kind,
            block,
            address,
            handle,
            owner,
            node,
        } in changes
        {
            let (node, pod) = (node.as_deref().map(display), owner.pod().map(display));
            match kind {
                ChangeKind::Candidate(reason) => {
                    tracing::info!(
                        %address, %handle, node, pod, %block, %reason, "an address looks leaked",
                    );
                }
                ChangeKind::Confirmed(reason) => {
                    self.inputs.metrics.families.leaked.inc();
                    tracing::info!(
                        %address, %handle, node, pod, %block, %reason, "an address is leaked",
                    );
                }
                ChangeKind::Cleared => {
                    tracing::info!(%address, %handle, node, pod, %block,
                        "an address does not look leaked any more");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
