//! Corrects release times of clocks that were ahead, so that their addresses do not wait until that
//! time has come.
//!
//! A release time in the future says that its writer's clock is ahead, or that the clock here is
//! behind. The time of the API server decides.

use std::time::Duration;

use allocation::write_gate::WriteGate;
use hyper::header::DATE;
use kube::client::Body;
use libcalico::failure::Failure;
use libcalico::ipam::Block;
use libcalico::net::Cidr;
use libcalico::store::{Store, StoreError};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::GcPass;

/// Shortest interval between two requests for the time of the API server.
const INTERVAL: Duration = Duration::from_secs(60);

impl GcPass {
    /// Stores the time of the API server in place of release times that are far in its future.
    pub(super) async fn correct_release_times(&mut self) {
        let now = self.now();
        if self.release_times_due > now || self.wrong_blocks(OffsetDateTime::now_utc()).is_empty() {
            return;
        }
        self.release_times_due = now + INTERVAL;
        let time = match self.server_time().await {
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
                    self.metrics.count_failure("rested");
                    tracing::warn!(
                        %block, %error, "cannot correct release times; trying again later",
                    );
                }
            }
        }
    }

    fn wrong_blocks(&self, now: OffsetDateTime) -> Vec<Cidr> {
        self.cache.index().blocks_of_wrong_clocks(now)
    }

    async fn correct_block(&self, cidr: &Cidr, time: OffsetDateTime) -> Result<bool, StoreError> {
        let calico = &self.context.calico;
        let mut entry = calico.get::<Block>(cidr).await?;
        if entry.value.verify().is_err()
            || !entry.value.correct_release_times(time)
            || !self.gate.admit(1).await
        {
            return Ok(false);
        }
        calico.update(cidr, &entry.value, &entry.revision).await?;
        Ok(true)
    }

    /// Reads the time of the API server, in whole seconds, from the header of a response.
    async fn server_time(&self) -> Result<OffsetDateTime, Failure> {
        let request = hyper::Request::get("/version").body(Body::empty())?;
        let response = self.context.kubernetes.send(request).await?;
        if !response.status().is_success() {
            let status = response.status();
            return Err(Failure::new(format_args!(
                "the API server answers {status} to /version"
            )));
        }
        let date = response
            .headers()
            .get(DATE)
            .and_then(|date| date.to_str().ok())
            .unwrap_or_default();
        OffsetDateTime::parse(date, &Rfc2822).map_err(|_| {
            Failure::new(format_args!(
                "the response to /version has `{date}` in the header Date, which is no time"
            ))
        })
    }
}
