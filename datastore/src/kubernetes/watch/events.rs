//! [`Events`]: an open watch, read line by line.

use std::borrow::Cow;

use http_body_util::BodyExt;
use hyper::StatusCode;
use kube::client::Body;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kubernetes::error::{ApiStatusError, RequestError};
use crate::watch::WatchFailure;

/// Maximum capacity, in bytes, of an empty buffer that is kept for the next event.
const KEPT_CAPACITY: usize = 256 << 10;

pub(super) struct Events {
    body: Body,
    /// The bytes of the response that have arrived and are still needed.
    buffer: Vec<u8>,
    consumed: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum Event<'a> {
    /// The object is new or changed.
    Upsert { object: &'a str, position: String },
    /// The object was deleted; the text is its last state.
    Delete { object: &'a str, position: String },
    /// There are no further changes up to this position.
    Bookmark { position: String },
    /// The watch cannot continue.
    Error(Box<ApiStatusError>),
}

impl Events {
    pub(super) fn new(body: Body) -> Self {
        Events {
            body,
            buffer: Vec::new(),
            consumed: 0,
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Event<'_>>, WatchFailure> {
        self.buffer.drain(..std::mem::take(&mut self.consumed));
        if self.buffer.is_empty() {
            self.buffer.shrink_to(KEPT_CAPACITY);
        }
        let mut searched = 0;
        let end = loop {
            if let Some(at) = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n')
            {
                break searched + at;
            }
            searched = self.buffer.len();
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(error.into()),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(WatchFailure::lost("the watch ended within an event")),
            }
        };
        self.consumed = end + 1;
        // A retry delivers the event again. If the event stays unreadable, the watcher lists again.
        let unreadable =
            |e: serde_json::Error| WatchFailure::Refused(format!("cannot read an event: {e}"));
        parse(&self.buffer[..end]).map(Some).map_err(unreadable)
    }
}

impl From<kube::Error> for WatchFailure {
    fn from(error: kube::Error) -> Self {
        WatchFailure::lost(RequestError::from(error).to_string())
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

#[derive(Deserialize)]
struct Code {
    code: u16,
}

fn parse(line: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    let line: Line<'_> = serde_json::from_slice(line)?;
    let object = line.object.get();
    if line.kind == "ERROR" {
        let Code { code } = serde_json::from_str(object)?;
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return Ok(Event::Error(Box::new(ApiStatusError::parse(
            code,
            object.as_bytes(),
            None,
        ))));
    }
    let Object {
        metadata: Metadata {
            resource_version: position,
        },
    } = serde_json::from_str(object)?;
    Ok(match &*line.kind {
        "DELETED" => Event::Delete { object, position },
        "BOOKMARK" => Event::Bookmark { position },
        _ => Event::Upsert { object, position },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_lines_are_parsed_by_event_type() {
        let position = || "7".to_owned();
        let object = r#"{"metadata":{"resourceVersion":"7"},"kind":"Pod"}"#;
        for (kind, expected) in [
            (
                "ADDED",
                Event::Upsert {
                    object,
                    position: position(),
                },
            ),
            (
                "MODIFIED",
                Event::Upsert {
                    object,
                    position: position(),
                },
            ),
            (
                "DELETED",
                Event::Delete {
                    object,
                    position: position(),
                },
            ),
            (
                "BOOKMARK",
                Event::Bookmark {
                    position: position(),
                },
            ),
        ] {
            let line = format!(r#"{{"type":"{kind}","object":{object}}}"#);
            assert_eq!(parse(line.as_bytes()).unwrap(), expected);
            let reversed = format!(r#"{{"object":{object},"type":"{kind}"}}"#);
            assert_eq!(parse(reversed.as_bytes()).unwrap(), expected);
        }
        let gone = br#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        let Event::Error(refusal) = parse(gone).unwrap() else {
            panic!()
        };
        assert_eq!(refusal.to_string(), "too old (410 Expired)");
        assert!(parse(br#"{"type":"ADDED","object":{}}"#).is_err());
    }

    #[tokio::test]
    async fn watch_events_are_split_and_joined_across_chunks() {
        let line = |n: u32| {
            format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"{n}"}}}}}}"#)
                + "\n"
        };
        let mut events = Events::new(Body::from((line(1) + &line(2) + "{").into_bytes()));
        for n in 1..3 {
            assert_eq!(
                events.next().await,
                Ok(Some(Event::Bookmark {
                    position: n.to_string()
                }))
            );
        }
        assert_eq!(
            events.next().await,
            Err(WatchFailure::lost("the watch ended within an event"))
        );
        let mut events = Events::new(Body::from(line(1).into_bytes()));
        events.next().await.unwrap();
        assert_eq!(events.next().await, Ok(None));
    }
}
