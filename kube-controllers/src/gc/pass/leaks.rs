//! The phase that checks leaked addresses again and releases them.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use allocation::release::release_batch;
use libcalico::ipam::gc::{Plan, Suspect, plan, still_leaked};
use libcalico::ipam::{Block, HandleId};
use libcalico::net::Cidr;
use os::clock::Clock;

use super::GcPass;
use crate::gc::events::publish;
use crate::gc::recheck::CurrentState;
use crate::gc::world::{PassGate, World};
use crate::settings::GcMode;

/// Maximum number of leaks that are checked and released together, as in upstream (KC-445).
const BATCH_SIZE: usize = 10_000;

impl<W: World> GcPass<W> {
    pub(super) async fn release_leaks(&mut self, mode: GcMode) {
        // All due times are compared with the start of the pass. So a leak that is postponed does
        // not come up again in the same pass, however long the pass takes.
        let started_at = self.now();
        loop {
            let suspects = self.inputs.cache.index().suspects(started_at, BATCH_SIZE);
            if suspects.is_empty() || !self.inputs.gate.is_open() {
                return;
            }
            let (mut plan, state) = self.recheck(suspects).await;
            match mode {
                GcMode::Report => self.report(&plan).await,
                GcMode::Reclaim => {
                    self.delete_listing_endpoints(&mut plan, &state).await;
                    self.release(&plan).await;
                }
            }
        }
    }

    /// Decides about suspects by the current state in the API. Records the kept suspects in the
    /// index.
    async fn recheck(&self, suspects: Vec<Suspect>) -> (Plan, CurrentState) {
        let pods = self.inputs.cache.index().owners();
        let state = self.reader().read(&suspects, pods).await;
        let decided = suspects.into_iter().map(|suspect| {
            let decision = suspect.recheck(&state.current_facts(&suspect));
            (suspect, decision)
        });
        let plan = plan(decided);
        let now = self.now();
        let mut index = self.inputs.cache.index();
        for (suspect, reason) in &plan.kept {
            log_suspect(suspect, reason, "kept an address that looked leaked");
            index.kept(suspect, *reason, now);
        }
        // Another address of the same handle stays, so these stay too (KC-445).
        plan.spared
            .iter()
            .for_each(|suspect| index.postpone(suspect, now));
        drop(index);
        (plan, state)
    }

    async fn report(&mut self, plan: &Plan) {
        let leaks: Vec<&Suspect> = plan.blocks.values().flatten().collect();
        let new: Vec<&Suspect> = leaks
            .iter()
            .copied()
            .filter(|leak| self.reported.insert(leak_id(leak)))
            .collect();
        for suspect in &new {
            log_suspect(
                suspect,
                &suspect.reason,
                "would release a leaked address; GC_MODE=report keeps it",
            );
        }
        self.inputs
            .metrics
            .families
            .reported_leaks
            .inc_by(new.len() as u64);
        let now = self.inputs.clock.now().into();
        publish(
            &self.inputs.api,
            &*self.inputs.gate,
            GcMode::Report,
            &new,
            now,
        )
        .await;
        let now = self.now();
        let mut index = self.inputs.cache.index();
        leaks
            .iter()
            .for_each(|suspect| index.postpone(suspect, now));
    }

    async fn release(&self, plan: &Plan) {
        let blocks: Vec<Cidr> = plan.blocks.keys().copied().collect();
        let requests_for = |block: &Block| {
            let suspects = plan
                .blocks
                .get(&block.cidr)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let requests = still_leaked(block, suspects).0;
            let is_requested =
                |suspect: &&Suspect| requests.iter().any(|request| request.ip == suspect.address);
            for suspect in suspects.iter().filter(is_requested) {
                log_suspect(suspect, &suspect.reason, "releasing a leaked address");
            }
            requests
        };
        let (calico, clock) = (&*self.inputs.calico, self.inputs.clock.restarted());
        let outcome = release_batch(
            calico,
            &clock,
            &*self.inputs.gate,
            &blocks,
            requests_for,
            self.parallel(),
        )
        .await;
        let released_addresses: HashSet<IpAddr> = match outcome {
            Ok(outcome) => {
                for (block, error) in &outcome.failed {
                    self.inputs.metrics.count_failure("leaks");
                    tracing::warn!(
                        %block, %error,
                        "cannot release leaked addresses of a block; trying again later",
                    );
                }
                for (block, refusal) in &outcome.refused {
                    tracing::info!(
                        %block, %refusal, "did not release an address: its allocation has changed",
                    );
                }
                outcome
                    .released
                    .iter()
                    .map(|(_, address)| *address)
                    .collect()
            }
            Err(error) => {
                self.inputs.metrics.count_failure("leaks");
                tracing::warn!(%error, "cannot release leaked addresses; trying again later");
                HashSet::new()
            }
        };
        let now = self.now();
        let (released, remaining): (Vec<&Suspect>, Vec<&Suspect>) = plan
            .blocks
            .values()
            .flatten()
            .partition(|suspect| released_addresses.contains(&suspect.address));
        {
            let mut index = self.inputs.cache.index();
            released.iter().for_each(|suspect| index.released(suspect));
            // Postpones the other suspects. An event of their block may show that they are not
            // leaked.
            remaining
                .iter()
                .for_each(|suspect| index.postpone(suspect, now));
        }
        for suspect in &released {
            log_suspect(suspect, &suspect.reason, "released a leaked address");
        }
        self.inputs
            .metrics
            .families
            .reclaimed
            .inc_by(released.len() as u64);
        publish(
            &self.inputs.api,
            &*self.inputs.gate,
            GcMode::Reclaim,
            &released,
            self.inputs.clock.now().into(),
        )
        .await;
    }

    /// Removes the leaks that no longer exist from `reported`, so that a leak that comes back is
    /// reported again.
    pub fn prune_reported(&mut self) {
        if self.reported.is_empty() {
            return;
        }
        let leaks: HashSet<_> = self
            .inputs
            .cache
            .index()
            .suspects(Duration::MAX, usize::MAX)
            .iter()
            .map(leak_id)
            .collect();
        self.reported.retain(|reported| leaks.contains(reported));
    }
}

fn leak_id(suspect: &Suspect) -> (HandleId, IpAddr, Option<u64>) {
    (suspect.handle.clone(), suspect.address, suspect.sequence)
}

fn log_suspect(suspect: &Suspect, reason: &dyn Display, outcome: &str) {
    tracing::info!(address = %suspect.address, handle = %suspect.handle,
        node = suspect.node.as_deref().map(display),
        pod = suspect.owner.pod().map(display), %reason, "{outcome}");
}
