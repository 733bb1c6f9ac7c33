//! The differences between a recorded value and ours, leaf by leaf.

use std::fmt;

use libcalico::names::InterfaceAlias;
use serde_json::Value;

use super::marks::Bindings;
use crate::kernel::sorted_routes;

/// A leaf that differs from the recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// JSON pointer (RFC 6901) into the compared value, such as a step.
    pub path: String,
    /// The recorded value; `None` if the recording has none.
    pub recorded: Option<Value>,
    /// Our value; `None` if we have none.
    pub ours: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| {
            value
                .as_ref()
                .map_or("nothing".to_owned(), Value::to_string)
        };
        write!(
            f,
            "{}\n    recorded: {}\n    ours:     {}",
            self.path,
            text(&self.recorded),
            text(&self.ours)
        )
    }
}

/// Returns the differences below `path`, and binds marks during the comparison.
pub fn differences(
    recorded: &Value,
    ours: &Value,
    path: &str,
    bindings: &mut Bindings,
) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(recorded, ours, path, bindings, &mut found);
    found
}

fn compare(
    recorded: &Value,
    ours: &Value,
    path: &str,
    bindings: &mut Bindings,
    found: &mut Vec<Difference>,
) {
    match (recorded, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for (name, recorded) in a {
                let path = member(path, name);
                match b.get(name) {
                    Some(ours) => compare(recorded, ours, &path, bindings, found),
                    None => found.push(Difference {
                        path,
                        recorded: Some(recorded.clone()),
                        ours: None,
                    }),
                }
            }
            for (name, ours) in b.iter().filter(|(name, _)| !a.contains_key(*name)) {
                found.push(Difference {
                    path: member(path, name),
                    recorded: None,
                    ours: Some(ours.clone()),
                });
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let (a, b) = if path.ends_with("/routes") && path.starts_with("/after/") {
                (sorted_routes(a.clone()), sorted_routes(b.clone()))
            } else {
                (a.clone(), b.clone())
            };
            for (i, (recorded, ours)) in a.iter().zip(&b).enumerate() {
                compare(recorded, ours, &format!("{path}/{i}"), bindings, found);
            }
        }
        _ if bindings.matches(recorded, ours) || is_our_alias(path, recorded, ours) => {}
        _ => found.push(Difference {
            path: path.to_owned(),
            recorded: Some(recorded.clone()),
            ours: Some(ours.clone()),
        }),
    }
}

/// Returns true for the alias of a host interface, in which only this implementation stores the
/// container.
fn is_our_alias(path: &str, recorded: &Value, ours: &Value) -> bool {
    let is_alias = path.starts_with("/after/host/links/") && path.ends_with("/alias");
    is_alias && recorded.is_null() && ours.as_str().and_then(InterfaceAlias::parse).is_some()
}

fn member(path: &str, name: &str) -> String {
    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
}
