//! [`Condition`]: a condition in an object's status.

use serde_json::{Value, json};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// A condition without its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    /// The `type` of the condition.
    pub(super) kind: &'static str,
    /// True for the status `True`, false for `False`.
    pub(super) is_true: bool,
    /// The reason for programs.
    pub(super) reason: &'static str,
    /// The message for people.
    pub(super) message: String,
}

impl Condition {
    fn status(&self) -> &'static str {
        if self.is_true { "True" } else { "False" }
    }

    /// Returns all conditions of an object with `status` after setting this condition, or `None` if the object has this
    /// condition already. Conditions of other types stay.
    pub(super) fn among(&self, status: Option<&Value>, now: OffsetDateTime) -> Option<Vec<Value>> {
        let mut conditions = status.and_then(|status| status["conditions"].as_array()).cloned().unwrap_or_default();
        let found = conditions.iter().position(|condition| condition["type"] == self.kind);
        let says = |condition: &Value| {
            condition["status"] == self.status()
                && condition["reason"] == self.reason
                && condition["message"] == self.message.as_str()
        };
        if found.is_some_and(|at| says(&conditions[at])) {
            return None;
        }
        let condition = json!({
            "type": self.kind, "status": self.status(), "reason": self.reason, "message": self.message,
            "lastTransitionTime": seconds(now),
        });
        match found {
            Some(at) => conditions[at] = condition,
            None => conditions.push(condition),
        }
        Some(conditions)
    }
}

/// Returns true if the condition `kind` of an object with `status` is true; `None` if the object has no such condition.
pub(super) fn is_true(status: Option<&Value>, kind: &str) -> Option<bool> {
    let conditions = status?["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind).map(|condition| condition["status"] == "True")
}

/// Formats a time as Kubernetes does.
fn seconds(time: OffsetDateTime) -> String {
    let whole = time.to_offset(UtcOffset::UTC).replace_nanosecond(0).unwrap_or(time);
    // Formatting cannot fail for years of four digits.
    whole.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn only_a_change_is_written_and_others_stay() {
        let ready = |reason| Condition { kind: "Ready", is_true: false, reason, message: "m".into() };
        let now = datetime!(2026-08-22 06:33:20.5 UTC);
        let other = json!({"type": "Other", "status": "True"});
        let written = ready("A").among(Some(&json!({"conditions": [other]})), now).unwrap();
        let expected = json!({
            "type": "Ready", "status": "False", "reason": "A", "message": "m",
            "lastTransitionTime": "2026-08-22T06:33:20Z",
        });
        assert_eq!(written, [other, expected]);
        let status = json!({"conditions": written});
        assert_eq!(ready("A").among(Some(&status), datetime!(2027-01-01 00:00 UTC)), None);
        assert_eq!(ready("B").among(Some(&status), now).unwrap()[1]["reason"], "B");
        assert_eq!(ready("A").among(None, now).unwrap().len(), 1);
        assert_eq!((is_true(Some(&status), "Other"), is_true(Some(&status), "Ready")), (Some(true), Some(false)));
        assert_eq!((is_true(Some(&status), "None"), is_true(None, "Ready")), (None, None));
    }
}
