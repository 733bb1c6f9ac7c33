//! [`Unreadable`]: reports a configuration that cannot be read or followed.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::NAME;
use crate::context::Mode;
use crate::events::{self, Severity};

/// Reason of the Event.
const REASON: &str = "UnreadableConfiguration";

/// Reports each problem to the log and as an Event, once until it changes.
pub(super) struct Unreadable {
    kubernetes: kube::Client,
    object: Value,
    told: Mutex<String>,
}

impl Unreadable {
    pub(super) fn new(kubernetes: kube::Client, mode: Mode) -> Self {
        let group = match mode {
            Mode::Etcd => ApiGroup::V3,
            Mode::Kubernetes(group) => group,
        };
        let object = json!({ "apiVersion": group.api_version(), "kind": "KubeControllersConfiguration", "name": NAME });
        Unreadable { kubernetes, object, told: Mutex::default() }
    }

    /// Clears the last problem, so that it is reported if it occurs again.
    pub(super) fn mended(&self) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Logs the problem and creates an Event. A replica that is not the leader does so too: the Event is about this
    /// process.
    pub(super) async fn tell(&self, reason: &str) {
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if *told == reason {
                return;
            }
            reason.clone_into(&mut told);
        }
        tracing::error!("KubeControllersConfiguration({NAME}): {reason}");
        let event = events::event(&self.object, Severity::Warning, REASON, reason, SystemTime::now());
        if let Err(error) = events::post(&self.kubernetes, event).await {
            tracing::warn!("cannot create an Event about KubeControllersConfiguration({NAME}): {error}");
        }
    }
}
