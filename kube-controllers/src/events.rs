//! Kubernetes Events that kube-controllers posts. [`EventPublisher`] posts those of the leader; a
//! replica posts an Event about its own configuration with [`post`].

mod publisher;

use std::time::{SystemTime, UNIX_EPOCH};

use datastore::kubernetes::{ObjectError, ObjectRequest};
use libcalico::kubernetes::{Location, Resource};
use node_process::logging::printable;
use serde::Serialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::leader::name_of_pod;

pub use publisher::Posted;
pub(crate) use publisher::{EventPublisher, named_by};

const COMPONENT: &str = "calico-kube-controllers";
const EVENTS: Resource = Resource {
    api_version: "v1",
    kind: "Event",
    plural: "events",
    namespaced: true,
};
/// Namespace of Events about cluster-scoped objects.
pub(crate) const NAMESPACE: &str = "default";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum EventType {
    Normal,
    /// A state that needs an operator.
    Warning,
}

/// Builds an Event about `object`, an `involvedObject` with a name. The Event is in the namespace
/// of the object, or in [`NAMESPACE`].
pub(crate) fn event(
    object: &Value,
    event_type: EventType,
    reason: &str,
    message: &str,
    now: SystemTime,
) -> Value {
    let name = object["name"].as_str().unwrap_or_default();
    let namespace = object["namespace"].as_str().unwrap_or(NAMESPACE);
    let at = OffsetDateTime::from(now)
        .replace_nanosecond(0)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let at = at.format(&Rfc3339).unwrap_or_default();
    // client-go's format of the name. Two Events of one object have different names unless they
    // share a nanosecond.
    let nanoseconds = now
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{name}.{nanoseconds:x}"), "namespace": namespace },
        "involvedObject": object,
        "reason": reason,
        "message": message,
        "type": event_type,
        "source": { "component": COMPONENT },
        "reportingComponent": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    })
}

/// Creates the Event with this pod as its reporter. Escapes control characters in the message,
/// because the message contains text from other objects.
pub(crate) async fn post(client: &kube::Client, mut event: Value) -> Result<(), ObjectError> {
    if let Value::String(message) = &mut event["message"] {
        *message = printable::line(message).into_owned();
    }
    event["reportingInstance"] = json!(name_of_pod());
    let text = |field: &str| event["metadata"][field].as_str();
    let namespace = text("namespace").unwrap_or(NAMESPACE);
    let at = Location::namespaced(EVENTS, namespace, text("name").unwrap_or_default());
    let request = ObjectRequest::create(&at, &event);
    request.send_text(client).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::testing::posting_kubernetes;
    use crate::leader::identity;

    /// Shows SEC-30.
    #[tokio::test]
    async fn event_message_escapes_control_characters() {
        let (client, taken) = posting_kubernetes();
        post(
            &client,
            json!({ "metadata": { "namespace": NAMESPACE }, "message": "a\n\x1b[2Kb" }),
        )
        .await
        .unwrap();
        assert_eq!(taken.lock().unwrap()[0]["message"], "a\\n\\u001b[2Kb");
    }

    #[tokio::test]
    async fn event_names_the_replica_as_the_lease_does() {
        let (client, taken) = posting_kubernetes();
        let node = json!({ "kind": "Node", "name": "n1" });
        post(
            &client,
            event(&node, EventType::Normal, "Reason", "text", UNIX_EPOCH),
        )
        .await
        .unwrap();
        let instance = taken.lock().unwrap()[0]["reportingInstance"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(
            identity().starts_with(&format!("{instance}_")) && !instance.is_empty(),
            "{instance:?}"
        );
    }
}
