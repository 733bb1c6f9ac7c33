//! Compaction of etcd, by the algorithm of the Kubernetes API server (KC-160). Without compaction,
//! an etcd that no other program compacts grows until it rejects writes.

use std::sync::Arc;

use datastore::Datastore;
use datastore::etcd::{Compaction, Round};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::leader::Leadership;
use crate::settings::Settings;

/// Tries to compact etcd once per `compaction_period` while this replica is the leader, until
/// `stop`.
pub(crate) async fn run(
    calico: Arc<Datastore>,
    leadership: Leadership,
    mut settings: watch::Receiver<Arc<Settings>>,
    stop: CancellationToken,
) {
    let etcd = match &*calico {
        Datastore::Etcd(etcd) => etcd,
        Datastore::Local(_) | Datastore::Kubernetes(_) => return stop.cancelled().await,
    };
    let mut compaction = Compaction::default();
    while !stop.is_cancelled() {
        let period = settings.borrow_and_update().compaction_period;
        tokio::select! {
            () = stop.cancelled() => return,
            // A changed period restarts the wait.
            Ok(_) = settings.wait_for(|settings| settings.compaction_period != period) => continue,
            // With a period of zero, no round follows until the period changes.
            () = sleep(period), if !period.is_zero() => {}
        }
        // A round sends at most two requests. A replica that loses leadership after the first
        // request does not send the second.
        match leadership.while_held(compaction.round(etcd)).await {
            Some(Ok(Round::Compacted(revision))) => {
                tracing::info!("etcd compacted to revision {revision}")
            }
            Some(Ok(Round::First | Round::ByAnotherProcess)) | None => {}
            Some(Err(error)) => {
                tracing::warn!("cannot compact etcd; trying again after the period: {error}")
            }
        }
    }
}
