//! [`Entry`]: a plugin in a configuration.

use serde_json::{Map, Value};

use super::document::Verbatim;
use super::likeness::canonical;
use crate::layout::CALICO;

/// A plugin in a list.
pub type Entry = Verbatim<Map<String, Value>>;

/// The relation of an entry to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceFor {
    /// The configuration contains the same entry.
    Same,
    /// The configuration contains another entry of this type, added by its owner.
    Other,
    /// The entry can be added.
    More,
}

/// Returns the type of a plugin. Runtimes match the key without regard to case.
pub fn kind(entry: &Entry) -> &str {
    let found = entry
        .get("type")
        .or_else(|| entry.iter().find(|(key, _)| key.eq_ignore_ascii_case("type")).map(|(_, kind)| kind));
    found.and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn is_calico(entry: &Entry) -> bool {
    kind(entry) == CALICO
}

pub(super) fn is_same(one: &Entry, other: &Entry) -> bool {
    form(one) == form(other)
}

/// Returns a form of an entry that does not depend on formatting.
pub(super) fn form(entry: &Entry) -> Value {
    canonical(&Value::Object((**entry).clone()))
}

/// Returns true if upstream's templates or ours generate this entry.
pub(super) fn is_of_a_template(entry: &Entry) -> bool {
    let is = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|ours| ours.as_object() == Some(&**entry));
    is(r#"{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}"#)
        || is(r#"{"type": "bandwidth", "capabilities": {"bandwidth": true}}"#)
}
