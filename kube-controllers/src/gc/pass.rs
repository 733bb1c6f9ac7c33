//! One pass: what nobody holds any more goes, phase after phase. A phase that fails keeps no other (B-17).

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use ipam_plugin::affinity::{release_empty_block, release_host_affinities};
use ipam_plugin::clock::SystemClock;
use ipam_plugin::error::IpamError;
use ipam_plugin::release_addresses::{WriteGate, release_batch};
use libcalico::ipam::gc::{Change, ChangeKind, GoneNode, Plan, Scope, Surrender, Suspect, plan, still_leaked};
use libcalico::ipam::{HandleId, IpamConfig, Owner, TheConfig};
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};
use time::OffsetDateTime;
use tokio::time::Instant;

use super::events::{Events, Told};
use super::gate::Gate;
use super::handles::HandleAudit;
use super::listen::Known;
use super::live::Reader;
use super::telemetry::PassMetrics;
use crate::context::Context;
use crate::settings::{Gc, Settings};

/// As many leaks are looked at again and released together (KC-445).
const AT_ONCE: usize = 10_000;
/// For how long the allocator's settings are taken to be as they were read, while addresses rest (B-42).
const CONFIG_IS_FRESH: Duration = Duration::from_secs(30);

/// What passes are made with, and what they remember.
pub(super) struct Collector {
    pub(super) context: Context,
    pub(super) known: Known,
    pub(super) gate: Gate,
    pub(super) metrics: PassMetrics,
    events: Events,
    handles: HandleAudit,
    began: Instant,
    config_read: Option<Duration>,
    /// Leaks that were told of in a report already.
    told: HashSet<(HandleId, IpAddr, Option<u64>)>,
}

impl Collector {
    pub(super) fn new(context: Context, known: Known, metrics: PassMetrics) -> Self {
        let limits = context.settings.borrow().gc_limits;
        let gate =
            Gate::new(context.leadership.clone(), known.ready(), context.stop.clone(), limits.requests_per_second);
        Collector {
            context,
            known,
            gate,
            metrics,
            events: Events::default(),
            handles: HandleAudit::default(),
            began: Instant::now(),
            config_read: None,
            told: HashSet::new(),
        }
    }

