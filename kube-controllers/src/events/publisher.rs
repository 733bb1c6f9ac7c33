//! [`EventPublisher`]: posts Events, with the rule for namespaces that forbid them, and names for Events that are
//! posted once.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{NAMESPACE, post};

/// Maximum length of the part of an object's name that an Event's name begins with, in bytes.
const MAX_NAME_PREFIX: usize = 200;

/// The result of an attempt to create an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posted {
    /// The Event exists now.
    Created,
    /// An Event of this name existed before.
    Exists,
    /// The API server refuses the Event (403).
    Refused,
    /// The Event is not created. Another attempt may succeed.
    Failed,
}

/// A publisher of Events. Once the API server has refused an Event in the namespace `default` with 403, this publisher
/// posts no more Events there.
#[derive(Debug, Default)]
pub(crate) struct EventPublisher {
    forbidden: AtomicBool,
}

impl EventPublisher {
    /// Posts an Event as [`EventPublisher::create`]. Returns true if another attempt would change nothing: the Event
    /// exists, or the API server refuses Events there (403).
    pub(crate) async fn write(&self, client: &kube::Client, may_write: bool, event: Value) -> bool {
        self.create(client, may_write, event).await != Posted::Failed
    }

    /// Posts an Event if `may_write` is true: an Event is a write, and a replica that is not the leader posts none.
    pub(crate) async fn create(&self, client: &kube::Client, may_write: bool, event: Value) -> Posted {
        // A 403 in a namespace other than `default` may come from a quota or from the namespace's deletion, and does
        // not apply to other namespaces.
        let is_in_default = event["metadata"]["namespace"] == NAMESPACE;
        if is_in_default && self.forbidden.load(Ordering::Relaxed) {
            return Posted::Refused;
        }
        if !may_write {
            return Posted::Failed;
        }
        match post(client, event).await {
            Ok(()) => Posted::Created,
            Err(kube::Error::Api(status)) if status.code == 409 => Posted::Exists,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                if is_in_default && !self.forbidden.swap(true, Ordering::Relaxed) {
                    tracing::warn!(reason = %status.message,
                        "the API server forbids an Event; posting no more Events in namespace default");
                }
                Posted::Refused
            }
            Err(error) => {
                tracing::debug!(%error, "cannot create an Event");
                Posted::Failed
            }
        }
    }
}

/// Gives an Event of [`event`](super::event) a name that is derived from the uid of its object and from `parts`, the
/// facts that it reports. So another replica, or this replica after a restart, does not create the Event again while it
/// exists.
pub(crate) fn named_by(mut event: Value, uid: &str, parts: &[&str]) -> Value {
    let name = event["involvedObject"]["name"].as_str().unwrap_or_default();
    let short = name.get(..MAX_NAME_PREFIX).unwrap_or(name).trim_end_matches(['.', '-']);
    let facts = [&[uid][..], parts].concat().join("/");
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_OID, facts.as_bytes());
    let name = format!("{short}.{}", digest.simple());
    event["metadata"]["name"] = json!(name);
    event
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::controllers::testing::{posting_kubernetes, refusing_kubernetes};
    use crate::events::{EventType, event};

    fn about(namespace: Option<&str>, name: &str) -> Value {
        let object = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": "u" });
        event(&object, EventType::Warning, "Reason", "text", UNIX_EPOCH)
    }

    /// Returns a client whose API server refuses Events in namespaces that contain `refused`, and the paths requested.
    fn refusing(refused: &'static str) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let paths = Arc::<Mutex<Vec<String>>>::default();
        let asked = paths.clone();
        let client = refusing_kubernetes(move |uri| {
            asked.lock().unwrap().push(uri.path().to_owned());
            if uri.path().contains(refused) { Err(403) } else { Ok(json!({})) }
        });
        (client, paths)
    }

    /// A tenant may forbid Events in the tenant's own namespace, for example by a quota.
    #[tokio::test]
    async fn event_forbidden_in_a_tenant_namespace_does_not_block_other_events() {
        let (client, paths) = refusing("tenant");
        let events = EventPublisher::default();
        assert!(events.write(&client, true, about(Some("tenant"), "p")).await, "it is not tried again");
        assert!(events.write(&client, true, about(None, "p")).await);
        assert!(events.write(&client, true, about(Some("tenant"), "p")).await);
        let (tenant, default) = ("/api/v1/namespaces/tenant/events", "/api/v1/namespaces/default/events");
        assert_eq!(*paths.lock().unwrap(), [tenant, default, tenant]);
    }

    #[tokio::test]
    async fn event_forbidden_in_default_is_the_last_attempt_there() {
        let (client, paths) = refusing("default");
        let events = EventPublisher::default();
        for _ in 0..2 {
            assert!(events.write(&client, true, about(None, "p")).await);
        }
        assert!(events.write(&client, true, about(Some("ns"), "p")).await);
        assert_eq!(*paths.lock().unwrap(), ["/api/v1/namespaces/default/events", "/api/v1/namespaces/ns/events"]);
    }

    #[tokio::test]
    async fn replica_without_the_right_to_write_posts_no_event() {
        let (client, taken) = posting_kubernetes();
        let events = EventPublisher::default();
        assert!(!events.write(&client, false, about(None, "p")).await, "the Event remains to be posted");
        assert_eq!(taken.lock().unwrap().len(), 0);
        assert!(events.write(&client, true, about(None, "p")).await);
        assert_eq!(taken.lock().unwrap().len(), 1);
    }

    #[test]
    fn name_of_an_event_depends_on_the_object_and_the_reported_facts_only() {
        let name = |event: Value| event["metadata"]["name"].as_str().unwrap().to_owned();
        let first = name(named_by(about(None, "web"), "u", &["a", "b"]));
        assert!(first.starts_with("web.") && first.len() == "web.".len() + 32, "{first}");
        let (web, at) = (json!({ "name": "web" }), UNIX_EPOCH + Duration::from_secs(9));
        let later = event(&web, EventType::Normal, "Other", "other text", at);
        assert_eq!(name(named_by(later, "u", &["a", "b"])), first);
        for (uid, parts) in [("v", ["a", "b"]), ("u", ["a", "c"]), ("u", ["b", "a"])] {
            assert_ne!(name(named_by(about(None, "web"), uid, &parts)), first);
        }
        // The name of an object has at most 253 bytes, and so has the name of an Event.
        let long = name(named_by(about(None, &format!("{}.{}", "p".repeat(199), "q".repeat(53))), "u", &[]));
        assert!(long.starts_with("ppp") && long.len() == 199 + 1 + 32, "{long}");
    }
}
