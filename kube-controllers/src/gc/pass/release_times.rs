//! Corrects release times of clocks that were ahead, so that their addresses do not wait until that
//! time has come.
//!
//! A release time in the future says that its writer's clock is ahead, or that the clock here is
//! behind. The time of the API server decides.

use std::time::Duration;

use allocation::write_gate::WriteGate;
use libcalico::ipam::Block;
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};
use os::clock::Clock;
use time::OffsetDateTime;

use super::GcPass;
use crate::gc::world::{ClusterApi, World};

/// Shortest interval between two requests for the time of the API server.
const INTERVAL: Duration = Duration::from_secs(60);

impl<W: World> GcPass<W> {
    /// Stores the time of the API server in place of release times that are far in its future.
    pub(super) async fn correct_release_times(&mut self) {
        let now = self.now();
        if self.release_times_due > now || self.wrong_blocks(self.inputs.clock.now()).is_empty() {
            return;
        }
        self.release_times_due = now + INTERVAL;
        let time = match self.inputs.api.time().await {
            Ok(time) => time,
            Err(error) => {
                return tracing::warn!(
                    %error,
                    "cannot read the API server's time; addresses with future release times wait"
                );
            }
        };
        for block in self.wrong_blocks(time) {
            match self.correct_block(&block, time).await {
                Ok(true) => {
                    tracing::info!(%block, "corrected release times of a clock that was ahead")
                }
                // The watch delivers what another writer stored.
                Ok(false) | Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => {}
                Err(error) => {
                    self.inputs.metrics.count_failure("rested");
                    tracing::warn!(
                        %block, %error, "cannot correct release times; trying again later",
                    );
                }
            }
        }
    }

    fn wrong_blocks(&self, now: OffsetDateTime) -> Vec<Cidr> {
        self.inputs.cache.index().blocks_of_wrong_clocks(now)
    }

    async fn correct_block(&self, cidr: &Cidr, time: OffsetDateTime) -> Result<bool, StoreError> {
        let calico = &self.inputs.calico;
        let mut entry = calico.get::<Block>(cidr).await?;
        if entry.value.verify().is_err()
            || !entry.value.correct_release_times(time)
            || !self.inputs.gate.admit(1).await
        {
            return Ok(false);
        }
        calico.update(cidr, &entry.value, &entry.revision).await?;
        Ok(true)
    }
}
