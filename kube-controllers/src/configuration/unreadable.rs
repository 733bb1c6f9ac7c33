//! [`Unreadable`]: tells operators that the configuration cannot be read, or a field of it cannot be followed.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use libcalico::kubernetes::ApiGroup;
use serde_json::{Value, json};

use super::NAME;
use crate::context::Mode;
use crate::events::{self, Severity};

/// Reason of the Event.
const REASON: &str = "UnreadableConfiguration";

/// Log and Event, once for the same thing.
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

    /// Forgets what was told: if it is so again it is told again.
    pub(super) fn mended(&self) {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Logs it, and creates an Event, also as a replica that does not lead: the Event is about the process itself.
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
