//! Runs garbage collection in the simulated cluster as kube-controllers does, directly on the
//! blocks.

use super::*;

impl Cluster {
    /// Decides about every suspect by the true state. `fails` selects the lookups that fail.
    pub(in super::super) fn decide(&mut self, fails: impl Fn(usize) -> bool) -> Plan {
        self.index.examine(self.now, Scope::Changed);
        let suspects = self.index.suspects(self.now, usize::MAX);
        let decided: Vec<_> = suspects
            .into_iter()
            .enumerate()
            .map(|(n, suspect)| {
                let facts = if fails(n) {
                    CurrentFacts::default()
                } else {
                    self.live(&suspect)
                };
                let decision = suspect.recheck(&facts);
                (suspect, decision)
            })
            .collect();
        let plan = plan(decided);
        for (suspect, in_use_reason) in &plan.kept {
            self.index.kept(suspect, *in_use_reason, self.now);
        }
        plan
    }

    fn live(&self, suspect: &Suspect) -> CurrentFacts<'_> {
        let lookups = suspect.required_lookups();
        let lookup = |exists| {
            if exists {
                Lookup::Present(())
            } else {
                Lookup::Absent
            }
        };
        CurrentFacts {
            pod: lookups.pod.map_or(Lookup::Unknown, |(_, name)| {
                self.pods
                    .get(name)
                    .map_or(Lookup::Absent, |pod| Lookup::Present(pod.state()))
            }),
            vmi: match lookups.vmi {
                None => VmiLookup::Unknown,
                Some((_, name)) if self.vmis.contains_key(name) => VmiLookup::Present,
                Some(_) => VmiLookup::Absent,
            },
            // The simulated cluster has no pods for launchers.
            owners: lookups.owners.iter().map(|_| Lookup::Absent).collect(),
            service: lookups.service.map_or(Lookup::Unknown, |(_, name)| {
                lookup(self.services.contains(name))
            }),
            kubernetes_node: lookups
                .kubernetes_node
                .map_or(Lookup::Unknown, |name| lookup(self.nodes.contains(name))),
            calico_node: lookups
                .calico_node
                .map_or(Lookup::Unknown, |name| lookup(self.nodes.contains(name))),
        }
    }

    /// Releases the planned addresses, and returns their number. Panics if a released address is in
    /// use.
    pub(in super::super) fn apply(&mut self, plan: &Plan) -> usize {
        let mut released = 0;
        for (cidr, suspects) in &plan.blocks {
            let Some(mut block) = self.blocks.get(cidr).cloned() else {
                continue;
            };
            let (requests, changed) = still_leaked(&block, suspects);
            for request in &requests {
                assert!(
                    !self.in_use(request.ip),
                    "{} is in use: {suspects:?}",
                    request.ip
                );
            }
            changed
                .iter()
                .for_each(|suspect| self.index.postpone(suspect, self.now));
            if requests.is_empty() {
                continue;
            }
            let outcome = block
                .release(&requests, self.cooldown, self.wall())
                .unwrap();
            assert_eq!(outcome.released.len(), requests.len());
            released += requests.len();
            self.write(block);
            for suspect in suspects.iter().filter(|suspect| !changed.contains(suspect)) {
                self.index.released(suspect);
                self.released.push(suspect.clone());
            }
        }
        released
    }

    pub(in super::super) fn run_rest_of_pass(&mut self) {
        for cidr in self.index.cooled_blocks(self.wall(), self.now) {
            let Some(mut block) = self.blocks.get(&cidr).cloned() else {
                continue;
            };
            if block.collect_garbage(self.cooldown, self.wall()).unwrap() {
                self.write(block);
            }
        }
        for ExcessBlock {
            block: cidr,
            node,
            reason,
        } in self.index.excess_blocks(self.now)
        {
            let owner = AffinityOwner::Host(node);
            let Some(block) = self
                .blocks
                .get(&cidr)
                .filter(|block| block.owner() == Some(owner.clone()))
            else {
                continue;
            };
            if block.is_empty() {
                self.blocks.remove(&cidr);
                self.queue_event(Queue::Blocks, Event::BlockGone(cidr));
                self.index.remove_block(&cidr);
                if reason == ExcessReason::OtherBlocks {
                    self.check_last_block(&owner, &cidr);
                }
            }
        }
        for gone in self.index.nodes_to_release(self.now) {
            let lookup = |exists| {
                if exists {
                    Lookup::Present(())
                } else {
                    Lookup::Absent
                }
            };
            let node = lookup(self.nodes.contains(&gone.calico));
            if !gone.is_gone(node, node) {
                self.index.postpone_node(&gone.calico, self.now);
                continue;
            }
            self.release_affinities(&gone.calico);
        }
    }

    /// Checks that a node kept a block of the family, unless the index had not received all events
    /// of blocks.
    fn check_last_block(&self, owner: &AffinityOwner, cidr: &Cidr) {
        if self
            .queues
            .get(&Queue::Blocks)
            .is_none_or(|queue| queue.len() <= 1)
        {
            let mut remaining = self
                .blocks
                .values()
                .filter(|block| block.owner().as_ref() == Some(owner));
            assert!(
                remaining.any(|block| block.cidr.version() == cidr.version()),
                "{owner} lost its last block"
            );
        }
    }

    fn release_affinities(&mut self, node: &str) {
        let owner = AffinityOwner::Host(node.into());
        let owned: Vec<Cidr> = self
            .blocks
            .values()
            .filter(|block| block.owner().as_ref() == Some(&owner))
            .map(|block| block.cidr)
            .collect();
        let mut has_remaining = false;
        for cidr in owned {
            if self.blocks[&cidr].is_empty() {
                self.blocks.remove(&cidr);
                self.queue_event(Queue::Blocks, Event::BlockGone(cidr));
            } else {
                has_remaining = true;
            }
        }
        if has_remaining {
            self.index.postpone_node(node, self.now)
        } else {
            self.index.remove_released_node(node)
        }
    }

    pub(in super::super) fn pass(&mut self) -> usize {
        let plan = self.decide(|_| false);
        let released = self.apply(&plan);
        self.run_rest_of_pass();
        released
    }
}
