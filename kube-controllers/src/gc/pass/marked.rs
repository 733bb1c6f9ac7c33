//! [`MarkedBlocks`]: completes deletions of blocks that other programs began and did not end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use allocation::block_writes::complete_deletion;
use libcalico::net::Cidr;
use os::clock::Clock;

use super::GcPass;
use crate::gc::world::{PassGate, World};

/// The time that a program has for the deletion of a block that it has marked.
const GRACE: Duration = Duration::from_secs(60);

/// The blocks that are marked for deletion, each with the time of its next attempt.
#[derive(Debug, Default)]
pub(super) struct MarkedBlocks(BTreeMap<Cidr, Duration>);

impl MarkedBlocks {
    /// Records the blocks that are marked now, and returns those whose grace has ended. They are
    /// due again after the same time, in case an attempt fails.
    fn due(&mut self, marked: impl Iterator<Item = Cidr>, now: Duration) -> Vec<Cidr> {
        let marked: BTreeSet<Cidr> = marked.collect();
        self.0.retain(|cidr, _| marked.contains(cidr));
        let mut due = Vec::new();
        for cidr in marked {
            let next = self.0.entry(cidr).or_insert(now + GRACE);
            if *next <= now {
                *next = now + GRACE;
                due.push(cidr);
            }
        }
        due
    }

    /// Returns the time of the next attempt; `None` if no block is marked.
    pub(super) fn next_deadline(
        &self,
        marked: impl Iterator<Item = Cidr>,
        now: Duration,
    ) -> Option<Duration> {
        marked
            .map(|cidr| self.0.get(&cidr).copied().unwrap_or(now))
            .min()
    }
}

impl<W: World> GcPass<W> {
    /// Deletes the empty blocks that have been marked for deletion for longer than the grace.
    pub(super) async fn delete_marked_blocks(&mut self) {
        let due = {
            let (now, index) = (self.inputs.clock.elapsed(), self.inputs.cache.index());
            self.marked.due(index.marked_blocks(), now)
        };
        for block in due {
            if !self.inputs.gate.is_open() {
                return;
            }
            match complete_deletion(&*self.inputs.calico, &*self.inputs.gate, &block).await {
                Ok(true) => {
                    tracing::info!(
                        %block, "deleted a block that another program had marked for deletion",
                    );
                    self.inputs.cache.index().remove_block(&block);
                }
                Ok(false) => {
                    tracing::debug!(
                        %block, "kept a block, which is in use again or being written",
                    )
                }
                Err(error) => {
                    self.inputs.metrics.count_failure("blocks");
                    tracing::warn!(
                        %block, %error, "cannot delete a marked block; trying again later",
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_block_is_due_after_the_grace_and_again_later() {
        let cidr: Cidr = "10.0.0.0/26".parse().unwrap();
        let mut marked = MarkedBlocks::default();
        let at = Duration::from_secs;
        assert_eq!(
            marked.next_deadline([cidr].into_iter(), at(5)),
            Some(at(5)),
            "a block that no pass has seen"
        );
        for (now, is_due, next) in [
            (10, false, 70),
            (69, false, 70),
            (70, true, 130),
            (71, false, 130),
            (130, true, 190),
        ] {
            assert_eq!(
                marked.due([cidr].into_iter(), at(now)).len(),
                usize::from(is_due),
                "{now}"
            );
            assert_eq!(
                marked.next_deadline([cidr].into_iter(), at(now)),
                Some(at(next)),
                "{now}"
            );
        }
        assert_eq!(
            (
                marked.due([].into_iter(), at(131)),
                marked.next_deadline([].into_iter(), at(131))
            ),
            (vec![], None)
        );
        assert!(
            marked.due([cidr].into_iter(), at(1000)).is_empty(),
            "another deletion"
        );
    }
}
