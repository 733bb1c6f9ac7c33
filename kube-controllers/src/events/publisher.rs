//! [`EventPublisher`]: posts Events, with a pause for namespaces that refuse them, and names for
//! Events that are posted once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::{NAMESPACE, post};

/// Maximum length of the part of an object's name that an Event's name begins with, in bytes.
const MAX_NAME_PREFIX: usize = 200;
/// Time without attempts in a namespace after a 403. The cause may be a quota, an admission policy
/// or a missing right, all of which may end. An attempt per Event would be a useless request per
/// Event.
const REFUSAL_PAUSE: Duration = Duration::from_secs(600);

/// The result of an attempt to create an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The Event exists now.
    Created,
    /// An Event of this name existed before.
    Exists,
    /// The API server refuses Events in the namespace (403).
    Refused {
        /// The end of the pause, before which this publisher sends no request for the namespace.
        until: Instant,
    },
    /// The Event is not created. Another attempt may succeed.
    Failed,
}

/// A publisher of Events. After the API server has refused an Event with 403, this publisher posts
/// no Event in the same namespace for [`REFUSAL_PAUSE`]. Other namespaces are not affected.
#[derive(Debug, Default)]
pub(crate) struct EventPublisher {
    /// The namespaces that refuse Events, with the ends of their pauses.
    pauses: Mutex<BTreeMap<String, Instant>>,
}

impl EventPublisher {
    /// Posts an Event if `may_write` is true: an Event is a write, and a replica that is not the
    /// leader posts none.
    pub(crate) async fn create(
        &self,
        client: &kube::Client,
        may_write: bool,
        event: Value,
    ) -> Posted {
        if !may_write {
            return Posted::Failed;
        }
        let namespace = event["metadata"]["namespace"]
            .as_str()
            .unwrap_or(NAMESPACE)
            .to_owned();
        if let Some(until) = self.refused_until(&namespace) {
            return Posted::Refused { until };
        }
        let Err(error) = post(client, event).await else {
            return Posted::Created;
        };
        match error.status() {
            Some(status) if status.code == 409 => Posted::Exists,
            Some(status) if status.code == 403 => Posted::Refused {
                until: self.pause(namespace, &status.message),
            },
            _ => {
                tracing::debug!(%error, "cannot create an Event");
                Posted::Failed
            }
        }
    }

    /// Returns the end of the namespace's pause, if it has not ended.
    fn refused_until(&self, namespace: &str) -> Option<Instant> {
        let now = Instant::now();
        self.pauses()
            .get(namespace)
            .copied()
            .filter(|until| *until > now)
    }

    /// Begins a pause, unless a concurrent attempt has begun one, and returns its end.
    fn pause(&self, namespace: String, reason: &str) -> Instant {
        let now = Instant::now();
        let mut pauses = self.pauses();
        pauses.retain(|_, until| *until > now);
        *pauses.entry(namespace).or_insert_with_key(|namespace| {
            let minutes = REFUSAL_PAUSE.as_secs() / 60;
            tracing::warn!(
                %reason,
                "posting no more Events in namespace {namespace} for {minutes} minutes"
            );
            now + REFUSAL_PAUSE
        })
    }