    /// The index's time.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn settings(&self) -> std::sync::Arc<Settings> {
        self.context.settings.borrow().clone()
    }

    fn parallel(&self) -> usize {
        self.settings().gc_limits.parallelism.max(1)
    }

    /// Judges, and while this replica may write acts on it.
    pub(super) async fn pass(&mut self, scope: Scope) {
        let settings = self.settings();
        self.apply(&settings);
        let changes = self.known.index().examine(self.now(), scope);
        self.note(&changes);
        if !self.gate.is_open() {
            return;
        }
        self.release_leaks(settings.gc).await;
        match settings.gc {
            Gc::Reclaim => {
                self.free_rested_addresses().await;
                self.surrender_blocks().await;
                self.release_nodes().await;
            }
            Gc::Report => self.report_blocks(),
        }
        if let Some(grace) = settings.leak_grace_period.filter(|grace| !grace.is_zero()) {
            let (calico, now) = (self.context.calico.clone(), self.now());
            self.handles.list_if_due(&calico, &self.known, now, grace).await;
            let mended = self.handles.mend(&calico, &self.gate, settings.gc, self.now(), grace).await;
            self.metrics.mended(mended, self.handles.wrong());
        }
    }

    /// When the next pass is to be, if nothing happens before.
    pub(super) fn next(&self) -> Duration {
        let now = self.now();
        let settings = self.settings();
        let index = self.known.index();
        let cold = index.next_cold(OffsetDateTime::now_utc()).map(|wait| now + wait.max(RESTLESS));
        let acting = self.gate.is_open();
        // What nobody acts on stays due.
        let of_index = index.next_deadline(now).map(|due| if acting { due } else { due.max(now + STANDBY) });
        let grace = settings.leak_grace_period.filter(|grace| !grace.is_zero());
        let handles = grace.filter(|_| acting).map(|grace| self.handles.next_deadline(now, grace));
        let cold = cold.filter(|_| acting && settings.gc == Gc::Reclaim);
        let next = of_index.into_iter().chain(cold).chain(handles).min();
        next.unwrap_or(Duration::MAX)
    }

    fn apply(&self, settings: &Settings) {
        let mut index = self.known.index();
        let in_force = libcalico::ipam::gc::Settings {
            leak_grace: settings.leak_grace_period,
            machines: self.known.knows_machines(),
            services: self.known.knows_services(),
            ..*index.settings()
        };
        index.set_settings(in_force);
    }

    fn note(&self, changes: &[Change]) {
        for Change { kind, block, address, handle } in changes {
            match kind {
                ChangeKind::Candidate(evidence) => {
                    tracing::debug!(%address, %handle, %block, %evidence, "an address looks leaked");
                }
                ChangeKind::Confirmed(evidence) => {
                    self.metrics.leaked.inc();
                    tracing::info!(%address, %handle, %block, %evidence, "an address is leaked");
                }
                ChangeKind::Cleared => tracing::debug!(%address, %handle, %block, "an address is held after all"),
            }
        }
    }

    // === leaks ===

    async fn release_leaks(&mut self, mode: Gc) {
        loop {
            let now = self.now();
            let suspects = self.known.index().suspects(now, AT_ONCE);
            if suspects.is_empty() || !self.gate.is_open() {
                return;
            }
            let plan = self.look_again(suspects, now).await;
            match mode {
                Gc::Report => self.report(&plan, now).await,
                Gc::Reclaim => self.release(&plan).await,
            }
        }
    }

    /// Judges suspects on what the API says now. Those that stay are told to the index.
    async fn look_again(&self, suspects: Vec<Suspect>, now: Duration) -> Plan {
        let reader = Reader {
            kubernetes: &self.context.kubernetes,
            calico: &self.context.calico,
            gate: &self.gate,
            parallel: self.parallel(),
        };
        let live = reader.read(&suspects).await;
        let decided = suspects.into_iter().map(|suspect| {
            let decision = suspect.revalidate(&live.facts(&suspect));
            (suspect, decision)
        });
        let plan = plan(decided);
        let mut index = self.known.index();
        for (suspect, keeper) in &plan.kept {
            tracing::info!(address = %suspect.address, handle = %suspect.handle, %keeper, "not released");
            index.kept(suspect, *keeper, now);
        }
        // Another address of its handle stays. If that one could not be seen the handle waits, as it does when it failed.
        plan.spared.iter().for_each(|suspect| index.failed(suspect, now));
        plan
    }

    async fn report(&mut self, plan: &Plan, now: Duration) {
        let found: Vec<&Suspect> = plan.blocks.values().flatten().collect();
        let new: Vec<&Suspect> = found.iter().copied().filter(|suspect| self.told.insert(identity(suspect))).collect();
        for suspect in &new {
            tracing::info!(address = %suspect.address, handle = %suspect.handle, node = suspect.node,
                reason = %suspect.evidence, "would release a leaked address");
        }
        self.metrics.would_reclaim.inc_by(new.len() as u64);
        self.events.tell(&self.context.kubernetes, Told::WouldReclaim, &new).await;
        let mut index = self.known.index();
        found.iter().for_each(|suspect| index.failed(suspect, now));
    }

    /// Says which blocks would be given up, and says so again when the time has come once more.
    fn report_blocks(&self) {
        let now = self.now();
        let mut index = self.known.index();
        for Surrender { block, node } in index.surrender(now) {
            tracing::info!(%block, node, "would give up an empty block of a node that has others");
        }
        for node in index.nodes_to_release(now) {
            tracing::info!(node = node.calico, "would give up the blocks of a node that is gone");
            index.node_not_released(&node.calico, now);
        }
    }

    async fn release(&self, plan: &Plan) {
        let blocks: Vec<Cidr> = plan.blocks.keys().copied().collect();
        let of_block = |block: &libcalico::ipam::Block| {
            let suspects = plan.blocks.get(&block.cidr).map(Vec::as_slice).unwrap_or_default();
            still_leaked(block, suspects).0
        };
        let clock = SystemClock::start();
        let outcome =
            release_batch(&*self.context.calico, &clock, &self.gate, &blocks, of_block, self.parallel()).await;
        let released: HashSet<IpAddr> = match &outcome {
            Ok(outcome) => outcome.released.iter().map(|(_, address)| *address).collect(),
            Err(error) => {
                self.metrics.failed("leaks");
                tracing::warn!(%error, "leaked addresses cannot be released");
                HashSet::new()
            }
        };
        if let Ok(outcome) = &outcome {
            for (block, error) in &outcome.failed {
                self.metrics.failed("leaks");
                tracing::warn!(%block, %error, "cannot release leaked addresses of a block");
            }
            for (block, refusal) in &outcome.refused {
                tracing::info!(%block, %refusal, "not released: it was allocated anew");
            }
        }
        let now = self.now();
        let (gone, left): (Vec<&Suspect>, Vec<&Suspect>) =
            plan.blocks.values().flatten().partition(|suspect| released.contains(&suspect.address));
        {
            let mut index = self.known.index();
            gone.iter().for_each(|suspect| index.released(suspect));
            // The block's next event tells what became of these; until then they are left alone (B-18).
            left.iter().for_each(|suspect| index.failed(suspect, now));
        }
        for suspect in &gone {
            tracing::info!(address = %suspect.address, handle = %suspect.handle, node = suspect.node,
                reason = %suspect.evidence, "released a leaked address");
        }
        self.metrics.reclaimed.inc_by(gone.len() as u64);
        self.events.tell(&self.context.kubernetes, Told::Reclaimed, &gone).await;
    }

    // === addresses that have rested, blocks, nodes ===

    /// Gives rested addresses back to the free lists of blocks that nobody writes otherwise (KC-450).
    async fn free_rested_addresses(&mut self) {
        if self.known.index().next_cold(OffsetDateTime::now_utc()).is_none() {
            return;
        }
        self.read_cooldown().await;
        let blocks = self.known.index().cold_blocks(OffsetDateTime::now_utc(), self.now());
        let clock = SystemClock::start();
        let none = |_: &libcalico::ipam::Block| Vec::new();
        let outcome = release_batch(&*self.context.calico, &clock, &self.gate, &blocks, none, self.parallel()).await;
        match outcome {
            Ok(outcome) => {
                for (block, error) in outcome.failed {
                    self.metrics.failed("rested");
                    tracing::warn!(%block, %error, "cannot free rested addresses");
                }
            }
            Err(error) => {
                self.metrics.failed("rested");
                tracing::warn!(%error, "cannot free rested addresses");
            }
        }
    }

    async fn read_cooldown(&mut self) {
        let now = self.now();
        if self.config_read.is_some_and(|read| now < read + CONFIG_IS_FRESH) {
            return;
        }
        let cooldown = match self.context.calico.get::<IpamConfig>(&TheConfig).await {
            Ok(entry) => entry.value.ip_cooldown_seconds,
            Err(StoreError::NotFound { .. }) => 0,
            Err(error) => return tracing::warn!(%error, "cannot read how long addresses rest"),
        };
        self.config_read = Some(now);
        let mut index = self.known.index();
        let settings = libcalico::ipam::gc::Settings { cooldown, ..*index.settings() };
        index.set_settings(settings);
    }

    /// Gives up empty blocks of which their nodes have others (KC-455).
    async fn surrender_blocks(&self) {
        let surrendered = self.known.index().surrender(self.now());
        let given_up = surrendered.into_iter().map(|surrender| self.surrender_block(surrender));
        stream::iter(given_up).buffer_unordered(self.parallel()).collect::<()>().await;
    }

    async fn surrender_block(&self, Surrender { block, node }: Surrender) {
        if !self.gate.admit(3).await {
            return;
        }
        let owner = Owner::Host(node);
        match release_empty_block(&*self.context.calico, &SystemClock::start(), &owner, block).await {
            Ok(()) => {
                tracing::info!(%block, %owner, "gave up an empty block of a node that has others");
                // At once, so that the next look keeps the node's last block.
                self.known.index().block_gone(&block);
            }
            Err(IpamError::BlockNotEmpty(_)) => tracing::debug!(%block, %owner, "block is in use again"),
            Err(error) => {
                self.metrics.failed("blocks");
                tracing::warn!(%block, %owner, %error, "cannot give up an empty block");
            }
        }
    }

    /// Gives up the blocks of nodes that are gone and hold no address any more (KC-460).
    async fn release_nodes(&self) {
        let gone = self.known.index().nodes_to_release(self.now());
        let released = gone.into_iter().map(|node| self.release_gone_node(node));
        stream::iter(released).buffer_unordered(self.parallel()).collect::<()>().await;
    }

    async fn release_gone_node(&self, node: GoneNode) {
        let done = self.release_node(&node).await;
        let now = self.now();
        let mut index = self.known.index();
        match done {
            true => index.node_released(&node.calico),
            false => index.node_not_released(&node.calico, now),
        }
    }

    async fn release_node(&self, node: &GoneNode) -> bool {
        let reader = Reader {
            kubernetes: &self.context.kubernetes,
            calico: &self.context.calico,
            gate: &self.gate,
            parallel: 1,
        };
        let (calico, kubernetes) = reader.node(node).await;
        if !node.is_gone(calico, kubernetes) {
            tracing::info!(node = node.calico, "a node that seemed gone is there, or could not be looked for");
            return false;
        }
        if !self.gate.admit(1).await {
            return false;
        }
        let owner = Owner::Host(node.calico.clone());
        match release_host_affinities(&*self.context.calico, &SystemClock::start(), &owner, true).await {
            Ok(outcome) => {
                for block in &outcome.released {
                    tracing::info!(%block, node = node.calico, "gave up a block of a node that is gone");
                }
                let in_use: BTreeMap<&Cidr, &IpamError> = outcome.kept.iter().map(|(cidr, why)| (cidr, why)).collect();
                for (block, reason) in &in_use {
                    tracing::debug!(%block, %reason, node = node.calico, "a block of a node that is gone stays");
                }
                in_use.is_empty()
            }
            Err(error) => {
                self.metrics.failed("nodes");
                tracing::warn!(node = node.calico, %error, "cannot give up the blocks of a node that is gone");
                false
            }
        }
    }

    /// Forgets what was told of leaks that are none any more, so that they are told of again when they come back.
    pub(super) fn forget_told(&mut self) {
        if self.told.is_empty() {
            return;
        }
        let confirmed: HashSet<_> =
            self.known.index().suspects(Duration::MAX, usize::MAX).iter().map(identity_of).collect();
        self.told.retain(|told| confirmed.contains(told));
    }
}

/// Rested addresses are looked for no more often.
const RESTLESS: Duration = Duration::from_secs(1);
/// A replica that may not write looks at what is due no more often.
const STANDBY: Duration = Duration::from_secs(1);

fn identity(suspect: &&Suspect) -> (HandleId, IpAddr, Option<u64>) {
    identity_of(suspect)
}

fn identity_of(suspect: &Suspect) -> (HandleId, IpAddr, Option<u64>) {
    (suspect.handle.clone(), suspect.address, suspect.sequence)
}
