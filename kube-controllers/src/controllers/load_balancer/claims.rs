//! Adds labels to block affinities of Services that older versions wrote without labels (KC-503). Without labels, the
//! blocks are not found.

use std::time::Duration;

use ipam_plugin::affinity::add_labels;
use libcalico::ipam::Owner;
use libcalico::names::LOAD_BALANCER_HOST;
use libcalico::store::StoreError;

use crate::context::Context;
use crate::runtime::Leadership;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest delay between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Adds the labels to all such affinities.
pub(super) async fn label_claims(context: &Context) {
    let owner = Owner::Virtual(LOAD_BALANCER_HOST.into());
    until_done(context.leadership.clone(), || add_labels(&*context.calico, &owner, &context.leadership)).await;
}

/// Retries `work` until it is complete. Runs only while this replica is the leader, and starts over after a loss of
/// leadership.
async fn until_done<F: Future<Output = Result<bool, StoreError>>>(mut leadership: Leadership, work: impl Fn() -> F) {
    let mut pause = FIRST_PAUSE;
    loop {
        leadership.gained().await;
        match leadership.while_held(work()).await {
            Some(Ok(true)) => return,
            Some(Ok(false)) | None => continue,
            Some(Err(error)) => tracing::warn!(%error, "cannot label old claims of Services' blocks"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::watch;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::runtime::Tenure;

    #[tokio::test(start_paused = true)]
    async fn it_is_begun_anew_when_this_replica_leads_again() {
        let (sender, tenure) = watch::channel(Tenure::No);
        let (begun, ended) = (Cell::new(0), Cell::new(0));
        let work = || async {
            begun.set(begun.get() + 1);
            sleep(Duration::from_secs(10)).await;
            ended.set(ended.get() + 1);
            Ok(true)
        };
        let leading = async {
            for (tenure, expected) in [(Tenure::No, 0), (Tenure::Always, 1), (Tenure::No, 1), (Tenure::Always, 2)] {
                sender.send_replace(tenure);
                sleep(Duration::from_secs(5)).await;
                assert_eq!((begun.get(), ended.get()), (expected, 0));
            }
        };
        tokio::join!(until_done(Leadership::new(tenure), work), leading);
        assert_eq!((begun.get(), ended.get()), (2, 1), "what was cut off did not go on");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_again_and_not_at_once() {
        let (begin, times) = (Instant::now(), Cell::new(0));
        let work = || async {
            times.set(times.get() + 1);
            if times.get() < 4 { Err(StoreError::Other("away".into())) } else { Ok(true) }
        };
        until_done(Leadership::always(), work).await;
        assert_eq!((times.get(), begin.elapsed()), (4, FIRST_PAUSE * (1 + 2 + 4)));
    }
}