    fn pauses(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives an Event of [`event`](super::event) a name that is derived from the uid of its object and
/// from `parts`, the facts that it reports. So another replica, or this replica after a restart,
/// does not create the Event again while it exists.
pub(crate) fn named_by(mut event: Value, uid: &str, parts: &[&str]) -> Value {
    let name = event["involvedObject"]["name"].as_str().unwrap_or_default();
    let short = name
        .get(..MAX_NAME_PREFIX)
        .unwrap_or(name)
        .trim_end_matches(['.', '-']);
    let facts = [&[uid][..], parts].concat().join("/");
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_OID, facts.as_bytes());
    let name = format!("{short}.{}", digest.simple());
    event["metadata"]["name"] = json!(name);
    event
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use tokio::time::advance;

    use super::*;
    use crate::controllers::testing::{posting_kubernetes, refusing_kubernetes};
    use crate::events::{EventType, event};
    use crate::logging::captured::Captured;
    use crate::settings::LogSeverity;

    fn about(namespace: Option<&str>, name: &str) -> Value {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": "u",
        });
        event(&object, EventType::Warning, "Reason", "text", UNIX_EPOCH)
    }

    /// Returns a client whose API server refuses Events in namespaces that contain `refused`, and
    /// the paths requested.
    fn refusing(refused: &'static str) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let paths = Arc::<Mutex<Vec<String>>>::default();
        let asked = paths.clone();
        let client = refusing_kubernetes(move |uri| {
            asked.lock().unwrap().push(uri.path().to_owned());
            if uri.path().contains(refused) {
                Err(403)
            } else {
                Ok(json!({}))
            }
        });
        (client, paths)
    }

    /// A tenant may forbid Events in the tenant's own namespace, for example by a quota.
    /// Shows SEC-28.
    #[tokio::test(start_paused = true)]
    async fn event_forbidden_in_a_tenant_namespace_does_not_block_other_events() {
        let (client, paths) = refusing("tenant");
        let events = EventPublisher::default();
        for (namespace, is_refused) in [
            (Some("tenant"), true),
            (None, false),
            (Some("tenant"), true),
            (None, false),
        ] {
            let posted = events.create(&client, true, about(namespace, "p")).await;
            assert_eq!(
                matches!(posted, Posted::Refused { .. }),
                is_refused,
                "{namespace:?}"
            );
        }
        let (tenant, default) = (
            "/api/v1/namespaces/tenant/events",
            "/api/v1/namespaces/default/events",
        );
        assert_eq!(*paths.lock().unwrap(), [tenant, default, default]);
    }

    /// Shows SEC-28.
    #[tokio::test(start_paused = true)]
    async fn forbidden_event_causes_one_attempt_and_one_log_line_in_ten_minutes() {
        let (client, paths) = refusing("default");
        let events = EventPublisher::default();
        let (log, _logging) = Captured::on_this_thread(LogSeverity::Warning);
        for attempts in 1..=3 {
            for wait in [
                Duration::ZERO,
                Duration::from_secs(1),
                REFUSAL_PAUSE - Duration::from_secs(2),
            ] {
                advance(wait).await;
                let posted = events.create(&client, true, about(None, "p")).await;
                assert!(matches!(posted, Posted::Refused { .. }), "{posted:?}");
                assert_eq!(paths.lock().unwrap().len(), attempts);
            }
            advance(Duration::from_secs(1)).await;
        }
        let lines = log.from("posting no more Events");
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(
            lines[0].starts_with("posting no more Events in namespace default for 10 minutes"),
            "{lines:?}"
        );
    }

    #[tokio::test]
    async fn replica_without_the_right_to_write_posts_no_event() {
        let (client, taken) = posting_kubernetes();
        let events = EventPublisher::default();
        let posted = events.create(&client, false, about(None, "p")).await;
        assert_eq!(
            (posted, taken.lock().unwrap().len()),
            (Posted::Failed, 0),
            "the Event remains to be posted"
        );
        let posted = events.create(&client, true, about(None, "p")).await;
        assert_eq!((posted, taken.lock().unwrap().len()), (Posted::Created, 1));
    }

    #[test]
    fn name_of_an_event_depends_on_the_object_and_the_reported_facts_only() {
        let name = |event: Value| event["metadata"]["name"].as_str().unwrap().to_owned();
        let first = name(named_by(about(None, "web"), "u", &["a", "b"]));
        assert!(
            first.starts_with("web.") && first.len() == "web.".len() + 32,
            "{first}"
        );
        let (web, at) = (
            json!({ "name": "web" }),
            UNIX_EPOCH + Duration::from_secs(9),
        );
        let later = event(&web, EventType::Normal, "Other", "other text", at);
        assert_eq!(name(named_by(later, "u", &["a", "b"])), first);
        for (uid, parts) in [("v", ["a", "b"]), ("u", ["a", "c"]), ("u", ["b", "a"])] {
            assert_ne!(name(named_by(about(None, "web"), uid, &parts)), first);
        }
        // The name of an object has at most 253 bytes, and so has the name of an Event.
        let long = name(named_by(
            about(None, &format!("{}.{}", "p".repeat(199), "q".repeat(53))),
            "u",
            &[],
        ));
        assert!(
            long.starts_with("ppp") && long.len() == 199 + 1 + 32,
            "{long}"
        );
    }
}
