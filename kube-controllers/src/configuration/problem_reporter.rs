//! [`ProblemReporter`]: reports a configuration that cannot be read or followed.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::state::NAME;
use crate::events::{self, EventType};
use crate::settings::Mode;

/// Reason of the Event.
const REASON: &str = "UnreadableConfiguration";

/// Reports each problem to the log and as an Event, once until it changes.
pub(super) struct ProblemReporter {
    kubernetes: kube::Client,
    object: Value,
    reported: Mutex<String>,
}

impl ProblemReporter {
    pub(super) fn new(kubernetes: kube::Client, mode: Mode) -> Self {
        let group = match mode {
            Mode::Etcd => ApiGroup::V3,
            Mode::Kubernetes(group) => group,
        };
        let object = json!({ "apiVersion": group.api_version(), "kind": "KubeControllersConfiguration", "name": NAME });
        ProblemReporter { kubernetes, object, reported: Mutex::default() }
    }

    /// Clears the last problem, so that it is reported if it occurs again.
    pub(super) fn clear(&self) {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Logs the problem and creates an Event. A replica that is not the leader does so too: the Event is about this
    /// process.
    pub(super) async fn report(&self, reason: &str) {
        {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if *reported == reason {
                return;
            }
            reason.clone_into(&mut reported);
        }
        tracing::error!("KubeControllersConfiguration({NAME}): {reason}");
        let event = events::event(&self.object, EventType::Warning, REASON, reason, SystemTime::now());
        if let Err(error) = events::post(&self.kubernetes, event).await {
            tracing::warn!("cannot create an Event about KubeControllersConfiguration({NAME}): {error}");
        }
    }
}
