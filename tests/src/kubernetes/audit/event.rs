//! The lines of the audit log: an event for each stage of a request.

use std::collections::HashMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use time::OffsetDateTime;

use super::Request;

/// The fields of an audit.k8s.io/v1 Event that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    id: String,
    stage: Stage,
    #[serde(rename = "requestURI")]
    uri: String,
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<Status>,
    #[serde(rename = "requestReceivedTimestamp", with = "time::serde::rfc3339")]
    received: OffsetDateTime,
    #[serde(rename = "stageTimestamp", with = "time::serde::rfc3339")]
    reached: OffsetDateTime,
}

#[derive(Deserialize, PartialEq, Eq)]
enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    api_group: String,
}

#[derive(Deserialize)]
struct Status {
    code: Option<u16>,
    #[serde(default)]
    message: String,
}

/// Parses lines of the log, those of each request complete.
pub(super) fn requests<'l>(lines: impl Iterator<Item = &'l str>) -> Result<Vec<Request>> {
    let mut requests: Vec<Request> = Vec::new();
    let mut places = HashMap::new();
    for line in lines {
        let event: Event =
            serde_json::from_str(line).with_context(|| format!("the audit log has {line}"))?;
        let code = event
            .response_status
            .as_ref()
            .and_then(|status| status.code);
        // The server rejects unauthenticated clients before it logs the stage RequestReceived.
        let refused = event.stage == Stage::ResponseStarted && code == Some(401);
        // A request without a place was received before this part of the log begins.
        if event.stage == Stage::RequestReceived || (refused && !places.contains_key(&event.id)) {
            places.insert(event.id.clone(), requests.len());
            requests.push(event.into());
        } else if let Some(&place) = places.get(&event.id) {
            let request: &mut Request = &mut requests[place];
            // A watch that has not ended counts as answered at its start.
            if event.stage != Stage::ResponseStarted || event.verb == "watch" {
                (request.code, request.answered) = (code, event.reached);
                request.reason = event
                    .response_status
                    .map(|status| status.message)
                    .unwrap_or_default();
            }
        }
    }
    Ok(requests)
}

impl From<Event> for Request {
    fn from(event: Event) -> Request {
        let object = event.object_ref;
        let resource = match (object.resource.is_empty(), object.subresource.is_empty()) {
            (true, _) => event.uri.split('?').next().unwrap_or_default().to_owned(),
            (false, true) => object.resource,
            (false, false) => format!("{}/{}", object.resource, object.subresource),
        };
        Request {
            verb: event.verb,
            group: object.api_group,
            resource,
            namespace: object.namespace,
            name: object.name,
            user: event.user.username,
            code: event
                .response_status
                .as_ref()
                .and_then(|status| status.code),
            reason: event
                .response_status
                .map(|status| status.message)
                .unwrap_or_default(),
            uri: event.uri,
            received: event.received,
            answered: event.reached,
        }
    }
}
