//! [`Status`]: the API server's error answer, and its meaning for the store (DS-119).

use std::fmt;

use serde::Deserialize;

use crate::store::StoreError;

/// A `Status` object of the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The kind; `Status` if the answer is from the API server.
    pub kind: String,
    /// The HTTP status.
    pub code: u16,
    /// The reason: `NotFound`, `AlreadyExists`, `Conflict` …
    pub reason: String,
    /// The message for people.
    pub message: String,
    /// The details of the cause.
    pub details: StatusDetails,
}

/// `details` of a [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// The name of the object concerned; may be empty, for example if the server does not serve the
    /// kind.
    pub name: String,
    /// The invalid fields of the object sent.
    pub causes: Vec<StatusCause>,
    /// The seconds to wait before the next attempt; 0 if the server does not state a time.
    pub retry_after_seconds: u32,
}

/// A reason why an object is invalid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// The reason, such as `FieldValueInvalid`.
    pub reason: String,
    /// The path of the field.
    pub field: String,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status {
            code,
            reason,
            message,
            ..
        } = self;
        match reason.as_str() {
            "" => write!(f, "{message} ({code})"),
            _ => write!(f, "{message} ({code} {reason})"),
        }
    }
}

impl Status {
    /// Returns the store error for any answer that refuses a request. The arguments are those of
    /// [`Status::refusal`].
    pub fn store_error(&self, key: &str, credential: &str) -> StoreError {
        self.refusal(key, credential)
            .unwrap_or_else(|| StoreError::Other(format!("{key}: {self}")))
    }

    /// Returns the store error for an answer that reports an existing, missing or changed object,
    /// or a missing authorization. `key` is the object's identifier; `credential` describes the
    /// credential used, or is empty.
    pub fn refusal(&self, key: &str, credential: &str) -> Option<StoreError> {
        let key = key.to_owned();
        Some(match (self.code, self.reason.as_str()) {
            (_, "AlreadyExists") => StoreError::AlreadyExists { key },
            _ if self.is_not_found() => StoreError::NotFound { key },
            (401, _) => StoreError::Unauthorized {
                reason: self.with_credential(credential),
            },
            (403, _) => StoreError::Forbidden {
                reason: self.with_credential(credential),
            },
            // Another object has the name of the object that was read.
            (409, _) if self.message.contains("UID in precondition") => {
                StoreError::NotFound { key }
            }
            (409, _) => StoreError::Conflict { key },
            // The API server may reject a patch with a stale uid or resourceVersion with 422.
            (422, _) => self.stale_revision(key)?,
            _ => return None,
        })
    }

    fn with_credential(&self, credential: &str) -> String {
        if credential.is_empty() {
            self.message.clone()
        } else {
            format!("{} ({credential})", self.message)
        }
    }

    /// Returns true if the API server reports `NotFound`. A 404 from a proxy has another body.
    pub fn is_not_found(&self) -> bool {
        self.kind == "Status" && self.code == 404 && self.reason == "NotFound"
    }

    /// Returns the error for a stale uid or resourceVersion, if the answer names only these fields.
    fn stale_revision(&self, key: String) -> Option<StoreError> {
        let causes = &self.details.causes;
        let is = |cause: &StatusCause, field| {
            cause.reason == "FieldValueInvalid" && cause.field == field
        };
        let is_stale = |cause: &StatusCause| {
            is(cause, "metadata.uid") || is(cause, "metadata.resourceVersion")
        };
        if causes.is_empty() || !causes.iter().all(is_stale) {
            return None;
        }
        let uid = causes.iter().any(|cause| is(cause, "metadata.uid"));
        Some(if uid {
            StoreError::NotFound { key }
        } else {
            StoreError::Conflict { key }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refusal(status: Value) -> Option<String> {
        refusal_of("token of /t", status)
    }

    fn refusal_of(credential: &str, status: Value) -> Option<String> {
        let status: Status = serde_json::from_value(status).unwrap();
        status
            .refusal("K(k)", credential)
            .map(|error| error.to_string())
    }

    #[test]
    fn rejection_without_a_credential_has_the_servers_message_only() {
        let forbidden = json!({"code": 403, "message": "User \"u\" cannot get"});
        let told = refusal_of("", forbidden).unwrap();
        assert_eq!(told, "connection is unauthorized: User \"u\" cannot get");
    }

    #[test]
    fn api_statuses_map_to_store_errors() {
        let invalid = |fields: &[&str]| {
            let causes: Vec<Value> = fields
                .iter()
                .map(|f| json!({"reason": "FieldValueInvalid", "field": f}))
                .collect();
            json!({"code": 422, "reason": "Invalid", "details": {"causes": causes}})
        };
        let uid = "Operation cannot be fulfilled: Precondition failed: UID in precondition: a, UID \
                   in object meta: b";
        for (status, expected) in [
            (
                json!({"code": 409, "reason": "AlreadyExists"}),
                "resource already exists: K(k)",
            ),
            (
                json!({"kind": "Status", "code": 404, "reason": "NotFound"}),
                "resource does not exist: K(k)",
            ),
            (
                json!({"code": 409, "reason": "Conflict", "message": "modified"}),
                "update conflict: K(k)",
            ),
            (
                json!({"code": 409, "reason": "Conflict", "message": uid}),
                "resource does not exist: K(k)",
            ),
            (invalid(&["metadata.uid"]), "resource does not exist: K(k)"),
            (
                invalid(&["metadata.resourceVersion", "metadata.uid"]),
                "resource does not exist: K(k)",
            ),
            (
                invalid(&["metadata.resourceVersion"]),
                "update conflict: K(k)",
            ),
            (
                json!({"code": 403, "message": "no"}),
                "connection is unauthorized: no (token of /t)",
            ),
            (
                json!({"code": 401, "message": "who"}),
                "connection is unauthorized: who (token of /t)",
            ),
        ] {
            assert_eq!(refusal(status).as_deref(), Some(expected));
        }
    }

    #[test]
    fn transient_and_other_statuses_are_no_rejection() {
        for status in [
            json!({"code": 429, "details": {"retryAfterSeconds": 1}}),
            json!({"code": 500}),
            json!({"code": 410, "reason": "Expired"}),
            json!({
                "code": 422,
                "details": {"causes": [{"reason": "FieldValueInvalid", "field": "spec.cidr"}]},
            }),
            json!({"code": 422}),
            json!({"code": 404, "message": "404 page not found"}),
            json!({"code": 404, "reason": "NotFound"}),
            json!({"kind": "Status", "code": 404}),
        ] {
            assert_eq!(refusal(status), None);
        }
    }
}
