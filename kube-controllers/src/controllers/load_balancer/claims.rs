//! Claims that a release from before the labels wrote (KC-503): without labels the blocks of Services are not found.

use std::time::Duration;

use ipam_plugin::affinity::add_labels;
use libcalico::ipam::Owner;
use libcalico::names::LOAD_BALANCER_HOST;

use crate::context::Context;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Sees to it that all have labels. Writes only while this replica leads, and begins again when it leads again.
pub(super) async fn label_claims(context: &Context) {
    let owner = Owner::Virtual(LOAD_BALANCER_HOST.into());
    let mut leadership = context.leadership.clone();
    let mut pause = FIRST_PAUSE;
    loop {
        leadership.gained().await;
        let labelling = add_labels(&*context.calico, &owner, &context.leadership);
        match context.leadership.while_held(labelling).await {
            Some(Ok(true)) => return,
            Some(Ok(false)) | None => continue,
            Some(Err(error)) => tracing::warn!(%error, "cannot label old claims of Services' blocks"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
